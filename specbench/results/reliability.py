"""What a schedule believed of drafted tokens against what was accepted: the reliability curve, and its error.

Knows the counts of rounds; must not know how a belief came about, or how a curve is drawn. A belief is the chance of
acceptance that a schedule went by (`Draft.belief`); a test is a drafted token that was judged and had one.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from specbench.metrics import RoundCounts, ratio

BINS = 10  # of equal width (Guo et al. 2017, arXiv 1706.04599, §2)
COLUMNS = (
    "belief_tests", "belief_mean", "belief_accepted", "belief_ece", "belief_ece_if_exact", "belief_brier",
)  # fmt: skip


@dataclass(frozen=True)
class Bin:
    """The tests whose belief lies in one bin: how many, and sums over them.

    believed: of beliefs b, accepted: of acceptances a (1 or 0), variance: of b(1 − b), squared: of (b − a)².
    """

    tests: float
    believed: float
    accepted: float
    variance: float
    squared: float


def curve(rounds: Iterable[RoundCounts]) -> tuple[Bin, ...]:
    """All bins, the lowest first; bin m of M has the beliefs in ((m − 1)/M, m/M], the first one 0 too (Guo et al.)."""
    found: list[list[tuple[float, bool]]] = [[] for _ in range(BINS)]
    for belief, accepted in tests(rounds):
        found[min(max(math.ceil(belief * BINS) - 1, 0), BINS - 1)].append((belief, accepted))
    return tuple(map(bin_of, found))


def tests(rounds: Iterable[RoundCounts]) -> Iterator[tuple[float, bool]]:
    """Every test: what was believed, and whether the token was accepted."""
    for one in rounds:
        for level, belief in enumerate(one.belief):
            if belief is not None:
                yield min(belief, 1.0), level < one.accepted  # a chance in float32 may be 1 + 1e-7


def bin_of(found: Sequence[tuple[float, bool]]) -> Bin:
    """The sums of some tests."""
    return Bin(
        tests=len(found),
        believed=math.fsum(b for b, _ in found),
        accepted=sum(a for _, a in found),
        variance=math.fsum(b * (1 - b) for b, _ in found),
        squared=math.fsum((b - a) ** 2 for b, a in found),
    )


def calibration_error(bins: Sequence[Bin]) -> float:
    """The expected calibration error, Σ tests ÷ all · abs(accepted − believed) of every bin (Naeini et al. 2015)."""
    return ratio(math.fsum(abs(one.accepted - one.believed) for one in bins), total(bins))


def error_if_exact(bins: Sequence[Bin]) -> float:
    """The mean of `calibration_error` if every belief were the true chance: what so many tests leave to luck.

    By the normal approximation of every bin's sum, E|N(0, s²)| = s √(2/π) with s² = Σ b(1 − b). That holds of tokens
    that follow each other too: a test less its true chance has the mean 0 whatever came before, so they do not
    correlate. Where a bin has few tests its own mean may be another, at most √(π/2) times this.
    """
    return ratio(math.sqrt(2 / math.pi) * math.fsum(math.sqrt(one.variance) for one in bins), total(bins))


def total(bins: Sequence[Bin]) -> float:
    return math.fsum(one.tests for one in bins)


def belief_columns(rounds: Sequence[RoundCounts]) -> dict[str, Any]:
    """The columns of results.csv; None of methods that believe nothing."""
    bins = curve(rounds)
    count = total(bins)
    if not count:
        return dict.fromkeys(COLUMNS)
    means = (math.fsum(one.believed for one in bins), math.fsum(one.accepted for one in bins))
    errors = (calibration_error(bins), error_if_exact(bins))
    brier = ratio(math.fsum(one.squared for one in bins), count)
    return dict(zip(COLUMNS, (int(count), *(ratio(mean, count) for mean in means), *errors, brier), strict=True))


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
