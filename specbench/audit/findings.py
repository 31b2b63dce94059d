"""What the answers of an audit show besides forks: the distribution of sampled text, counts, forms, and the draft."""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from specbench.audit.causes import SINGLE, sampled_cause
from specbench.audit.cells import FIRST, NEUTRAL_CELL, Cell
from specbench.audit.course import ARMS, Course, Floors, Trial, digest
from specbench.audit.forks import FORK, Finding, Found, answered, fork_of, forks
from specbench.audit.probes import Ask, Reply
from specbench.audit.statistics import (
    ORDER,
    Deviation,
    Scored,
    Step,
    deviations,
    permutation,
    step_of,
    too_few,
)
from specbench.errors import ServerError, SpecbenchError
from specbench.judge.significance import FALSE_ALARM, holm

NEVER = 0.02  # share of accepted drafts below which a draft counts as never accepted
ENOUGH = 100  # drafted tokens for that
CLOSE = 0.9  # of the expected share of accepted drafts: rounding and the ends of answers are below a tenth
SURE = 20.0  # nats of surprise of an answer that is not sampled twice by chance
FEW = 24  # tokens of it


SAMPLED, SEEDS, FORM = "another distribution", "equal samples", "form"
PROMPT, AFTER = "another prompt", "text after its end"
UNJUDGED, FAILS = "not judged", "server error"
NO_DRAFT, REJECTED, WORSE, LOGPROBS = "no draft", "drafts are not accepted", "acceptance falls", "log-probabilities"
BELOW = "fewer drafts are accepted than the draft model itself agrees with"


def score_trial(course: Course, cell: Cell, one: Trial) -> None:
    """Request all scores that judge a trial."""
    if cell.kind == "greedy":
        fork_of(course, one)
    output = one.audited.ids if cell.kind == "sampled" else one.baseline.ids if cell.name == FIRST else ()
    if output and course.baseline.scores:
        course.score(one.ask.prompt, output)


Tests = Mapping[tuple[str, str], tuple[Deviation, float]]  # by cell and name, with p after Holm's correction over all


def tests_of(course: Course, scored: Sequence[Found], floors: Floors) -> Tests:
    """All tests of sampled answers."""
    if not course.baseline.scores:
        return {}
    cells = [(cell, trials) for cell, trials in scored if cell.kind == "sampled"]
    some = [(cell.name, one) for cell, trials in cells for one in tested(course, cell, trials, ARMS[1], floors)]
    made = {(cell, one.name): one for cell, one in some}
    return dict(zip(made, zip(made.values(), holm([one.p for one in made.values()]), strict=True), strict=True))


def findings_of(
    course: Course, found: Sequence[Found], scored: Sequence[Found], floors: Floors, tests: Tests
) -> list[Finding]:
    """All findings, worst kinds first within the order of cells; scored: of every cell the trials with all scores."""
    made = unjudged(found, scored)
    for cell, trials in found:
        made += refusals(cell, trials)
        made += odd(cell, trials)
    made += forks(course, [(cell, trials) for cell, trials in scored if cell.kind == "greedy"], floors)
    forked = any(one.kind == "fault" and one.what == FORK for one in made)
    drawn = [(cell, trials) for cell, trials in scored if cell.kind == "sampled"]
    made += distributions(course, drawn, floors, tests, forked)
    made += [one for cell, trials in found if cell.kind == "texts" for one in forms(cell, trials)]
    made += [*reported(course, found, floors), *drafting(found), *below_agreement(course, found)]
    return [one if one.cause or one.what not in SINGLE else replace(one, cause=SINGLE[one.what]) for one in made]


# --- answers ----------------------------------------------------------------------------------------------------------


def unjudged(found: Sequence[Found], scored: Sequence[Found]) -> list[Finding]:
    """The answers that the baseline was lost before, equal or not: what differs must not be left out alone."""
    rest = [one for (_, trials), (_, own) in zip(found, scored, strict=True) for one in trials[len(own) :]]
    if not rest:
        return []
    differ = sum(one.baseline.ids != one.audited.ids for one in rest if one.ask.fields.get("temperature", 0) == 0)
    detail = f"the baseline was lost before they were judged; {differ} of the greedy ones differ from its answers"
    return [Finding("all", "not tried", UNJUDGED, detail, len(rest), sum(len(trials) for _, trials in found))]


