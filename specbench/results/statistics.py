"""Intervals over prompts. Tokens of one prompt depend on each other, so the draws are prompts, not tokens.

Every interval here is that of a ratio of totals, from the delete-one jackknife over the prompts: the error
of the logarithm of the ratio, times the quantile of Student's t with one degree of freedom less than there
are prompts (Miller, "The jackknife - a review", Biometrika 61, 1974). It needs no random numbers.

Why not a bootstrap: it undercovers where prompts are few, and twenty prompts are few. How often the 95 %
intervals covered the truth (`python -m tests.benchmarks.coverage`; standard errors 0.005, of a bootstrap 0.01)::

                                  jackknife with t        percentile bootstrap    BCa bootstrap
    prompts                       10    20    40    164   10    20    40    164   10    20    40    164
    speedup, log-sd 0.22          .957  .949  .946  .956  .908  .928  .938  .958  .888  .932  .946  .954
      tails, unequal lengths      .946  .936  .941  .956  .878  .908  .926  .952  .854  .884  .898  .936
    speedup, log-sd 0.08          .960  .952  .949  .951  .900  .936  .942  .952  .894  .936  .944  .950
      3 % of prompts 1.5× slower  .940  .931  .931  .945  .872  .906  .918  .934  .850  .898  .908  .940
    α 0.7, sd 0.1 of prompts      .953  .952  .960  .947  .898  .902  .934  .940  .894  .898  .942  .950

An interval that treats tokens as independent draws (binomial) covers the last one in 57 to 59 of a hundred runs.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from importlib import import_module

import numpy as np
from numpy.typing import NDArray

from specbench import metrics
from specbench.wording import finite_or_none

LEVEL = 0.95
Z = 1.959963984540054  # the quantile of the normal distribution at (1 + LEVEL) / 2
ENOUGH = 20  # prompts below which a few unusual ones dominate the interval
FEWEST = 5  # independent draws below which an interval is unreliable


@dataclass(frozen=True)
class Interval:
    """A ratio with its 95 % interval; the bounds are NaN if the prompts do not determine its error."""

    value: float
    low: float
    high: float


def bounds(name: str, found: Interval) -> dict[str, float | None]:
    """A value and the bounds of its interval as columns."""
    values = (found.value, found.low, found.high)
    return {f"{name}{end}": finite_or_none(value) for end, value in zip(("", "_low", "_high"), values, strict=True)}


def ratio_of_totals(parts: Sequence[float], wholes: Sequence[float], at_most: float = math.inf) -> Interval:
    """Σ parts ÷ Σ wholes over prompts; `at_most` is the largest possible value (1 for a share such as α)."""
    value = metrics.ratio(math.fsum(parts), math.fsum(wholes))
    found = _interval(value, (parts, wholes), (1, -1))
    return Interval(*(min(bound, at_most) for bound in (found.value, found.low, found.high)))


def speedup_interval(
    baseline_seconds: Sequence[float], baseline_tokens: Sequence[int], seconds: Sequence[float], tokens: Sequence[int]
) -> Interval:
    """Baseline seconds per token ÷ method seconds per token, both from totals, paired by prompt."""
    columns = (baseline_seconds, baseline_tokens, seconds, tokens)
    return _interval(metrics.speedup_of_totals(*columns), columns, (1, -1, -1, 1))


def ratio_of_means(
    parts: Sequence[float], numbers: Sequence[int], other_parts: Sequence[float], other_numbers: Sequence[int]
) -> Interval:
    """(Σ parts ÷ Σ numbers) ÷ (Σ other parts ÷ Σ other numbers), all paired by prompt."""
    columns = (parts, numbers, other_parts, other_numbers)
    totals = [math.fsum(column) for column in columns]
    return _interval(metrics.ratio(metrics.ratio(*totals[:2]), metrics.ratio(*totals[2:])), columns, (1, -1, -1, 1))


def length_interval(counts: Sequence[Sequence[tuple[int, int]]]) -> Interval:
    """An acceptance length, 1 + Σᵢ Πⱼ≤ᵢ (accepted ÷ tested at position j), from (accepted, tested) by prompt and
    position."""
    table = np.asarray(counts, dtype=float).reshape(len(counts), -1, 2)
    totals = table.sum(axis=0)
    accepted, tested = np.moveaxis(np.concatenate([totals[None], totals - table]), -1, 0)
    joint = np.cumprod(np.divide(accepted, tested, out=np.zeros_like(accepted), where=tested > 0), axis=1)
    value, *left_out = (1 + joint.sum(axis=1)).tolist()
    half = _student(len(left_out)) * math.sqrt(jackknife(np.log(left_out))) if len(left_out) > 1 else math.nan
    low, high = np.clip(value * np.exp([-half, half]), 1, 1 + table.shape[1]).tolist()
    return Interval(value, low, high)


def share_of(good: int, of: int, draws: int) -> Interval:
    """A share with Wilson's 95 % interval: `good` of `of` requests, which depend on `draws` independent prompts.

    Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22, 1927. Unlike an interval
    by the spread of a sample, it does not vanish if all requests are good.
    """
    if not of:
        return Interval(math.nan, math.nan, math.nan)
    share = good / of
    middle, width = share + Z * Z / (2 * draws), Z * math.sqrt(share * (1 - share) / draws + (Z / (2 * draws)) ** 2)
    low, high = ((middle + sign * width) / (1 + Z * Z / draws) for sign in (-1, 1))
    return Interval(share, min(low, share), max(high, share))


def difference_of_shares(pairs: Sequence[tuple[bool, bool]], draws: int) -> Interval:
    """The second share less the first, of paired requests, with its 95 % interval.

    Method 10 of Newcombe, "Improved confidence intervals for the difference between binomial proportions based on
    paired data", Statistics in Medicine 17, 1998: Wilson's intervals of both shares, combined by their correlation.
    """
    one, other = (share_of(sum(pair[arm] for pair in pairs), len(pairs), draws) for arm in (0, 1))
    lower, upper = ((other.value - other.low, one.high - one.value), (other.high - other.value, one.value - one.low))
    both, first, second, neither = (
        sum(pair == cell for pair in pairs) for cell in ((True, True), (True, False), (False, True), (False, False))
    )
    product = math.prod((both + first, second + neither, both + second, first + neither))
    excess = float(both * neither - first * second)
    excess = max(excess - len(pairs) / 2, 0.0) if excess > 0 else excess
    phi, value = (excess / math.sqrt(product) if product else 0.0), other.value - one.value
    low, high = (math.sqrt(max(a * a - 2 * phi * a * b + b * b, 0.0)) for a, b in (lower, upper))
    return Interval(value, value - low, value + high)


def geomean(ratios: Sequence[float]) -> float:
    """The geometric mean; NaN without ratios, or if one is not positive."""
    if not ratios or not all(r > 0 for r in ratios):
        return math.nan
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios))


def half_width(interval: Interval) -> float:
    """Half the width of the interval relative to its value: 0.02 is "± 2 %"."""
    return (interval.high - interval.low) / 2 / interval.value if interval.value else math.nan


def log_error(interval: Interval, prompts: int) -> float:
    """The standard error of the value's logarithm, from an interval of this module over this many prompts."""
    return _log_half(interval) / _student(prompts) if prompts > 1 else math.nan


