"""The checks of a pair: of itself, and of every method that decodes with it. Data in, checks out.

Two parties: what emits text (any backend: only `prepare` is asked of it), and a judge that scores it again, the
networks of the same target in this process. Knows specs, prompts and checks; must not know files or how it is shown.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from specbench.backends.base import Decode, Networks, Scores
from specbench.data.prompts import Prompt
from specbench.decoding.method_files import needs, read_method
from specbench.measure.greedy_reference import Floor, agreement, generated, noise_floor
from specbench.measure.order import seed_of
from specbench.measure.rescoring import PlainPass, Rescore, Text, near_ties, tallies, worst_shortfall
from specbench.measure.self_speculation import most_missing, self_speculation
from specbench.results.documents import ACCEPTED, ALPHA, FLOOR, GREEDY, LEANING, RESCORED, SURPRISE, Check, Outcome
from specbench.results.statistics import Tally, all_together
from specbench.spec import RunSpec

MOST = 100  # times that all prompts are decoded again for enough tokens: of some pair every text ends at once

Tallies = dict[str, Tally]  # by the name of the check


@dataclass(frozen=True)
class Judge:
    """What judges text: the networks in this process, what transformers makes of the prompts, the noise of scores."""

    networks: Networks
    score: Rescore
    references: Sequence[Text]
    floor: Floor
    known: dict[Text, float] = field(default_factory=dict)  # most methods emit equal greedy texts

    def shortfall(self, text: Text) -> float:
        """How far the worst token of a text lies below the best score of its place."""
        if text not in self.known:
            self.known[text] = worst_shortfall(text, self.score)
        return self.known[text]


def judge_of(networks: Networks, scores: Scores, greedy: RunSpec, prompts: Sequence[Prompt]) -> Judge:
    """Decode the prompts greedily with transformers alone, and measure the noise along what comes out."""
    network, device, eos = networks.network("target"), networks.device, networks.eos(greedy)
    score = PlainPass(network, device)
    with networks.gradless():
        references = [generated(network, prompt.ids, greedy.max_new_tokens, eos, device) for prompt in prompts]
        return Judge(networks, score, references, noise_floor(scores, score, references, greedy.k + 1))


def control_checks(judge: Judge, greedy: RunSpec, sampled: RunSpec, prompts: Sequence[Prompt]) -> list[Check]:
    """The noise of the pair, and the target as its own draft: greedy, and at a temperature."""
    floor = judge.floor
    seen = Check(FLOOR, "ok", found=floor.noise, detail=f"largest |Δ logit| at {floor.positions} places")
    return [seen, accepted_check(judge, greedy, prompts), alpha_check(judge, sampled, prompts)]


def accepted_check(judge: Judge, greedy: RunSpec, prompts: Sequence[Prompt]) -> Check:
    """Greedy, a draft of the target itself is rejected nowhere but where rounding decides which token is the best."""
    control = self_speculation(judge.networks, greedy, prompts)
    ties = near_ties(control.texts, judge.score, judge.floor.limit)
    outcome: Outcome = "ok" if not control.rejected else "numeric" if control.rejected <= ties else "FAILED"
    detail = f"of {control.tested} drafts rejected; {ties} places where two tokens tie"
    return Check(ACCEPTED, outcome, found=control.rejected, limit=ties, detail=detail)


def alpha_check(judge: Judge, sampled: RunSpec, prompts: Sequence[Prompt]) -> Check:
    """Sampled, its α is 1, less what the noise of logits can take."""
    control = self_speculation(judge.networks, sampled, prompts)
    missing, limit = 1 - control.alpha, most_missing(judge.floor.noise, sampled.temperature)
    detail = f"missing to 1, over {control.tested} drafts"
    return Check(ALPHA, "ok" if missing <= limit else "FAILED", found=missing, limit=limit, detail=detail)


def greedy_checks(judge: Judge, greedy: RunSpec, decode: Decode, prompts: Sequence[Prompt]) -> list[Check]:
    """The greedy output of a method beside that of `generate`, and every token of it scored again."""
    texts, limit = texts_of(decode, greedy, prompts, "greedy"), judge.floor.limit
    same = agreement(texts, judge.references, judge.score)
    outcome: Outcome = "ok" if same.gap is None else "numeric" if same.gap <= limit else "FAILED"
    detail = f"{same.identical} of {same.compared} texts identical"
    found = [Check(GREEDY, outcome, greedy.method, same.gap, limit, detail)]
    worst, tokens = max(map(judge.shortfall, texts)), sum(len(text.tokens) for text in texts)
    outcome, detail = "ok" if worst <= limit else "FAILED", f"below the best, the worst of {tokens}"
    found.append(Check(RESCORED, outcome, greedy.method, worst, limit, detail))
    return [excused(check) for check in found]


def excused(check: Check) -> Check:
    """What a lossy method does is what it says: nothing is demanded of it."""
    return check if read_method(check.method)["lossless"] else replace(check, outcome="lossy")


def sampled_tallies(judge: Judge, spec: RunSpec, decode: Decode, prompts: Sequence[Prompt], least: int) -> Tallies:
    """At least so many sampled tokens of a method, fewer where every text ends at once: their surprise, and how they
    lean to its draft where that is a network."""
    texts, rival = texts_of(decode, spec, prompts, "sampled", least), rival_of(judge.networks, spec.method)
    with judge.networks.gradless():
        found = list(tallies(texts, judge.score, spec.temperature, rival))
    leant = [leaning for _, leaning in found if leaning is not None]
    return {SURPRISE: all_together(one for one, _ in found), **({LEANING: all_together(leant)} if leant else {})}


def rival_of(networks: Networks, method: str) -> PlainPass | None:
    """The network that drafts in a method, by itself; None where none does that reads the target's tokens alone."""
    drafts = sorted((needs(method) - {"target"}) & {*networks.plain})
    return PlainPass(networks.network(drafts[0]), networks.device) if drafts else None


def texts_of(decode: Decode, spec: RunSpec, prompts: Sequence[Prompt], kind: str, least: int = 0) -> list[Text]:
    """Every prompt decoded once; with `least`, again and again with other seeds until there are so many tokens."""
    found, tokens = list[Text](), 0
    size = 1 if spec.batch == 1 else max(spec.batch, -(-least // spec.max_new_tokens))
    for turn in turns(prompts, size, MOST if least else 1):
        seeds = [seed_of(spec, prompt.id, repeat, f"{kind} {spec.method}") for repeat, prompt in turn]
        traces = decode([prompt.ids for _, prompt in turn], seeds)
        found += [Text(tuple(prompt.ids), trace.tokens) for (_, prompt), trace in zip(turn, traces, strict=True)]
        tokens += sum(len(trace.tokens) for trace in traces)
        if tokens >= least > 0:
            break
    return found


def turns(prompts: Sequence[Prompt], size: int, repeats: int) -> Iterator[tuple[tuple[int, Prompt], ...]]:
    """Prompts with the number of their repetition, so many at once that the rows of a batch stay filled."""
    every = ((repeat, prompt) for repeat in range(repeats) for prompt in prompts)
    while turn := tuple(islice(every, size)):
        yield turn
