"""From rounds to the numbers of a run: acceptance, tokens per round, costs. Pure: counts in, numbers out."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class LevelCounts:
    """The rounds of one level inside a nest, added up: those that drafted for one round of the sequence, or for all.

    Fields as in `RoundCounts`; overlap is the sum over the tested levels, longest the most that one round drafted.
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

    `drafted` counts every level that was drafted, because each costs the same; `surplus` those of them behind the end
    of the sequence, which no verdict could use.
    `overlap[i]` is the chance that the verifier accepts level i + 1 given that it is tested: Σ min(p, q) for
    `Rejection`, Σ p·q for `TokenMatch`. `nodes`: drafted tokens in the pass of the target, more than levels in a tree;
    0 where nobody noted it. `distance`: total variation distance from the target's law, summed over the emitted tokens.
    `inner[i]`: the rounds of level i + 2 of a nest.
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

    @property
    def usable(self) -> int:
        """Drafted levels that the sequence had room for."""
        return self.drafted - self.surplus

    @property
    def width(self) -> int:
        """How many drafted tokens the target's pass was over."""
        return max(self.nodes, self.drafted)

    @property
    def reached(self) -> int:
        """Levels that were tested, and the next one where the accepted path of a tree ended before the others."""
        ended = self.accepted == self.tested < self.usable and self.emitted > self.accepted
        return self.tested + ended


def ratio(part: float, whole: float) -> float:
    """part ÷ whole; NaN where there is nothing to divide by, never a made-up number."""
    return part / whole if whole else math.nan


@dataclass(frozen=True)
class Acceptance:
    """What many rounds say about acceptance; the names are those of the CSV (glossary in the README)."""

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
    """α as the mean overlap over tested positions, beside the counts from which the other acceptance numbers follow."""
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
    """Conditional acceptance at positions 1..K: accepted at i ÷ tested at i, clipped rounds included.

    Where the accepted path of a tree ends before the others nothing is accepted at the next position.
    """
    longest = max((r.usable for r in rounds), default=0)
    return tuple(
        ratio(sum(r.accepted >= i for r in rounds), sum(r.reached >= i for r in rounds)) for i in range(1, longest + 1)
    )


def overlap_by_level(rounds: Sequence[RoundCounts]) -> tuple[float, ...]:
    """Mean chance of acceptance at levels 1, 2, …, each over the rounds that reached it; NaN where none did."""
    longest = max((r.usable for r in rounds), default=0)
    reached = [[r.overlap[i] if i < r.tested else 0.0 for r in rounds if r.reached > i] for i in range(longest)]
    return tuple(min(ratio(math.fsum(chances), len(chances)), 1.0) for chances in reached)


def level_counts(rounds: Sequence[RoundCounts]) -> tuple[LevelCounts, ...]:
    """The counts of levels 2, 3, … of a nest over all rounds; none where no round had rounds inside."""
    deepest = max((len(r.inner) for r in rounds), default=0)
    return tuple(level_total([r.inner[i] for r in rounds if len(r.inner) > i]) for i in range(deepest))


def level_total(counts: Sequence[LevelCounts]) -> LevelCounts:
    return LevelCounts(
        rounds=sum(one.rounds for one in counts),
        drafted=sum(one.drafted for one in counts),
        tested=sum(one.tested for one in counts),
        accepted=sum(one.accepted for one in counts),
        emitted=sum(one.emitted for one in counts),
        overlap=math.fsum(one.overlap for one in counts),
        longest=max((one.longest for one in counts), default=0),
    )


@dataclass(frozen=True)
class Drafting:
    """What rounds drafted: the share that drafted anything, levels and nodes of a mean round, used or not.

    distance: mean total variation distance of the law of an emitted token from the target's; 0 of lossless methods.
    """

    hit_rate: float
    levels: float
    nodes: float
    distance: float


