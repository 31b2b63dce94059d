"""The cells that a verdict may recommend, their names and intervals, and reasons against the others.

Also the K within 1 % of the best, by batch too, and the regret of cells that choose their method or K, which alone
reads samples. All else is from rows of results.csv, as numbers or as text.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul
from typing import Any

from specbench.judge.advice import QUESTION, at_once, drafting
from specbench.judge.predictions import conditional
from specbench.results import noise
from specbench.results.cells import Cell
from specbench.results.samples import time_over
from specbench.results.statistics import Interval, widened
from specbench.spec import BASELINE, CHOOSING, drafted_by
from specbench.theory import optimum
from specbench.wording import Row, number_in, ranges, text_in

MOST = 3  # choices that are worth a measurement
BLOCKS = ("dflash", "dspark")  # arms of servers that draft whole blocks
ONE_K = ("suffix", "medusa")  # with these vLLM 0.32 ends at the first step that has another K
SHORTEST = {("llama-server", "ngram"): 3}  # K from which an arm's drafts begin alike: below, it compares fewer tokens


@dataclass(frozen=True)
class Candidate:
    """A measured drafting cell that is lossless as far as is known; `interval` holds for all candidates at once."""

    row: Row
    interval: Interval

    @property
    def k(self) -> int:
        return int(number_in(self.row, "k") or 0)

    @property
    def constant(self) -> bool:
        return is_constant(self.row) and text_in(self.row, "method") != CHOOSING

    @property
    def prompts(self) -> int:
        """The number of decoded prompts; 0 if unknown."""
        return int(number_in(self.row, "prompts") or 0)

    @property
    def draws(self) -> int:
        """The number of independent draws for the interval: prompts decoded together count as one."""
        return int(number_in(self.row, "draws") or self.prompts)

    @property
    def busy(self) -> bool:
        """Whether other programs were running."""
        return noise.busy(number_in(self.row, "load_average"), number_in(self.row, "threads"))

    @property
    def unsteady(self) -> list[noise.Fault]:
        """Instabilities of the machine during the measurement that leave a doubt."""
        return [fault for fault in noise.faults(self.row) if fault.doubt]

    @property
    def name(self) -> str:
        """The choice in the words of the command line."""
        method = text_in(self.row, "method")
        if method == CHOOSING:
            favourite = text_in(self.row, "chosen").partition(" ")[0]
            return f"{CHOOSING}, mostly {favourite}" if favourite else CHOOSING
        schedule = text_in(self.row, "schedule")
        rule = f"{schedule}:{text_in(self.row, 'confidence')}" if schedule == "confidence" else schedule
        choice = f"K = {self.k}" if self.constant else f"--schedule {rule} with K up to {self.k}"
        method = drafted_by(text_in(self.row, "spec_config"), text_in(self.row, "spec_args"), method)
        return choice if method == "chain" else f"{method} ({choice})"


def is_constant(row: Row) -> bool:
    """Whether every round of a cell has the same lookahead."""
    return text_in(row, "schedule") in ("", "constant")


def candidates(group: Sequence[Row]) -> list[Candidate]:
    """The recommendable cells of a group, each with an interval that holds for all of them at once."""
    sound = [row for row in group if not flaw(row)]
    bounds = [[number_in(row, name) for name in ("speedup", "speedup_low", "speedup_high")] for row in sound]
    intervals = [Interval(*(math.nan if bound is None else bound for bound in some)) for some in bounds]
    return [Candidate(row, widened(one, len(sound))) for row, one in zip(sound, intervals, strict=True)]


def distance_of(row: Row) -> str:
    """How far the output distribution of a lossy cell is from the target's."""
    far = number_in(row, "law_distance")
    by = "an unknown distance" if far is None else f"{far:.3f} per token (total variation distance, mean)"
    return f"not lossless: its output differs from the target's by {by}"


def flaw(row: Row) -> str:
    """The reason against recommending a cell; empty if it may be recommended."""
    name = Candidate(row, Interval(math.nan, math.nan, math.nan)).name
    if text_in(row, "lossless") == "MISMATCH":
        return f"{name}: not lossless"
    if text_in(row, "lossless") == "lossy":
        return f"{name}: {distance_of(row)}"
    if text_in(row, "status") not in ("ok", "partial"):
        return ": ".join(part for part in (name, text_in(row, "status"), text_in(row, "error")) if part)
    if not (number_in(row, "speedup") or 0) > 0:
        return f"{name}: no speedup was measured"
    return "" if number_in(row, "k") else f"{name}: drafts nothing"


def near_best(best: Candidate, found: Sequence[Candidate]) -> str:
    """The lookaheads of the best method whose speedup is within 1 % of the best."""
    same = [c for c in found if c.constant and c.row.get("method") == best.row.get("method")]
    floor = (1 - optimum.NEAR) * best.interval.value
    return ranges(sorted({c.k for c in same if c.interval.value >= floor}))


