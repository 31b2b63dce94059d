"""The text of a verdict: the answer, its reason, what settles it, the next command, and the supporting numbers.

For a terminal, as Markdown, or on a page. Names in it come from result files and are untrusted.
"""

import re
import shlex
from collections.abc import Sequence

from specbench.judge.advice import SYNTHETIC
from specbench.judge.verdict import Recommendation
from specbench.results.documents import LOSSY
from specbench.show.text import same_output, short_dataset
from specbench.wording import clean, counted, formatted, interval_text, literal, rows_said, tokens_said, verbatim

LONGEST = 1000  # characters of a line
MATTERS = 0.05  # least share of a round for mentioning the overhead


def sentences(found: Recommendation) -> list[str]:
    """The verdict, a sentence per line: answer, grounds, open questions, next command, numbers."""
    return list(dict.fromkeys([*answer(found), *details(found)]))


def answer(found: Recommendation) -> list[str]:
    """The lines that are always shown."""
    lines = (lead(found), *grounds(found), open_questions([found]), next_step(found))
    return [line for line in lines if line]


def grounds(found: Recommendation) -> list[str]:
    """The grounds of the answer: the costs of a round, equal output, and a faster cell that was not chosen."""
    same = same_output(found.lossless, found.prompts_identical, found.prompts_compared)
    failed = [clean(f"left out: {one}", LONGEST) for one in found.left_out if LOSSY in one]
    lines = (reason(found), same and f"Lossless: {same}", clean(found.faster, LONGEST), *failed)
    return [line for line in lines if line]


def together(found: Sequence[Recommendation]) -> list[str]:
    """The answers of one run, each with its topic; open questions and the next step are given once."""
    if len(found) == 1:
        first, *rest = answer(found[0])
        return [first, *(line if line.startswith("next") else f"  {line}" for line in rest)]
    topics = topics_of(found)
    lines = []
    for one, topic in zip(found, topics, strict=True):
        lines += [lead(one, topic), *(f"  {line}" for line in grounds(one))]
    whose = [topic for one, topic in zip(found, topics, strict=True) if one.reasons]
    doubts = open_questions(found, whose if len(whose) < len(found) else ())
    return [*lines, *([doubts] if doubts else []), *steps(found)]


def topics_of(found: Sequence[Recommendation]) -> list[str]:
    """What distinguishes every question of a run, in a few words."""
    named = [
        {
            "data": clean(short_dataset(one.dataset), 80),
            "context": f"{tokens_said(one.context)} tokens" if one.context else "",
            "chat": one.chat,
            "temperature": f"T = {formatted(one.temperature, 'g')}",
            "batch": rows_said(one.batch, one.arrivals),
            "dtype": one.dtype,
            "engine": one.engine,
            "pair": f"{one.target} ← {one.draft}",
        }
        for one in found
    ]
    apart = [name for name in named[0] if len({words[name] for words in named}) > 1] if named else []
    return [", ".join(words[name] for name in apart or ["data"] if words[name]) for words in named]


def steps(found: Sequence[Recommendation]) -> list[str]:
    """The distinct next steps after several answers; measuring again also settles what more prompts would."""
    growing = [one for one in found if "--resume" in one.command]
    anew = [one for one in found if one.command and one not in growing]
    most = [] if anew else sorted(growing, key=new_limit)[-1:]
    others = [one for one in found if not one.command and (one.settle or not (anew or growing))]
    once: dict[str, str] = {}
    for one in (*anew, *most, *others):
        once.setdefault(one.command or next_step(one), next_step(one))
    return [step for step in once.values() if step]


def new_limit(found: Recommendation) -> int:
    """The new limit in a command that adds prompts to a run; 0 if it only continues."""
    *_, option, value = shlex.split(found.command)
    return int(value) if option == "--limit" else 0


def paragraphs(found: Sequence[Recommendation], explain: bool = True) -> list[str]:
    """The answers of one run as Markdown: each a headline, with its topic if of several, and a list."""
    topics = topics_of(found) if len(found) > 1 else [""] * len(found)
    return [paragraph(one, topic, explain) for one, topic in zip(found, topics, strict=True)]