def refusals(cell: Cell, trials: Sequence[Trial]) -> list[Finding]:
    """Why a cell could not be tried, wholly or in part."""
    if not cell.asks:
        return [Finding(cell.name, "not tried", "no request", "it needs a chat format, or longer answers")]
    arms = [pair for one in trials for pair in (("baseline", one.baseline), ("audited server", one.audited))]
    reasons = Counter((arm, reply.refused) for arm, reply in arms if reply.refused)
    if not reasons:
        return []
    (arm, reason), many = reasons.most_common(1)[0]
    failed = [one for one in trials if one.audited.refused.startswith("500") and not one.baseline.refused]
    if failed:
        detail = f"the audited server answered {failed[0].audited.refused}, and the baseline answered the request"
        return [Finding(cell.name, "report", FAILS, detail, len(failed), len(trials), None, failed[0])]
    return [Finding(cell.name, "not tried", "refused", f"the {arm} answered {reason}", many, len(trials))]


def oddities(ask: Ask, reply: Reply, prompt: int | None) -> dict[str, str]:
    """What is wrong with an answer in itself, by kind; an engine may have such a habit without a draft, too."""
    found: dict[str, str] = {}
    fields, length = ask.fields, len(reply.ids)
    tokens = reply.tokens if reply.tokens is not None else length
    if reply.ids and tokens != length:
        found["usage"] = f"{length} tokens, counted as {tokens}"
    if max(tokens, length) > ask.new:
        found["too long"] = f"{max(tokens, length)} tokens, with max_tokens {ask.new}"
    if reply.finish == "length" and max(tokens, length) < ask.new:
        found["too short"] = f"{tokens} tokens and finish_reason length, with max_tokens {ask.new}"
    ends = fields.get("stop") or fields.get("stop_token_ids") or not fields.get("ignore_eos", True)
    if reply.finish == "stop" and not ends and not ask.messages:
        found["stopped"] = f"finish_reason stop after {tokens} tokens, without an end"
    if any(stop in reply.text for stop in fields.get("stop") or ()):
        found[AFTER] = f"the text holds its stop string {fields['stop'][0]!r}"
    inner = [token for token in fields.get("stop_token_ids") or () if token in reply.ids[:-1]]
    if inner:
        found[AFTER] = f"tokens follow the stop token {inner[0]}"
    if prompt is not None and reply.prompt is not None and reply.prompt != prompt:
        found[PROMPT] = f"a prompt of {reply.prompt} tokens, and {prompt} on the baseline"
    return found


def odd(cell: Cell, trials: Sequence[Trial]) -> list[Finding]:
    """Answers that are wrong in themselves, where the baseline's are not."""
    found: dict[str, list[tuple[Trial, str]]] = {}
    for one in answered(trials):
        usual = oddities(one.ask, one.baseline, None)
        for what, detail in oddities(one.ask, one.audited, one.baseline.prompt).items():
            if what not in usual:
                found.setdefault(what, []).append((one, detail))
    return [
        Finding(
            cell.name,
            "report" if what == "usage" else "fault",
            what,
            some[0][1],
            len(some),
            len(trials),
            None,
            some[0][0],
        )
        for what, some in found.items()
    ]


def reported(course: Course, found: Sequence[Found], floors: Floors) -> list[Finding]:
    """Whether the audited arm reports the log-probabilities of its tokens, in one answer."""
    first = next((one for _, trials in found for one in answered(trials) if one.audited.ids), None)
    if first is None or not floors.leads:
        return []
    try:
        said = course.decoded(first.ask.prompt, first.ask.new, ARMS[1])
        known = course.score(first.ask.prompt, [one.token for one in said])
    except ServerError:  # a server was lost: what was answered before is judged all the same
        return []
    wrong = [at for at, (one, other) in enumerate(zip(said, known, strict=True)) if apart(one, other) > floors.limit]
    if not wrong:
        return []
    detail = f"{len(wrong)} of {len(said)} tokens have none or a wrong one, the first at token {wrong[0] + 1}"
    return [Finding("greedy", "report", LOGPROBS, detail, 1, 1, None, first)]