def by_formula(best: Candidate) -> float | None:
    """The break-even α by the formula: with any K, or with this K if one pass drafts a whole round."""
    of_round = drafting(best.row)
    if not at_once(best.row) or of_round is None:
        return number_in(best.row, "c")
    return optimum.break_even_alpha(best.k, of_round, at_once=True) if best.k else None


def by_costs(best: Candidate) -> float | None:
    """The break-even α of this K by the measured costs: tokens(α, K) = Kc + v + overhead."""
    c, v, overhead = (number_in(best.row, name) for name in ("c", "v", "overhead"))
    if c is None or v is None or overhead is None or not best.constant:
        return None
    of_round = drafting(best.row) if at_once(best.row) else None
    cost = (best.k * c if of_round is None else of_round) + v + overhead
    return optimum.alpha_from_tokens(max(cost, 1.0), best.k) if cost <= best.k + 1 else None


SAME = (*QUESTION, "prompts")
POLICIES = ("enable_adaptive_verification", "num_speculative_tokens_per_batch_size", "--speculative-adaptive")


def adaptive(row: Row) -> bool:
    """Whether a cell chooses its method or K while it decodes, by itself or by the words of its server."""
    config, words = text_in(row, "spec_config"), text_in(row, "spec_args")
    own = text_in(row, "method") == CHOOSING or not is_constant(row) or config == "adaptive"
    return own or any(policy in config + words for policy in POLICIES)


def regrets(cells: Sequence[Cell]) -> Iterator[tuple[Row, str, int, Interval]]:
    """The row of every adaptive cell, the best static choice measured beside it under its load, the number of these,
    and its time per token over that of the best, less 1, with an interval widened for the best of so many. A cell
    with a list of choices is compared with these.
    """
    if not any(adaptive(cell.spec.model_dump()) for cell in cells):
        return
    sound = [(row, cell.samples) for cell in cells if not flaw(row := cell.row())]
    for row, samples in sound:
        own = text_in(row, "choices").split(",") if text_in(row, "method") == CHOOSING else None
        times = {
            f"{name_of(one)} with K = {one['k']}": time_over(samples, others)
            for one, others in sound
            if adaptive(row) and not adaptive(one) and all(text_in(one, name) == text_in(row, name) for name in SAME)
            and (own is None or f"{one['method']}:{one['k']}" in own)
        }  # fmt: skip
        if times and (own is None or BASELINE in own):
            times["no draft"] = time_over(samples, [replace(one, method=one.baseline) for one in samples])
        if times:
            best = max(times, key=lambda name: times[name].value)
            over = widened(times[best], len(times))
            yield row, best, len(times), Interval(over.value - 1, over.low - 1, over.high - 1)


@dataclass(frozen=True)
class BestK:
    """The fastest measured lookahead of one batch, 0 if none beats decoding without a draft.

    Also all K within 1 % of it, its row (None for 0), and v by lookahead, as far as measured.
    """

    batch: int
    k: int
    near: tuple[int, ...]
    row: Row | None
    v: dict[int, float]


def best_ks(rows: Sequence[Row]) -> list[BestK]:
    """The best lookahead of every batch of a series, whose cells differ only in batch and constant lookahead."""
    known: dict[int, dict[int, Row]] = {}
    for row in rows:
        if is_constant(row) and not flaw(row):
            known.setdefault(int(number_in(row, "batch") or 1), {})[int(number_in(row, "k") or 0)] = row
    return [best_k(batch, cells) for batch, cells in sorted(known.items())]


def best_k(batch: int, known: Mapping[int, Row]) -> BestK:
    """The best lookahead of one batch, from its recommendable cells by lookahead."""
    speedups = {0: 1.0} | {k: number_in(row, "speedup") or 0.0 for k, row in known.items()}
    k = max(speedups, key=speedups.__getitem__)
    near = tuple(sorted(one for one, speedup in speedups.items() if speedup >= (1 - optimum.NEAR) * speedups[k]))
    v = {one: value for one, row in sorted(known.items()) if (value := number_in(row, "v")) is not None}
    return BestK(batch, k, near, known.get(k), v)


def vllm_schedule(found: Sequence[BestK]) -> dict[str, Any]:
    """The keys of vLLM's `--speculative-config` that give K by the number of sequences in a step.

    They are the largest K, and [first, last, K] for ranges that begin at 1 and do not overlap
    (vllm/v1/spec_decode/dynamic/utils.py, since pull request 32374). Between two measured batches the smaller
    one's K holds; above the largest, vLLM keeps the last. Empty if no draft pays: vLLM refuses a largest K of
    0. Empty as well for drafts with which it would end.
    """
    largest = max((one.k for one in found), default=0)
    if not largest or any(one.row is not None and name_of(one.row) in ONE_K for one in found):
        return {}
    ranges: list[list[int]] = []
    for number, one in enumerate(found):
        last = found[number + 1].batch - 1 if number + 1 < len(found) else one.batch
        if ranges and ranges[-1][2] == one.k:
            ranges[-1][1] = last
        else:
            ranges.append([one.batch if ranges else 1, last, one.k])
    return {"num_speculative_tokens": largest, "num_speculative_tokens_per_batch_size": ranges}


