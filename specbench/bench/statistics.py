"""Intervals over prompts. Tokens of one prompt depend on each other, so prompts are drawn again, never tokens."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import bootstrap

RESAMPLES = 4000
ENOUGH = (
    20  # prompts below which a bootstrap interval covers visibly less than it says (reliability: coverage 0.90 at 20)
)


@dataclass(frozen=True)
class Interval:
    """A ratio with its 95 % interval; the bounds are NaN where one prompt leaves nothing to draw again."""

    value: float
    low: float
    high: float


def ratio_of_totals(parts: Sequence[float], wholes: Sequence[float]) -> Interval:
    """Σ parts ÷ Σ wholes over prompts, with a paired percentile bootstrap over the prompts (scipy)."""
    return _interval((parts, wholes), lambda p, w: p / w)


def speedup(
    baseline_seconds: Sequence[float], baseline_tokens: Sequence[int], seconds: Sequence[float], tokens: Sequence[int]
) -> Interval:
    """Baseline seconds per token ÷ method seconds per token, both from totals, paired by prompt."""
    return _interval((baseline_seconds, baseline_tokens, seconds, tokens), lambda bs, bt, s, t: (bs / bt) / (s / t))


def _interval(columns: Sequence[Sequence[float]], statistic: Callable[..., NDArray[np.float64]]) -> Interval:
    arrays = tuple(np.asarray(c, dtype=float) for c in columns)

    def of_totals(*samples: NDArray[np.float64], axis: int = -1) -> NDArray[np.float64]:
        return statistic(*(s.sum(axis=axis) for s in samples))

    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(of_totals(*arrays))
        if len(arrays[0]) < 2 or not math.isfinite(value):
            return Interval(value, math.nan, math.nan)
        found = bootstrap(
            arrays,
            of_totals,
            paired=True,
            vectorized=True,
            n_resamples=RESAMPLES,
            method="percentile",
            rng=np.random.default_rng(0),
        ).confidence_interval
    return Interval(value, float(found.low), float(found.high))