def apart(one: Scored, other: Scored) -> float:
    """The difference of the log-probabilities of a token; infinite if one is missing."""
    values = one.of(one.token), other.of(one.token)
    return math.inf if None in values else abs((values[0] or 0.0) - (values[1] or 0.0))


# --- sampled text -----------------------------------------------------------------------------------------------------


def distributions(course: Course, found: Sequence[Found], floors: Floors, tests: Tests, forked: bool) -> list[Finding]:
    """Sampled answers that do not follow the baseline's distribution, where the baseline's own do."""
    if not course.baseline.scores:
        return [one for cell, trials in found for one in unlike_lengths(cell, trials)]
    cells, cause = {own for (own, _), (_, p) in tests.items() if p < FALSE_ALARM}, ""
    made = [one for cell, trials in found for one in repeated(course, cell, trials)]
    for cell, trials in found:
        bad = [(one, p) for (own, _), (one, p) in tests.items() if own == cell.name and p < FALSE_ALARM]
        if not bad:
            continue
        if doubt := doubt_of(course, cell, trials, floors, len(tests)):
            made.append(Finding(cell.name, "not tried", SAMPLED, doubt))
            continue
        worst, p = min(bad, key=lambda one: (one[0].p, one[0].name))
        if not cause or NEUTRAL_CELL not in cells:
            cause = sampled_cause(cell.name, worst, cells, forked)
        made.append(replace(sampled_finding(cell, trials, worst, p), cause=cause))
    return made


def doubt_of(course: Course, cell: Cell, trials: Sequence[Trial], floors: Floors, tests: int) -> str:
    """Why a deviation is no fault: the baseline's own answers deviate as well, or cannot be tested; empty if it is."""
    try:
        own = [one.name for one in tested(course, cell, trials, "baseline", floors) if one.p < FALSE_ALARM / tests]
    except ServerError as error:
        return f"the answers deviate, and the baseline's own could not be tested ({error})"
    return f"the baseline's own answers do not follow its log-probabilities ({min(own)})" if own else ""


def tested(course: Course, cell: Cell, trials: Sequence[Trial], arm: str, floors: Floors) -> list[Deviation]:
    """The tests of the sampled answers of one arm."""
    answers = [steps_of(course, cell, one.ask, getattr(one, arm), floors) for one in answered(trials)]
    return deviations([one for one in answers if any(step is not None for step in one)])


def steps_of(course: Course, cell: Cell, ask: Ask, reply: Reply, floors: Floors) -> list[Step | None]:
    """The null distributions along a sampled answer."""
    if not reply.ids:
        return []
    before = (*ask.prompt, *reply.ids) if course.baseline.window else reply.ids
    start = len(before) - len(reply.ids)
    return [
        step_of(one, cell.sampler, before[: start + at][-course.baseline.window :], floors.nats)
        for at, one in enumerate(course.drawable(ask, reply.ids))
    ]


def sampled_finding(cell: Cell, trials: Sequence[Trial], worst: Deviation, p: float) -> Finding:
    """The finding of a deviation, with its numbers."""
    numbers = f"{worst.found:.3g} instead of {worst.expected:.3g} (z {worst.z:+.1f}, {worst.tokens} tokens)"
    mean = "" if worst.name.startswith(ORDER) or math.isnan(worst.smallest) else "a share of "
    detail = f"{worst.name}: {mean}{numbers}"
    return Finding(cell.name, "fault", SAMPLED, detail, 0, len(trials), p, trials[0])


def repeated(course: Course, cell: Cell, trials: Sequence[Trial]) -> list[Finding]:
    """Equal samples with different seeds, which chance does not explain."""
    known: dict[str, Trial] = {}
    twice, some = 0, list[Trial]()
    for one in answered(trials):
        if len(one.audited.ids) < FEW:
            continue
        key = digest([list(one.ask.prompt), list(one.audited.ids)])
        if key in known and known[key].baseline.ids != one.baseline.ids and surprise(course, one) > SURE:
            twice, some = twice + 1, [*some, one]
        known.setdefault(key, one)
    if not twice:
        return []
    detail = "answers to one prompt with different seeds are equal, and the baseline's are not"
    return [Finding(cell.name, "fault", SEEDS, detail, twice, len(trials), None, some[0])]


