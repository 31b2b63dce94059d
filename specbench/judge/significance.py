"""The tests of `compare` and `verify`.

`compare` tests whether a number became worse by more than a margin and by more than chance, `verify` which of
several methods emit text that does not follow the target's distribution (z-tests, at the end).

A metric is a ratio of totals over prompts, and log(new ÷ base) is judged. Its error is the delete-one
jackknife over prompts (both runs lose the same prompt if they are paired), with Student's t on n − 1 degrees
of freedom. Two runs of one commit can differ by more than the spread of their prompts (clock, neighbours,
memory layout), which no interval over prompts shows. So a change must also exceed a margin, and if NEW was
run again, every run must show it. Rates of false alarms and of detection: `tests/benchmarks/gate.py`.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from specbench.results.statistics import Tally, jackknife, special, two_sided

Outcome = Literal["ok", "better", "REGRESSION", "inconclusive", "not comparable", "not judged"]
Totals = Mapping[str, NDArray[np.float64]]  # column of samples.csv → one total per prompt
POWER = 0.95  # detection rate of the smallest visible effect


@dataclass(frozen=True)
class Metric:
    """A column of results.csv as a product of totals: those `over`, divided by those `under`, times `scale`."""

    over: tuple[str, ...]
    under: tuple[str, ...]
    scale: float = 1.0


METRICS = {
    "speedup": Metric(("baseline_seconds", "tokens"), ("baseline_tokens", "seconds")),
    "alpha": Metric(("overlap",), ("tested",)),
    "c": Metric(("draft_seconds", "baseline_rounds"), ("drafted", "baseline_seconds")),
    "v": Metric(("verify_seconds", "baseline_rounds"), ("rounds", "baseline_verify_seconds")),
    "tokens_per_second": Metric(("tokens",), ("seconds",)),
    "baseline_tokens_per_second": Metric(("baseline_tokens",), ("baseline_seconds",)),
    "tokens_per_round": Metric(("tokens",), ("rounds",)),
    "alpha_tested": Metric(("accepted",), ("tested",)),
    "accepted_per_drafted": Metric(("accepted",), ("drafted",)),
    "baseline_step_ms": Metric(("baseline_seconds",), ("baseline_rounds",), 1000),
    "round_ms": Metric(("seconds",), ("rounds",), 1000),
    "draft_token_ms": Metric(("draft_seconds",), ("drafted",), 1000),
}
TOTALLED = tuple(dict.fromkeys(name for metric in METRICS.values() for name in (*metric.over, *metric.under)))


@dataclass(frozen=True)
class Criterion:
    """Worse means below (−1) or above (+1) the base by more than `margin`, a share of it."""

    metric: str
    worse: Literal[-1, 1]
    margin: float

    @property
    def limit(self) -> float:
        """The margin on the log scale, positive; infinite if nothing can fall by so much."""
        return abs(math.log1p(self.worse * self.margin)) if self.worse * self.margin > -1 else math.inf


@dataclass(frozen=True)
class Estimate:
    """base → new, the log of their ratio, its standard error (0: a number without noise) and degrees of freedom."""

    base: float
    new: float
    log: float
    error: float
    df: float


@dataclass(frozen=True)
class Trial:
    """One number of one cell: the change over all runs together, and that of each run alone."""

    criterion: Criterion
    pooled: Estimate
    runs: tuple[Estimate, ...]

    @property
    def bad(self) -> float:
        """The pooled change on the log scale, positive for worse."""
        return self.criterion.worse * self.pooled.log


@dataclass(frozen=True)
class Decision:
    """The decision on a trial.

    low, high: one-sided bounds of the relative change. p: Holm-corrected. smallest: the relative worsening
    that would be called a regression in 19 of 20 cases, considering only noise between prompts.
    """

    outcome: Outcome
    detail: str
    low: float
    high: float
    p: float
    smallest: float


def log_of(metric: Metric, totals: Totals, leave_one_out: bool = False) -> NDArray[np.float64]:
    """The metric's logarithm from all prompts [], or [n] from all but one; not finite where a total is 0."""
    columns = {name: totals[name] for name in (*metric.over, *metric.under)}
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = {name: np.log(one.sum() - one if leave_one_out else one.sum()) for name, one in columns.items()}
        value = sum(logs[name] for name in metric.over) - sum(logs[name] for name in metric.under)
    return np.asarray(value, dtype=float)


