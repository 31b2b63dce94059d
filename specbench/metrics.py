"""The record of a decode, and metrics from its rounds: acceptance, drafting, tokens per round."""

import hashlib
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from specbench.wording import clean

# Spans in the trace of a server request: from its arrival to the first and the last piece of its answer, its
# equal part of the seconds of its turn, its wait in the queue, if any, and the mean gap between two pieces.
FIRST_PIECE, LAST_PIECE, TURN_PART, HELD = "request/first", "request/last", "request/turn", "request/held"
PIECE_GAP = "request/gap"
UNREPORTED = "not reported"  # the source of a trace whose rounds are unknown: every token counts as one


@dataclass(frozen=True)
class LevelCounts:
    """Summed rounds of one inner level of a nest: those that drafted for one round of the sequence, or for all.

    Fields as in `RoundCounts`; overlap is the sum over the tested levels, longest the longest draft of a round.
    """

    rounds: int
    drafted: int
    tested: int
    accepted: int
    emitted: int
    overlap: float
    longest: int


@dataclass(frozen=True)
class RoundCounts:
    """One round of one sequence: drafted, tested and accepted levels, emitted tokens (correction or bonus included).

    drafted: all drafted levels, because each costs the same; surplus: drafted levels after the end of the sequence,
    which cannot be accepted. overlap[i]: the chance that the verifier accepts level i + 1 given that it is tested, Σ
    min(p, q) for `Rejection`, Σ p·q for `TokenMatch`. nodes: drafted tokens in the target's pass, in a tree more than
    levels; 0 if not counted. distance: total variation distance from the target's distribution, summed over the emitted
    tokens. inner[i]: the rounds of level i + 2 of a nest. belief[i]: the drafter's predicted acceptance of level i + 1,
    None if it made no prediction; empty if it predicted no tested level.
    """

    drafted: int
    tested: int
    accepted: int
    emitted: int
    overlap: tuple[float, ...]
    nodes: int = 0
    distance: float = 0.0
    inner: tuple[LevelCounts, ...] = ()
    surplus: int = 0
    belief: tuple[float | None, ...] = ()

    @property
    def usable(self) -> int:
        """Drafted levels within the end of the sequence."""
        return self.drafted - self.surplus

    @property
    def width(self) -> int:
        """Number of drafted tokens that the target's pass verified."""
        return max(self.nodes, self.drafted)

    @property
    def reached(self) -> int:
        """Tested levels, plus the next one if the accepted path of a tree ended before other paths."""
        ended = self.accepted == self.tested < self.usable and self.emitted > self.accepted
        return self.tested + ended


STEP = RoundCounts(0, 0, 0, 1, ())  # one without a draft


def outcome(drafted: int, accepted: int, emitted: int, usable: int) -> RoundCounts:
    """A round of which only these numbers are known: its outcome is used as its acceptance probability."""
    tested = accepted + (accepted < min(usable, emitted))  # none after the end of the sequence
    overlap = (1.0,) * accepted + (0.0,) * (tested - accepted)
    return RoundCounts(drafted, tested, accepted, emitted, overlap, surplus=drafted - usable)


def ratio(part: float, whole: float) -> float:
    """part ÷ whole; NaN if the whole is 0."""
    return part / whole if whole else math.nan


@dataclass(frozen=True)
class Acceptance:
    """Acceptance over many rounds; the fields are named like the columns of results.csv."""

    rounds: int
    drafted: int
    tested: int
    accepted: int
    emitted: int
    alpha: float
    alpha_tested: float
    accepted_per_drafted: float
    tokens_per_round: float
    by_position: tuple[float, ...]


def acceptance(rounds: Sequence[RoundCounts]) -> Acceptance:
    """α as the mean overlap over tested positions, and the other acceptance numbers from their counts."""
    drafted, tested = sum(r.drafted for r in rounds), sum(r.tested for r in rounds)
    accepted, emitted = sum(r.accepted for r in rounds), sum(r.emitted for r in rounds)
    return Acceptance(
        rounds=len(rounds),
        drafted=drafted,
        tested=tested,
        accepted=accepted,
        emitted=emitted,
        alpha=min(ratio(math.fsum(x for r in rounds for x in r.overlap), tested), 1.0),  # float32 rows sum to 1 ± 1e-7
        alpha_tested=ratio(accepted, tested),
        accepted_per_drafted=ratio(accepted, drafted),
        tokens_per_round=ratio(emitted, len(rounds)),
        by_position=acceptance_by_position(rounds),
    )


def acceptance_by_position(rounds: Sequence[RoundCounts]) -> tuple[float, ...]:
    """Conditional acceptance at positions 1..K: accepted at i ÷ tested at i, truncated rounds included.

    If the accepted path of a tree ends before other paths, the next position counts as tested and not accepted.
    """
    longest = max((r.usable for r in rounds), default=0)
    return tuple(
        ratio(sum(r.accepted >= i for r in rounds), sum(r.reached >= i for r in rounds)) for i in range(1, longest + 1)
    )


def lengths(requests: Sequence[Sequence[RoundCounts]]) -> dict[str, Any]:
    """Columns of how much rounds with a draft accepted: 1 + accepted ÷ rounds, and the mean of that over requests; how
    many accepted exactly 0, 1 … levels, and the share that accepted at least 1, 2 …. NaN and empty without a draft."""
    drafted = [[r.accepted for r in rounds if r.drafted] for rounds in requests]
    every = [accepted for some in drafted for accepted in some]
    means = [1 + sum(some) / len(some) for some in drafted if some]
    histogram = [every.count(j) for j in range(max(every, default=-1) + 1)]
    return {
        "acceptance_length": 1 + ratio(sum(every), len(every)),
        "acceptance_length_mean": ratio(math.fsum(means), len(means)),
        "rounds_by_accepted": " ".join(map(str, histogram)),
        "acceptance_joint": " ".join(f"{sum(histogram[i:]) / len(every):.4g}" for i in range(1, len(histogram))),
    }