def paragraph(found: Recommendation, topic: str, explain: bool) -> str:
    """The same sentences as Markdown, with the command to copy."""
    headline = lead(found, topic).strip()  # otherwise stars next to a blank stay stars
    command = found.command or ("" if found.settle else found.further)
    step = f"{literal(_before(found))}: {verbatim(command)}" if command else literal(next_step(found))
    lines = [*map(literal, [*grounds(found), open_questions([found])]), step]
    lines += map(literal, details(found) if explain else [])
    return "\n".join([f"**{literal(headline)}**", "", *(f"- {line}" for line in dict.fromkeys(lines) if line)]) + "\n"


def lead(found: Recommendation, topic: str = "") -> str:
    """The answer (with its topic), the choice, its speedup with the interval, and tokens per second."""
    whose = f" ({topic})" if topic else ""
    leaning = f", leaning {found.leaning}" if found.answer == "PROVISIONAL" else ""
    return clean(f"{found.answer}{leaning}{whose}. {_claim(found)}", LONGEST)


def reason(found: Recommendation) -> str:
    """The reason in one plain sentence: the yield of a round, and its cost."""
    costs = [found.c_round, found.v, found.overhead]
    known = [part for part in costs if part is not None]
    cost = sum(known) if len(known) == len(costs) else None
    if found.tokens_per_round is None or cost is None or found.acceptance:
        return ""
    parts = [f"draft {formatted(found.c_round, '.2f')}", f"verify {formatted(found.v, '.2f')}"]
    if found.overhead is not None and abs(found.overhead) >= MATTERS * cost:
        parts.append(f"overhead {found.overhead:.2f}")
    times = f"{cost:.2f} baseline steps"
    if found.round_ms and found.baseline_step_ms:
        digits = ".1f" if found.baseline_step_ms >= 10 else ".2f"
        step, times = f"baseline steps of {found.baseline_step_ms:{digits}} ms", f"{found.round_ms:{digits}} ms"
        times += f", as long as {cost:.2f} {step}"
    emitted = formatted(found.tokens_per_round, ".2f")
    return f"Why: a round emits {emitted} tokens and takes {times} ({', '.join(parts)})"


def open_questions(found: Sequence[Recommendation], whose: Sequence[str] = ()) -> str:
    """Why answers are provisional or unclear, each kind of reason once; whose: their names, if not all answers."""
    reasons = {kind_of(reason): reason for one in found for reason in one.reasons}
    names = f" ({'; '.join(whose)})" if whose else ""
    return clean(f"Not certain yet{names}: {'; '.join(reasons.values())}", LONGEST) if reasons else ""


def kind_of(reason: str) -> str:
    """The kind of a reason: reasons about the machine differ only in size."""
    return reason if "needed" in reason else re.sub(r"[\d.,]+", "", reason)


def why(found: Recommendation) -> str:
    """Why an answer is provisional or unclear, below it on a page; empty if it is clear."""
    return clean("; ".join(found.reasons), LONGEST)


def next_step(found: Recommendation) -> str:
    """The next step, with the command if known."""
    if found.settle and not found.command:
        return clean(f"next: {found.settle}", LONGEST)
    command = found.command or found.further
    return clean(f"{_before(found)}: {command}", LONGEST) if command else ""


def _before(found: Recommendation) -> str:
    """The words before the next command."""
    return f"next, to {found.settle}" if found.command else "next"


