"""A prompt decoded once by baseline and method; intervals over such samples; repetition in text.

Repetitive text is easy to draft for, but useless in practice. Repetition is found in time linear in the
length of an output.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import Any

from specbench import metrics
from specbench.metrics import RoundCounts, Trace, ratio
from specbench.results import statistics
from specbench.results.machine import UNREAD, Reading
from specbench.results.nests import round_row
from specbench.wording import grouped

NGRAM = 4
REPEATS = 2  # full cycles that make a repetition a loop
SHORTEST = 24  # tokens of the shortest loop: a few dashes, or a short line repeated once, do not count
KEPT = 4096  # cached outputs: the arms of a greedy run share theirs
ALONE = (1, 1)  # the conversation of a prompt without later turns


@dataclass(frozen=True)
class Sample:
    """One prompt decoded once by baseline and method in one turn.

    turn: position in time within the group of cells that share the baseline. order: positions of (baseline,
    method) among the arms of the turn. load: processes running or waiting just before it. cluster: the batch
    in which the prompt was decoded, whose prompts share its seconds equally, or the block of prompts that
    forms one draw if a method carries state between prompts; empty for a prompt that is a draw by itself.
    conversation: the turn of the conversation with the prompt's name, from 1, and the number of turns: each
    is a separate sample. readings: of the machine after the decode of (baseline, method).
    """

    prompt: str
    category: str
    repeat: int
    prompt_tokens: int
    turn: int
    order: tuple[int, int]
    load: float | None
    baseline: Trace
    method: Trace
    cluster: str = ""
    conversation: tuple[int, int] = ALONE
    readings: tuple[Reading, Reading] = (UNREAD, UNREAD)

    @property
    def draw(self) -> str:
        """The name of the sample's independent draw: its batch, its block, or its prompt with all turns."""
        return self.cluster or self.prompt

    def row(self) -> dict[str, Any]:
        """One line of samples.csv: seconds, tokens and counts of both arms."""
        counts = metrics.acceptance(self.method.rounds)
        return {
            "prompt": self.prompt,
            "category": self.category,
            "cluster": self.draw,
            "repeat": self.repeat,
            "conversation_turn": self.conversation[0] if self.conversation != ALONE else None,
            "turn": self.turn,
            "baseline_place": self.order[0],
            "place": self.order[1],
            "load_average": self.load,
            "prompt_tokens": self.prompt_tokens,
            "baseline_tokens": len(self.baseline.tokens),
            "tokens": len(self.method.tokens),
            "baseline_seconds": self.baseline.seconds,
            "seconds": self.method.seconds,
            "baseline_prefill_seconds": self.baseline.prefill_seconds,
            "prefill_seconds": self.method.prefill_seconds,
            "speedup": speedup_per_token(self),
            "identical": self.baseline.tokens == self.method.tokens,
            "baseline_output_sha256": digest(self.baseline.tokens),
            "output_sha256": digest(self.method.tokens),
            "baseline_rounds": len(self.baseline.rounds),
            "baseline_verify_seconds": self.baseline.spans.get("verify", 0.0),
            "rounds": counts.rounds,
            "drafted": counts.drafted,
            "tested": counts.tested,
            "accepted": counts.accepted,
            "overlap": math.fsum(x for r in self.method.rounds for x in r.overlap),
            "nodes": sum(r.width for r in self.method.rounds),
            "distance": math.fsum(r.distance for r in self.method.rounds),
            "draft_seconds": self.method.spans.get("draft", 0.0),
            "verify_seconds": self.method.spans.get("verify", 0.0),
            "update_seconds": self.method.spans.get("update"),
            "alpha": counts.alpha,
            "choice": self.method.choice or None,
            **text_columns(self.method.tokens),
            **{f"baseline_{name}": value for name, value in text_columns(self.baseline.tokens).items()},
            **{f"baseline_{name}": value for name, value in asdict(self.readings[0]).items()},
            **asdict(self.readings[1]),
        }

    def round_rows(self) -> list[dict[str, Any]]:
        """The lines of rounds.parquet: one per round of the method."""
        where: dict[str, Any] = {"prompt": self.prompt, "repeat": self.repeat}
        where |= {} if self.conversation == ALONE else {"conversation_turn": self.conversation[0]}
        return [{**where, "round": i, **round_row(r)} for i, r in enumerate(self.method.rounds)]


def digest(tokens: Sequence[int]) -> str:
    """Sixteen hex digits of an output, equal for equal outputs, so that tables contain no generated text."""
    return hashlib.sha256(" ".join(map(str, tokens)).encode()).hexdigest()[:16]


def text_columns(tokens: tuple[int, ...]) -> dict[str, Any]:
    """The repetition of an output, and the start and cycle length of its loop."""
    loop = loop_of(tokens)
    start, cycle = (loop.start, loop.cycle) if loop else (None, None)
    return {"repeated_4grams": repeated_ngrams(tokens), "loop_start": start, "cycle": cycle}