def estimate(metric: Metric, base: Totals, new: Totals, paired: bool) -> Estimate:
    """The change of a ratio of totals. Paired: position i of both is one prompt. The error is NaN for one prompt."""
    before, after = float(log_of(metric, base)), float(log_of(metric, new))
    left = [log_of(metric, totals, leave_one_out=True) for totals in (base, new)]
    with np.errstate(over="ignore", invalid="ignore"):
        values = [float(metric.scale * np.exp(log)) for log in (before, after)]
        parts = [(jackknife(one), one.size - 1) for one in ([left[1] - left[0]] if paired else left)]
    variance = math.fsum(v for v, _ in parts)
    # Welch and Satterthwaite; equal to n − 1 for a single part
    spread = math.fsum(v * v / df for v, df in parts if df)
    df = variance * variance / spread if spread > 0 else float(min(df for _, df in parts))
    return Estimate(values[0], values[1], after - before, math.sqrt(variance), df)


def noiseless(base: float, new: float) -> Estimate:
    """The relative change of a number without noise, measured against the absolute value of `base`."""
    change = (new - base) / abs(base) if base else math.copysign(math.inf, new) if new else 0.0
    return Estimate(base, new, math.log1p(change) if change > -1 else -math.inf, 0.0, math.inf)


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down correction: the chance of any false alarm among all tests stays below the level."""
    adjusted, reached = [1.0] * len(p), 0.0
    for rank, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        reached = max(reached, min(1.0, (len(p) - rank) * p[i]))
        adjusted[i] = reached
    return adjusted


def decide(trials: Sequence[Trial], level: float) -> list[Decision]:
    """One decision per trial; `level` is the permitted chance of a false alarm over all of them."""
    worse = holm([chance(trial.bad, trial.pooled) for trial in trials])
    better = holm([chance(-trial.bad, trial.pooled) for trial in trials])
    return [_decision(trial, p, q, level, len(trials)) for trial, p, q in zip(trials, worse, better, strict=True)]


def chance(log: float, found: Estimate) -> float:
    """One-sided p of a change this large or larger under no change."""
    if found.error == 0:
        return 0.0 if log > 0 else 1.0
    return special("stdtr", found.df, -log / found.error)


def _decision(trial: Trial, worse: float, better: float, level: float, trials: int) -> Decision:
    found, limit = trial.pooled, trial.criterion.limit
    reach = quantile(level, found)
    outcome, detail = _outcome(trial, worse < level, better < level, reach)
    likely = quantile(1 - POWER, found)
    smallest = max(limit + likely, quantile(level / trials, found) + likely)
    return Decision(
        outcome,
        detail,
        relative(found.log - reach),
        relative(found.log + reach),
        better if trial.bad < 0 else worse,
        abs(relative(trial.criterion.worse * smallest)),
    )


def _outcome(trial: Trial, worse: bool, better: bool, reach: float) -> tuple[Outcome, str]:
    limit = trial.criterion.limit
    signed = [trial.criterion.worse * run.log for run in trial.runs]
    if trial.bad > limit and worse:
        showing = sum(bad > limit / 2 for bad in signed)
        if showing == len(signed):
            return "REGRESSION", ""
        return "inconclusive", f"only {showing} of {len(signed)} new runs show it"
    if trial.bad < -limit and better and all(bad < -limit / 2 for bad in signed):
        return "better", ""
    if trial.bad + reach > limit:
        return "inconclusive", "noise reaches beyond the margin"
    return "ok", ""


def quantile(tail: float, found: Estimate) -> float:
    """The one-sided quantile of noise on the log scale at this probability."""
    return -special("stdtrit", found.df, tail) * found.error if found.error else 0.0


def relative(log: float) -> float:
    """A change on the log scale as a share; infinite if it overflows."""
    return math.expm1(log) if log < 700 else math.inf


FALSE_ALARM = 0.001  # chance that any method is wrongly accused
Name = TypeVar("Name", bound=Hashable)  # name of a test


@dataclass(frozen=True)
class ZTest:
    """The z of a method, the limit for its absolute value, and whether it exceeds that."""

    z: float
    limit: float
    differs: bool


def z_tests(found: Mapping[Name, Tally], level: float = FALSE_ALARM) -> dict[Name, ZTest]:
    """Two-sided tests; `level` is the chance of any false alarm among them all (Holm 1979, step down).

    The largest z is compared with the limit of all tests together, the next with that of one test fewer, and
    so on up to the first within its limit.
    """
    chances = {name: two_sided(tally.z) for name, tally in found.items()}
    in_order = sorted(chances, key=chances.__getitem__)
    corrected = holm([chances[name] for name in in_order])
    limits = [-special("ndtri", level / left / 2) for left in range(len(in_order), 0, -1)]
    return {
        name: ZTest(found[name].z, limit, chance < level)
        for name, limit, chance in zip(in_order, limits, corrected, strict=True)
    }