def drafting(rounds: Sequence[RoundCounts]) -> Drafting:
    """NaN where there are no rounds."""
    return Drafting(
        hit_rate=ratio(sum(r.drafted > 0 for r in rounds), len(rounds)),
        levels=ratio(sum(r.drafted for r in rounds), len(rounds)),
        nodes=ratio(sum(r.width for r in rounds), len(rounds)),
        distance=ratio(math.fsum(r.distance for r in rounds), sum(r.emitted for r in rounds)),
    )


def branched(rounds: Sequence[RoundCounts]) -> bool:
    """Whether drafts were trees with more nodes than levels. (A round without a draft may feed a whole empty chain.)"""
    return max((r.width for r in rounds), default=0) > max((r.drafted for r in rounds), default=0)


@dataclass(frozen=True)
class Timing:
    """Decode seconds of one arm over some prompts, by phase, with the rounds and tokens they bought.

    `drafted` counts every drafted level, also those that a round cut short could not use: they are part of `draft`.
    `draft_first` is the part of `draft` that the first drafted token of each round took; 0 where nobody timed it.
    """

    seconds: float
    draft: float
    verify: float
    rounds: int
    drafted: int
    tokens: int
    accept: float = 0.0
    draft_first: float = 0.0


@dataclass(frozen=True)
class Phases:
    """Mean seconds of a round by phase; they add up to the round. `host` is what no other phase covers."""

    draft: float
    verify: float
    accept: float
    host: float


def phases(timing: Timing) -> Phases:
    """The mean round of an arm. Where nothing was drafted, what an empty draft took counts as host; NaN if no round."""
    draft = timing.draft if timing.drafted else 0.0
    rest = timing.seconds - draft - timing.verify - timing.accept
    return Phases(*(ratio(part, timing.rounds) for part in (draft, timing.verify, timing.accept, rest)))


@dataclass(frozen=True)
class Costs:
    """Costs of a round in units of one baseline decode step (design: c, v, overhead).

    Kc + v + overhead is the measured cost of a round, with K the mean number of drafted tokens. In the ideal of
    Leviathan's formula v is 1 and overhead is 0: a round costs its draft and one baseline step, sampling included.
    """

    baseline_step_seconds: float
    round_seconds: float
    c: float
    v: float
    overhead: float


def costs(baseline: Timing, method: Timing) -> Costs:
    """c = draft seconds per drafted token ÷ baseline step; v = verify pass ÷ the baseline's pass over one token;
    overhead = what the round costs beyond its draft and v baseline steps ÷ baseline step. Both arms from one run.
    """
    step = ratio(baseline.seconds, baseline.rounds)
    per_round = ratio(method.seconds, method.rounds)
    c = ratio(ratio(method.draft, method.drafted), step) if method.drafted else 0.0
    v = ratio(ratio(method.verify, method.rounds), ratio(baseline.verify, baseline.rounds))
    drafting = c * ratio(method.drafted, method.rounds)
    return Costs(step, per_round, c, v, ratio(per_round, step) - drafting - v)


def speedup_of_totals(
    baseline_seconds: Iterable[float], baseline_tokens: Iterable[int], seconds: Iterable[float], tokens: Iterable[int]
) -> float:
    """Ratio of totals, per token: (Σ baseline seconds ÷ Σ tokens) ÷ (Σ method seconds ÷ Σ tokens).

    With equal token counts (greedy decoding) this is Σ baseline seconds ÷ Σ method seconds.
    """
    return ratio(ratio(math.fsum(baseline_seconds), sum(baseline_tokens)), ratio(math.fsum(seconds), sum(tokens)))


@dataclass(frozen=True)
class Trace:
    """What one row left behind: new tokens, counts by round, decode and prefill seconds, decode seconds by phase.

    Rows decoded together share their seconds.
    """

    tokens: tuple[int, ...]
    rounds: tuple[RoundCounts, ...]
    seconds: float = 0.0
    prefill_seconds: float = 0.0
    spans: dict[str, float] = field(default_factory=dict)