def to_settle(interval: Interval, prompts: int) -> int | None:
    """The least number of prompts, two or more, whose interval would exclude 1 if the value stays.

    None if the value is 1, or without an interval.
    """
    half = abs(math.log(interval.value)) if interval.value > 0 else 0.0
    spread = log_error(interval, prompts) * math.sqrt(prompts)
    if not (half > 0 and math.isfinite(spread)):
        return None
    enough = max(2, math.ceil((Z * spread / half) ** 2))
    while _student(enough) * spread > half * math.sqrt(enough):  # a few steps: t is wider than the normal distribution
        enough += 1
    return enough


def widened(interval: Interval, comparisons: int) -> Interval:
    """The interval widened for the best of `comparisons` (Bonferroni), by a normal approximation of the log.

    The best of several K was chosen after several looks, and is partly luck.
    """
    wider = special("ndtri", 1 - (1 - LEVEL) / 2 / max(comparisons, 1)) / Z
    if not (interval.value > 0 and interval.low > 0 and math.isfinite(interval.high)):
        return interval
    low, high = ((bound / interval.value) ** wider for bound in (interval.low, interval.high))
    return Interval(interval.value, interval.value * low, interval.value * high)


def _interval(value: float, columns: Sequence[Sequence[float]], powers: Sequence[int]) -> Interval:
    """Bounds for a product of the columns' totals, each to its power of 1 or -1, paired by prompt."""
    table = np.asarray(columns, dtype=float)
    if table.shape[1] < 2 or not 0 < value < math.inf:
        return Interval(value, math.nan, math.nan)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        left_out = np.log(table.sum(axis=1, keepdims=True) - table)
        half = _student(table.shape[1]) * math.sqrt(jackknife(np.asarray(powers) @ left_out))
        low, high = (value * np.exp([-half, half])).tolist()
    if not (low > 0 and high < math.inf):  # the total is zero without one of the prompts
        low = high = math.nan
    return Interval(value, low, high)


