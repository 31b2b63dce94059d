"""Details of rounds beyond their sums: the levels of a nest, and the calibration of predicted acceptance.

Level 1 of a nest is the cell itself, and level 2 drafts for it. A belief is the acceptance that a schedule
predicted (`Draft.belief`); a test is a verified drafted token with a belief.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from specbench.metrics import LevelCounts, RoundCounts, Trace, level_counts, ratio
from specbench.theory.formulas import nested_costs

LEG = "draft/leg"  # the span of a relay's drafters


@dataclass(frozen=True)
class InnerLevel:
    """One inner level of a nest over all samples; costs are in baseline steps.

    c = seconds per token drafted for it, v = a pass of its model, both NaN if the engine reports no phases.
    """

    counts: LevelCounts
    c: float
    v: float

    @property
    def alpha(self) -> float:
        return min(ratio(self.counts.overlap, self.counts.tested), 1.0)

    def row(self, number: int) -> dict[str, float]:
        """Its columns of results.csv."""
        found = {"alpha": self.alpha, "tokens_per_round": ratio(self.counts.emitted, self.counts.rounds)}
        found |= {"c": self.c, "v": self.v, "rounds": self.counts.rounds}
        return {f"{name}_{number}": value for name, value in found.items()}


def inner_levels(traces: Sequence[Trace], step: float) -> list[InnerLevel]:
    """Levels 2, 3, … of a nest; empty for other methods. step: seconds of a baseline step."""
    found = []
    for depth, counts in enumerate(level_counts([r for trace in traces for r in trace.rounds]), start=1):
        # a drafting part reports its phases as parts of the draft of the level above (see `timing`)
        draft, verify = (span_seconds(traces, "draft/" * depth + phase) for phase in ("draft", "verify"))
        c, v = ratio(ratio(draft, counts.drafted), step), ratio(ratio(verify, counts.rounds), step)
        found.append(InnerLevel(counts, c, v))
    return found


def span_seconds(traces: Sequence[Trace], span: str) -> float:
    """All seconds of a span; NaN if no trace has it."""
    found = [trace.spans[span] for trace in traces if span in trace.spans]
    return math.fsum(found) if found else math.nan


def round_row(counts: RoundCounts) -> dict[str, Any]:
    """The counts of a round as columns, with those of its inner levels as rounds_2, drafted_2 …"""
    row = asdict(counts)
    if not row["belief"]:
        del row["belief"]
    inner = {f"{name}_{level}": n for level, one in enumerate(row.pop("inner"), start=2) for name, n in one.items()}
    return {**row, **inner}


def draft_costs(
    found: Sequence[InnerLevel], traces: Sequence[Trace], step: float, lookahead: int | None = None
) -> tuple[float, ...] | None:
    """The cost of drafts of 0, 1, … tokens by the formulas of nests and relays (see `theory.formulas`), in steps.

    Up to the longest draft, or `lookahead`. The nest drafts first; tokens that it did not emit came from other legs of
    a relay, each at their mean cost. None without levels, or if some of their numbers are unknown.
    """
    rounds = [r for trace in traces for r in trace.rounds]
    longest = max((r.drafted for r in rounds), default=0)
    nested = max((r.inner[0].emitted for r in rounds if r.inner), default=0)
    most = max(longest, lookahead or 0)
    if not found or nested >= longest:
        return nest_costs(found, most)
    own = nest_costs(found, nested)
    others = sum(r.drafted for r in rounds) - found[0].counts.emitted
    leg = ratio(ratio(span_seconds(traces, LEG), others), step)
    if own is None or not math.isfinite(leg):
        return None
    return tuple(own[min(n, nested)] + max(n - nested, 0) * leg for n in range(most + 1))


def nest_costs(found: Sequence[InnerLevel], longest: int) -> tuple[float, ...] | None:
    """The cost of 0..`longest` tokens by the formula of a nest; None as above."""
    if not found:
        return None
    bottom = found[-1].c if found[-1].counts.drafted else 0.0
    known = [bottom, *(level.v for level in found), *(level.alpha for level in found if level.counts.tested)]
    if not all(map(math.isfinite, known)):
        return None
    costs = tuple(n * bottom for n in range(longest + 1))
    for level in reversed(found):
        alpha = level.alpha if level.counts.tested else 0.0
        costs = nested_costs(alpha, level.counts.longest, level.v, costs)
    return costs


def steady(traces: Sequence[Trace], lookahead: int | None) -> int | None:
    """The number of levels that every round drafts, given room in the sequence; None if it varies.

    lookahead: the K of a constant schedule, None for others. The drafted number differs if a drafter finds
    nothing or less (lookups), or has its own length (nests, relays).
    """
    if lookahead is None:
        return None
    longest = max((r.drafted for trace in traces for r in trace.rounds), default=0)
    pairs = [pair for trace in traces for pair in pairwise(r.drafted for r in trace.rounds)]
    if any(before < longest == after for before, after in pairs):
        return None  # a round was short for another reason than the end of a sequence
    if longest > lookahead or any(before == after == longest for before, after in pairs):
        return longest  # rounds limited by the end of a sequence keep shrinking
    return lookahead


# --- beliefs ----------------------------------------------------------------------------------------------------------


BINS = 10  # of equal width (Guo et al. 2017, arXiv 1706.04599, §2)
BELIEF = (
    "belief_tests", "belief_mean", "belief_accepted", "belief_ece", "belief_ece_if_exact", "belief_brier",
)  # fmt: skip


@dataclass(frozen=True)
class Bin:
    """The tests with a belief in one bin: their number, and sums over them.

    believed: of beliefs b, accepted: of acceptances a (1 or 0), variance: of b(1 − b), squared: of (b − a)².
    """

    tests: float
    believed: float
    accepted: float
    variance: float
    squared: float


def curve(rounds: Iterable[RoundCounts]) -> tuple[Bin, ...]:
    """All bins, lowest first; bin m of M has the beliefs in ((m − 1)/M, m/M], and the first one also 0 (Guo et al.)."""
    found: list[list[tuple[float, bool]]] = [[] for _ in range(BINS)]
    for one in rounds:
        for level, belief in enumerate(one.belief):
            if belief is not None:
                exact = min(belief, 1.0)  # a float32 probability may be 1 + 1e-7
                found[max(math.ceil(exact * BINS) - 1, 0)].append((exact, level < one.accepted))
    return tuple(
        Bin(
            tests=len(pairs),
            believed=math.fsum(b for b, _ in pairs),
            accepted=sum(a for _, a in pairs),
            variance=math.fsum(b * (1 - b) for b, _ in pairs),
            squared=math.fsum((b - a) ** 2 for b, a in pairs),
        )
        for pairs in found
    )


def calibration_error(bins: Sequence[Bin]) -> float:
    """The expected calibration error, Σ tests ÷ all · abs(accepted − believed) of every bin (Naeini et al. 2015)."""
    return ratio(math.fsum(abs(one.accepted - one.believed) for one in bins), count_of(bins))


def error_if_exact(bins: Sequence[Bin]) -> float:
    """The mean of `calibration_error` if every belief were exact: the part due to chance in so many tests.

    By the normal approximation of every bin's sum, E|N(0, s²)| = s √(2/π) with s² = Σ b(1 − b). That also
    holds for consecutive tokens: a test less its true chance has the mean 0 whatever came before, so they do
    not correlate. In a bin with few tests the mean may differ, by at most a factor √(π/2).
    """
    return ratio(math.sqrt(2 / math.pi) * math.fsum(math.sqrt(one.variance) for one in bins), count_of(bins))


def count_of(bins: Sequence[Bin]) -> float:
    return math.fsum(one.tests for one in bins)


def belief_columns(rounds: Sequence[RoundCounts]) -> dict[str, Any]:
    """The columns of results.csv; None for methods without beliefs."""
    bins = curve(rounds)
    count = count_of(bins)
    if not count:
        return dict.fromkeys(BELIEF)
    means = (math.fsum(one.believed for one in bins), math.fsum(one.accepted for one in bins))
    errors = (calibration_error(bins), error_if_exact(bins))
    brier = ratio(math.fsum(one.squared for one in bins), count)
    return dict(zip(BELIEF, (int(count), *(ratio(mean, count) for mean in means), *errors, brier), strict=True))


def belief_rows(rounds: Sequence[RoundCounts]) -> list[dict[str, float]]:
    """The curve as rows: the ends of every bin with tests, their number, and the means of belief and acceptance."""
    return [
        {
            "low": place / BINS,
            "high": (place + 1) / BINS,
            "tests": int(one.tests),
            "believed": one.believed / one.tests,
            "accepted": one.accepted / one.tests,
        }
        for place, one in enumerate(curve(rounds))
        if one.tests
    ]