def _claim(found: Recommendation) -> str:
    """The choice and its speed, as a sentence."""
    if found.acceptance and found.best:
        return f"Synthetic acceptance {SYNTHETIC}; with {found.acceptance} the best is {found.best}"
    if not found.best:
        return "No cell was measured that could be recommended"
    if found.low is None:
        what = "prompt" if found.draws == found.prompts else "turn"
        few = f" on {counted(found.draws, what)}" if found.draws else ""
        speedup = f"{formatted(found.speedup, '.2f')}× as fast"
        return f"With {found.best}, decoding is {speedup}{few}, which gives no interval: measure more prompts"
    leaning = found.leaning or found.answer
    among = {
        "YES": f", the best of {found.candidates}," * (not found.faster),
        "NO": f", the least slow of {found.candidates},",
    }
    chosen = found.best + among.get(leaning, "") * (found.candidates > 1)
    comma = "" if chosen.endswith(",") else ","
    verb = "may be faster or slower:" if leaning == "UNCLEAR" else "is"
    interval = f" (95 % interval {found.low:.2f}–{found.high:.2f})"
    return (
        f"With {chosen}{comma} decoding {verb} {formatted(found.speedup, '.2f')}× as fast{interval}{rates(found)}"
        + (_outlook(found) * (leaning == "UNCLEAR"))
    )


def rates(found: Recommendation) -> str:
    """Tokens per second of the baseline and of the choice."""
    before, after = found.baseline_tokens_per_second, found.tokens_per_second
    if before is None or after is None:
        return ""
    digits = ".0f" if before >= 100 else ".1f"
    return f": {before:{digits}} → {after:{digits}} tokens/s"


def _outlook(found: Recommendation) -> str:
    """What would make it clear; empty if the reasons already report too little data."""
    if found.more_prompts is not None:
        settle = "settles" if found.more_prompts == 1 else "settle"
        return f"; about {counted(found.more_prompts, 'more prompt')} {settle} it if that stays"
    return "" if found.reasons else "; it is 1 within what was measured"


# --- the supporting numbers -------------------------------------------------------------------------------------------


def details(found: Recommendation) -> list[str]:
    """The numbers behind the answer, what was left out and what was not measured."""
    return [clean(line, LONGEST) for line in (*_figures(found), *_remarks(found)) if line]


def _figures(found: Recommendation) -> list[str]:
    parts = [
        found.dataset + (f", {tokens_said(found.context)} tokens" if found.context else ""),
        found.chat,
        f"T = {formatted(found.temperature, 'g')}",
        rows_said(found.batch, found.arrivals),
        found.dtype,
        found.device,
    ]
    place = ", ".join(part for part in parts if part)
    if not found.best:
        return [place]
    wider = f", wider than each one's own: the best of {found.candidates}" if found.candidates > 1 else ""
    repeats = f" × {found.repeat}" if (found.repeat or 1) > 1 else ""
    prompts = counted(found.prompts, "prompt") if found.prompts else "– prompts"
    flat = f"   optimum flat: K = {found.near_best} within 1 %" if set(found.near_best) & set("-,") else ""
    speeds = [formatted(value, ".1f") for value in (found.baseline_tokens_per_second, found.tokens_per_second)]
    # If one pass drafts all tokens of a round, c falls with K, and the pass does not.
    whole = f" ({formatted(found.c_round)} a round, with any K)" if found.at_once else ""
    return [
        f"speedup {formatted(found.speedup)}× {interval_text(found.low, found.high)} 95 %{wider} "
        f"(paired by prompt, {prompts}{repeats})   {' → '.join(speeds)} tokens/s   {place}",
        f"predicted {formatted(found.predicted)}×   calibrated (with measured costs) {formatted(found.calibrated)}×   "
        f"alpha {formatted(found.alpha)} {interval_text(found.alpha_low, found.alpha_high)}   "
        f"c {formatted(found.c)}{whole}{flat}",
    ]


def _remarks(found: Recommendation) -> list[str]:
    even = ""
    if found.break_even_alpha is not None:
        value = formatted(found.break_even_alpha)
        least = f"{value} with K = {found.k}" if found.at_once else f"c ({value})"
        even = f"break-even: by the formula alpha above {least}"
        if found.break_even_alpha_measured is not None:
            measured = formatted(found.break_even_alpha_measured)
            even += f"; with the costs measured for {found.best}: alpha above {measured}"
    gaps = f"not measured: {'; '.join(found.not_measured)}"
    return [even, *(f"left out: {reason}" for reason in found.left_out), gaps]