def surprise(course: Course, one: Trial) -> float:
    """−log of the probability of an answer, at least."""
    scores = course.score(one.ask.prompt, one.audited.ids)
    return -math.fsum(value if (value := each.of(each.token)) is not None else each.top[-1][1] for each in scores)


def unlike_lengths(cell: Cell, trials: Sequence[Trial]) -> list[Finding]:
    """Without log-probabilities: sampled answers of another length, or that end for another reason."""
    able, found = answered(trials), list[Finding]()
    values: dict[str, Callable[[Reply], float]] = {
        "tokens of an answer": lambda reply: reply.tokens or 0,
        "answers that end before their limit": lambda reply: reply.finish != "length",
    }
    for what, value in values.items():
        pairs = [(float(value(one.baseline)), float(value(one.audited))) for one in able]
        p = min(len(values) * permutation(pairs), 1.0) if pairs else 1.0
        if p < FALSE_ALARM:
            one, other = (math.fsum(column) / len(pairs) for column in zip(*pairs, strict=True))
            detail = f"{what}: {other:.3g} on average, and {one:.3g} on the baseline"
            found.append(Finding(cell.name, "fault", SAMPLED, detail, 0, len(able), p, able[0]))
    return found[:1]


# --- texts of a form --------------------------------------------------------------------------------------------------


def forms(cell: Cell, trials: Sequence[Trial]) -> list[Finding]:
    """Answers that break their form, where the baseline's do not: invalid JSON, arguments that are not JSON."""
    able = answered(trials)
    broken = [one for one in able if well_formed(one, one.baseline) and not well_formed(one, one.audited)]
    if not broken:
        differ = sum(one.baseline.text != one.audited.text for one in able)
        detail = "texts differ, and chats have no token ids by which that could be judged"
        return [Finding(cell.name, "not tried", UNJUDGED, detail, differ, len(able))] if differ else []
    detail = f"not of the form that was requested: {broken[0].audited.text[:60]!r}"
    return [Finding(cell.name, "fault", FORM, detail, len(broken), len(able), None, broken[0])]


def well_formed(one: Trial, reply: Reply) -> bool:
    """Whether an answer that ended has the form that was requested."""
    if reply.finish == "length":
        return True
    if "response_format" in one.ask.fields:
        return is_json(reply.text)
    if "tools" in one.ask.fields and reply.text.startswith("get_weather("):
        return is_json(reply.text.removeprefix("get_weather(")[:-1])
    return True


def is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


# --- the draft --------------------------------------------------------------------------------------------------------


def drafting(found: Sequence[Found]) -> list[Finding]:
    """Whether the audited arm drafts, and its drafts are accepted, to the end."""
    replies = [(cell, one.audited) for cell, trials in found for one in answered(trials)]
    drafted, accepted = totals(replies)
    if drafted is None or not replies:
        return [Finding("all", "not tried", NO_DRAFT, "the server does not report its drafts")]
    if not drafted:
        return [Finding("all", "draft", NO_DRAFT, "no token was drafted", len(replies), len(replies))]
    made = []
    if drafted >= ENOUGH and accepted < NEVER * drafted:
        detail = f"{accepted} of {drafted} drafted tokens were accepted (acceptance length 1.0)"
        made.append(Finding("all", "draft", REJECTED, detail, len(replies), len(replies)))
    return [*made, *collapsed(found), *falling(found)]