def jackknife(left_out: NDArray[np.float64]) -> float:
    """The variance of a statistic from its values without each prompt in turn; NaN for one prompt."""
    return float((len(left_out) - 1) * np.var(left_out)) if len(left_out) > 1 else math.nan


def _student(prompts: int) -> float:
    return special("stdtrit", prompts - 1, (1 + LEVEL) / 2)


def _log_half(interval: Interval) -> float:
    """Half the width on the log scale; NaN without an interval."""
    if not (interval.low > 0 and math.isfinite(interval.high)):
        return math.nan
    return math.log(interval.high / interval.low) / 2


# --- text against distributions ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tally:
    """Was text drawn from the distributions of a model? Sums over its tokens in, z out.

    Let f be any function of a token and of the text before it. If every token x_t was drawn from p_t, given that text,
    then f_t(x_t) − Σ p_t f_t has mean 0 and variance Σ p_t f_t² − (Σ p_t f_t)², given that text. The sum over tokens is
    a martingale, so z = Σ (f_t(x_t) − Σ p_t f_t) ÷ √ΣVar is asymptotically standard normal, however the tokens depend
    on each other (Brown 1971, Ann. Math. Stat. 42, 59). With f = −log p this compares the surprise of the text with its
    entropy. observed: Σ f of the emitted tokens; expected, variance: Σ of the mean and of the variance of f under p.
    """

    tokens: int
    observed: float
    expected: float
    variance: float

    @property
    def z(self) -> float:
        """Standard normal if the tokens were drawn from p."""
        excess = self.observed - self.expected
        if self.variance > 0:
            return excess / math.sqrt(self.variance)
        return 0.0 if abs(excess) <= 1e-9 * max(self.tokens, 1) else math.copysign(math.inf, excess)

    @property
    def excess(self) -> float:
        """The mean excess of f per token over its expectation."""
        return (self.observed - self.expected) / self.tokens if self.tokens else math.nan


def all_together(parts: Iterable[Tally]) -> Tally:
    """The tally of several texts together."""
    found = list(parts)
    tokens, *sums = (math.fsum(getattr(part, one.name) for part in found) for one in fields(Tally))
    return Tally(int(tokens), *sums)


def two_sided(z: float) -> float:
    """The two-sided p-value of z; 0 if z is NaN."""
    return 0.0 if math.isnan(z) else 2 * special("ndtr", -abs(z))


def special(name: str, *at: float) -> float:
    """A function of scipy.special, which is imported when the first of them is needed."""
    return float(getattr(import_module("scipy.special"), name)(*at))