def speedup_per_token(sample: Sample) -> float:
    baseline, method = (ratio(trace.seconds, len(trace.tokens)) for trace in (sample.baseline, sample.method))
    return ratio(baseline, method)


def by_prompt(samples: Sequence[Sample]) -> list[list[Sample]]:
    """Samples by independent draw: the turns and repetitions of a prompt, since intervals are over prompts.

    Prompts of a batch share their time and are one draw: intervals are then over batches, and undefined for one batch.
    """
    return grouped(samples, lambda sample: sample.draw)


def speedup_of(samples: Sequence[Sample]) -> statistics.Interval:
    """The headline number: ratio of totals, paired by prompt."""
    groups = by_prompt(samples)
    return statistics.speedup_interval(
        [math.fsum(s.baseline.seconds for s in g) for g in groups],
        [sum(len(s.baseline.tokens) for s in g) for g in groups],
        [math.fsum(s.method.seconds for s in g) for g in groups],
        [sum(len(s.method.tokens) for s in g) for g in groups],
    )


def time_over(samples: Sequence[Sample], others: Sequence[Sample]) -> statistics.Interval:
    """Seconds per token ÷ those of other samples of the same prompts, paired by prompt."""
    known = {(one.prompt, one.repeat, one.turn): one.method for one in others}
    both = [(one, known.get((one.prompt, one.repeat, one.turn))) for one in samples]
    return speedup_of([replace(one, baseline=one.method, method=other) for one, other in both if other])


def without_updates(sample: Sample) -> Sample:
    method = sample.method
    return replace(sample, method=replace(method, seconds=method.seconds - method.updating))


def length_of(samples: Sequence[Sample]) -> statistics.Interval:
    """The acceptance length of rounds that no end of a text cuts, with its interval over prompts."""
    groups = [[r for sample in group for r in sample.method.rounds] for group in by_prompt(samples)]
    places = range(1, max((r.usable for some in groups for r in some), default=0) + 1)
    return statistics.length_interval(
        [[(sum(r.accepted >= i for r in some), sum(r.reached >= i for r in some)) for i in places] for some in groups]
    )


def alpha_of(samples: Sequence[Sample]) -> statistics.Interval:
    """α with its interval over prompts: tested tokens of one prompt are not independent."""
    counts = [metrics.acceptance([r for s in g for r in s.method.rounds]) for g in by_prompt(samples)]
    tested = [c.tested for c in counts]
    return statistics.ratio_of_totals([c.alpha * c.tested if c.tested else 0.0 for c in counts], tested, at_most=1.0)


# --- repetition -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Loop:
    """The tail of an output that repeats one cycle: its first token, counted from 0, and the tokens of the cycle."""

    start: int
    cycle: int


@lru_cache(maxsize=KEPT)
def repeated_ngrams(tokens: tuple[int, ...]) -> float:
    """1 − distinct 4-grams ÷ 4-grams: 0 without repetition, near 1 in a loop; NaN for fewer than four tokens.

    seq-rep-4 of Welleck et al. 2020, "Neural text generation with unlikelihood training" (arXiv 1908.04319), §6.
    """
    grams = [tokens[i : i + NGRAM] for i in range(len(tokens) - NGRAM + 1)]
    return ratio(len(grams) - len(set(grams)), len(grams))


@lru_cache(maxsize=KEPT)
def loop_of(tokens: tuple[int, ...]) -> Loop | None:
    """The longest tail of at least `SHORTEST` tokens that repeats one cycle at least `REPEATS` times; None without one.

    The last repetition may be cut. An output that ended by itself after a loop has left it, and does not count.
    """
    periods = tail_periods(tokens)
    lengths = range(len(tokens), SHORTEST - 1, -1)
    longest = next((n for n in lengths if n >= REPEATS * periods[n - 1]), None)
    return None if longest is None else Loop(len(tokens) - longest, periods[longest - 1])


def tail_periods(tokens: Sequence[int]) -> list[int]:
    """The smallest period of every tail, by its length from 1 on: p where each token equals the one p before it.

    Length less the longest border, from the failure function of the reversed tokens (Knuth, Morris, Pratt 1977).
    """
    backwards, borders = tokens[::-1], [0] * len(tokens)
    for i in range(1, len(tokens)):
        border = borders[i - 1]
        while border and backwards[i] != backwards[border]:
            border = borders[border - 1]
        borders[i] = border + (backwards[i] == backwards[border])
    return [length - border for length, border in enumerate(borders, start=1)]


def rounds_before(rounds: Sequence[RoundCounts], start: int) -> list[RoundCounts]:
    """The rounds that emitted a token before `start`; the others emitted only later ones."""
    firsts = accumulate((one.emitted for one in rounds), initial=0)
    return [one for one, first in zip(rounds, firsts, strict=False) if first < start]