def below_agreement(course: Course, found: Sequence[Found]) -> list[Finding]:
    """Whether greedy drafts are accepted as often as the draft model itself agrees with the same text.

    Where all tokens before agree, a draft's next token is its best one after the text itself, so one pass of the draft
    model over an answer gives the accepted tokens of every round, up to rounding.
    """
    same = [one for cell, trials in found if cell.kind == "greedy" and cell.at_once == 1 for one in answered(trials)
            if one.audited.drafted and one.audited.ids == one.baseline.ids]  # fmt: skip
    drafted, accepted = totals([(found[0][0], one.audited) for one in same])
    if course.agrees is None or not drafted or drafted < ENOUGH:
        return []
    try:
        expected = [expected_of(course.agrees(one.ask.prompt, one.audited.ids), course.plan.k) for one in same]
    except SpecbenchError as error:
        return [Finding("greedy", "not tried", BELOW, str(error))]
    least = sum(one for one, _ in expected) / sum(one for _, one in expected)
    if accepted >= CLOSE * least * drafted:
        return []
    detail = f"{accepted / drafted:.0%} of {drafted} drafted tokens, and the draft model itself agrees with {least:.0%}"
    return [Finding("greedy", "draft", BELOW, detail, len(same), len(same))]


def expected_of(agrees: Sequence[bool], k: int) -> tuple[int, int]:
    """The accepted and the drafted tokens of an answer; the first one comes from the prompt."""
    at, accepted, drafted = 1, 0, 0
    while at < len(agrees):
        run = next((n for n, agreed in enumerate(agrees[at : at + k]) if not agreed), len(agrees[at : at + k]))
        at, accepted, drafted = at + run + 1, accepted + run, drafted + k
    return accepted, drafted


def totals(replies: Sequence[tuple[Cell, Reply]]) -> tuple[int | None, int]:
    """The drafted and accepted tokens; None if no answer reports them."""
    known = [reply for _, reply in replies if reply.drafted is not None and reply.accepted is not None]
    return (sum(one.drafted or 0 for one in known) if known else None), sum(one.accepted or 0 for one in known)


def collapsed(found: Sequence[Found]) -> list[Finding]:
    """Drafts that sampling accepts far less often than greedy decoding does: a tenth of it is the least to expect."""
    by = {kind: totals([(cell, one.audited) for cell, trials in found if kind in (cell.kind, cell.name)
                        for one in answered(trials)]) for kind in ("greedy", NEUTRAL_CELL)}  # fmt: skip
    (drafted, accepted), (sampled_drafted, sampled_accepted) = by["greedy"], by[NEUTRAL_CELL]
    if not drafted or not sampled_drafted or accepted < NEVER * drafted:
        return []
    least = accepted / drafted / 10
    if too_few(sampled_accepted, sampled_drafted, least) >= FALSE_ALARM:
        return []
    detail = (f"{sampled_accepted} of {sampled_drafted} drafted tokens were accepted at temperature 1, and "
              f"{accepted / drafted:.0%} at temperature 0")  # fmt: skip
    return [Finding(NEUTRAL_CELL, "draft", REJECTED, detail)]


def falling(found: Sequence[Found]) -> list[Finding]:
    """Acceptance of the same prompts at the start and at the end."""
    cells = {cell.name: trials for cell, trials in found}
    pairs = [(share(a.audited), share(b.audited)) for a, b in
             zip(cells.get("greedy", ()), cells.get("greedy, again at the end", ()), strict=False)]  # fmt: skip
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    if len(known) < 8:
        return []
    before, after = (math.fsum(column) / len(known) for column in zip(*known, strict=True))
    if after >= before or permutation(known) >= FALSE_ALARM:
        return []
    detail = f"{before:.0%} of the drafted tokens at the start, {after:.0%} of those of the same prompts at the end"
    return [Finding("greedy, again at the end", "draft", WORSE, detail, len(known), len(known))]


def share(reply: Reply) -> float | None:
    return reply.accepted / reply.drafted if reply.drafted and reply.accepted is not None else None


def acceptance_in(found: Sequence[Found]) -> dict[str, float] | None:
    """The drafted and accepted tokens, their share, and the acceptance length where rounds are reported."""
    known = [one.audited for _, trials in found for one in answered(trials) if one.audited.drafted is not None]
    drafted, accepted = totals([(found[0][0], one) for one in known]) if known else (None, 0)
    if not drafted:
        return None
    rounds = sum(one.rounds or 0 for one in known)
    length = (
        {"acceptance_length": 1 + accepted / rounds} if rounds and all(one.rounds is not None for one in known) else {}
    )
    return {"drafted": drafted, "accepted": accepted, "accepted_per_drafted": accepted / drafted, **length}