def overlap_by_level(rounds: Sequence[RoundCounts]) -> tuple[float, ...]:
    """Mean acceptance probability at levels 1, 2, …, each over the rounds that reached it; NaN if none did."""
    longest = max((r.usable for r in rounds), default=0)
    reached = [[r.overlap[i] if i < r.tested else 0.0 for r in rounds if r.reached > i] for i in range(longest)]
    return tuple(min(ratio(math.fsum(chances), len(chances)), 1.0) for chances in reached)


def level_counts(rounds: Sequence[RoundCounts]) -> tuple[LevelCounts, ...]:
    """Counts of levels 2, 3, … of a nest over all rounds; empty if no round has inner rounds."""
    deepest = max((len(r.inner) for r in rounds), default=0)
    return tuple(level_total([r.inner[i] for r in rounds if len(r.inner) > i]) for i in range(deepest))


def level_total(counts: Sequence[LevelCounts]) -> LevelCounts:
    """Counts of one level, summed over rounds."""
    return LevelCounts(
        rounds=sum(one.rounds for one in counts),
        drafted=sum(one.drafted for one in counts),
        tested=sum(one.tested for one in counts),
        accepted=sum(one.accepted for one in counts),
        emitted=sum(one.emitted for one in counts),
        overlap=math.fsum(one.overlap for one in counts),
        longest=max(one.longest for one in counts),
    )


def drafting(rounds: Sequence[RoundCounts]) -> dict[str, float]:
    """Columns of what rounds drafted, used or not: levels and nodes of a mean round, and the share that drafted at all.

    law_distance: mean total variation distance between the distribution of an emitted token and the target's.
    """
    return {
        "drafted_per_round": ratio(sum(r.drafted for r in rounds), len(rounds)),
        "nodes_per_round": ratio(sum(r.width for r in rounds), len(rounds)),
        "draft_hit_rate": ratio(sum(r.drafted > 0 for r in rounds), len(rounds)),
        "law_distance": ratio(math.fsum(r.distance for r in rounds), sum(r.emitted for r in rounds)),
    }


def branched(rounds: Sequence[RoundCounts]) -> bool:
    """Whether drafts were trees with more nodes than levels (a round without a draft may still feed an empty chain)."""
    return max((r.width for r in rounds), default=0) > max((r.drafted for r in rounds), default=0)


def speedup_of_totals(
    baseline_seconds: Iterable[float], baseline_tokens: Iterable[int], seconds: Iterable[float], tokens: Iterable[int]
) -> float:
    """Ratio of totals, per token: (Σ baseline seconds ÷ Σ tokens) ÷ (Σ method seconds ÷ Σ tokens)."""
    return ratio(ratio(math.fsum(baseline_seconds), sum(baseline_tokens)), ratio(math.fsum(seconds), sum(tokens)))


@dataclass(frozen=True)
class Trace:
    """The decode of one sequence: new tokens, counts by round, decode and prefill seconds, decode seconds by phase.

    Sequences decoded together share their seconds. draftable: number of tokens within the draft's vocabulary,
    if that is reduced; None if it is complete. choice: the method that decoded it, if one was chosen. source: where a
    server's counts come from.
    """

    tokens: tuple[int, ...]
    rounds: tuple[RoundCounts, ...]
    seconds: float = 0.0
    prefill_seconds: float = 0.0
    spans: dict[str, float] = field(default_factory=dict)
    draftable: int | None = None
    choice: str = ""
    source: str = ""

    @property
    def updating(self) -> float:
        """Decode seconds spent updating a draft that learns online."""
        return self.spans.get("update", 0.0)


LIMIT = re.compile(r"(ttft|tpot|e2e) ?[=:] ?(\d{1,9}(?:\.\d{1,9})?) ?(ms|s)", re.ASCII)


def limits_of(text: str) -> dict[str, float]:
    """Parse limits of latency such as `ttft=500ms,tpot=30ms,e2e=2s` into seconds. ValueError for another text."""
    found: dict[str, float] = {}
    for part in text.split(","):
        match = LIMIT.fullmatch(part.strip())
        if match is None or match[1] in found or not float(match[2]):
            raise ValueError(
                f"cannot read {clean(part.strip(), 60)!r}: write ttft, tpot and e2e, each at most once, with ms or s, "
                "such as ttft=500ms,tpot=30ms,e2e=2s"
            )
        found[match[1]] = float(match[2]) / (1000 if match[3] == "ms" else 1)
    return found


def written_limits(given: object) -> str:
    """Limits of latency in one form, in milliseconds. ValueError for anything else."""
    found = limits_of(str(given))
    return ",".join(f"{name}={1000 * found[name]:.12g}ms" for name in ("ttft", "tpot", "e2e") if name in found)


def seed_from(*names: object) -> int:
    """A 63-bit seed from names alone: the same on every machine, different if any name differs."""
    digest = hashlib.sha256("\0".join(map(str, names)).encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8]) >> 1


def divergence(a: Sequence[int], b: Sequence[int]) -> int | None:
    """The first index at which two token sequences differ, including their ends; None if they are equal."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return None if len(a) == len(b) else min(len(a), len(b))