# --- what to measure next ---------------------------------------------------------------------------------------------
# Every smaller lookahead predicted from cells at their largest one. The draft of K' < K tokens is the beginning of that
# of K tokens, so acceptance by position stays; not so for drafts of whole blocks. A round takes a baseline step, its
# overhead and the search of a lookup where they are known, and for every drafted token the same time.


@dataclass(frozen=True)
class Choice:
    """A candidate with a lookahead: its predicted speedup with the bounds of what it was predicted from."""

    row: Row
    k: int
    speedup: float
    low: float
    high: float

    @property
    def name(self) -> str:
        return name_of(self.row)


def name_of(row: Row) -> str:
    """The arm of a server, by name or in its words, or the method; with a schedule that is not constant."""
    words = " ".join(filter(None, (text_in(row, "spec_config"), text_in(row, "spec_args"))))
    return (words or text_in(row, "method")) + ("" if is_constant(row) else f" --schedule {text_in(row, 'schedule')}")


def lookaheads(row: Row) -> list[Choice]:
    """The choices that one drafting cell predicts; its own K alone for blocks, if acceptance by position is not known,
    if K is adaptive, or if it is in words that go to an engine as they are."""
    speedup, tokens, most = (number_in(row, name) for name in ("speedup", "tokens_per_round", "k"))
    if flaw(row) or not speedup or not most:
        return []
    low, high = (number_in(row, name) or speedup for name in ("speedup_low", "speedup_high"))
    joint = list(accumulate(conditional(row), mul))[: int(most)]
    words = text_in(row, "spec_config") or text_in(row, "spec_args")
    own = adaptive(row) or words in BLOCKS or words.startswith(("{", "-"))
    if own or (at_once(row) and text_in(row, "method") == "chain") or not tokens or not joint or not sum(joint):
        return [Choice(row, int(most), speedup, low, high)]
    drafted = (tokens - 1) / sum(joint)  # of rounds, those with a draft; and texts end within rounds
    round_time, found = tokens / speedup, list[Choice]()
    fixed = (number_in(row, "overhead") or 0.0) + ((drafting(row) or 0.0) if at_once(row) else 0.0)
    alone = 1 + min(max(fixed, 0.0), max(round_time - 1, 0.0))
    for k in range(min(SHORTEST.get((text_in(row, "backend"), words), 1), int(most)), int(most) + 1):
        faster = (1 + drafted * sum(joint[:k])) / (alone + (round_time - alone) * k / most)
        found.append(Choice(row, k, faster, low * faster / speedup, high * faster / speedup))
    return found


def best_choices(rows: Sequence[Row]) -> list[Choice]:
    """The best lookahead of every candidate under one load, the fastest first."""
    found = [max(some, key=lambda one: one.speedup) for row in rows if (some := lookaheads(row))]
    return sorted(found, key=lambda one: -one.speedup)


def contenders(found: Sequence[Choice]) -> list[Choice]:
    """Those of some sorted choices that could be the fastest, or faster than no draft, by their bounds; and adaptive
    ones, for their regret. Where that leaves room, the best of them with half as many tokens as well, and with half of
    that: the acceptance of few prompts decides how far a draft pays, K is the larger the more those repeat themselves,
    and a pass over a few tokens may take much longer than over one less."""
    able = [one for one in found[:MOST] if one is found[0] or (one.high >= found[0].low and one.high > 1)]
    shorter, layer = list[Choice](), able
    while layer and len(able) + len(shorter) < MOST:
        layer = [one for whole in layer if (one := halved(whole)) is not None]
        shorter += layer
    return [*(one for one in found if one in able or adaptive(one.row)), *shorter[: MOST - len(able)]]


def halved(choice: Choice) -> Choice | None:
    """The best choice of the same candidate with at most half of its lookahead, if there is one."""
    less = (one for one in lookaheads(choice.row) if one.k <= choice.k // 2)
    return max(less, key=lambda one: one.speedup, default=None)


def why_not(choice: Choice, found: Sequence[Choice]) -> str:
    """Why one of some sorted choices is not measured again."""
    if choice.high <= 1:
        return f"at most {choice.high:.2f}× as fast as without a draft"
    return f"slower than {found[0].name}" if choice.high < found[0].low else f"not among the best {MOST}"
