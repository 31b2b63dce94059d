"""What two records say about one number, as a trial that `holm_test` can decide, or why they say nothing.

From samples.csv where there is one: ratios of totals over prompts, paired by prompt where both runs had the same
prompts. Else from the interval in results.csv, by the normal approximation on the log scale. A number that has neither
is compared as it stands. Must not know how the trial is decided.
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.stats import norm

from specbench.judge.holm_test import METRICS, TOTALLED, Criterion, Estimate, Totals, Trial, estimate
from specbench.judge.matching import RecordPair

NORMAL_95 = float(norm.ppf(0.975))  # results.csv holds 95 % intervals
NO_INTERVAL = "a plain number, no interval"


def evidence_of(criterion: Criterion, pairs: Sequence[RecordPair]) -> Trial | str | None:
    """A trial, the reason why there is none, or None where no run has the number (nothing was drafted, say)."""
    name = criterion.metric
    values = [[record.number(name) for record in pair] for pair in pairs]
    if all(math.isnan(value) for pair in values for value in pair):
        return None
    for before, after in values:
        if math.isnan(before) or math.isnan(after):
            return f"no {name} in {'BASE' if math.isnan(before) else 'NEW'}"
    if name not in METRICS:
        runs = [noiseless(*pair) for pair in values]
        whole = _mean(runs)
        if math.isnan(whole.log):
            return f"{name} changed in opposite directions from or to 0"
        return Trial(criterion, whole, tuple(runs))
    if any(record.samples is None for pair in pairs for record in pair):
        return _from_intervals(criterion, pairs)
    return _from_totals(criterion, pairs)


def _from_totals(criterion: Criterion, pairs: Sequence[RecordPair]) -> Trial | str:
    paired = all(base["prompts_sha256"] == new["prompts_sha256"] != "" for base, new in pairs)
    totals = [(base.totals, new.totals) for base, new in pairs]
    if paired:
        totals = [_common(*pair) for pair in totals]
    if min(len(run) for pair in totals for run in pair) < 2:
        return "fewer than two prompts to compare"
    pooled = tuple(pd.concat(runs).groupby(level=0, sort=False).sum(skipna=False) for runs in zip(*totals, strict=True))
    if paired:  # a prompt that one pair lacks is lacking on both sides
        pooled = _common(*pooled)
    metric = METRICS[criterion.metric]
    runs = tuple(estimate(metric, _arrays(base), _arrays(new), paired) for base, new in totals)
    whole = estimate(metric, _arrays(pooled[0]), _arrays(pooled[1]), paired)
    if whole.base == 0 or whole.new == 0:  # it has no logarithm, but no noise either
        return Trial(criterion, noiseless(whole.base, whole.new), tuple(noiseless(run.base, run.new) for run in runs))
    if not math.isfinite(whole.log) or math.isnan(whole.error):
        return f"{criterion.metric} depends on a single prompt, or lacks a time"
    return Trial(criterion, whole, runs)


def _common(base: pd.DataFrame, new: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    prompts = base.index.intersection(new.index, sort=False)
    return base.loc[prompts], new.loc[prompts]


def _arrays(totals: pd.DataFrame) -> Totals:
    return {name: totals[name].to_numpy(dtype=np.float64) for name in TOTALLED}


def _from_intervals(criterion: Criterion, pairs: Sequence[RecordPair]) -> Trial | str:
    name, runs = criterion.metric, []
    for pair in pairs:
        logs, variance = [], 0.0
        for record in pair:
            value, low, high = (record.number(name + end) for end in ("", "_low", "_high"))
            if not all(number > 0 for number in (value, low, high)):
                return f"no samples.csv, and no interval of {name}"
            logs.append(math.log(value))
            variance += (math.log(high / low) / (2 * NORMAL_95)) ** 2
        runs.append(Estimate(math.exp(logs[0]), math.exp(logs[1]), logs[1] - logs[0], math.sqrt(variance), math.inf))
    return Trial(criterion, _mean(runs), tuple(runs))


def noiseless(base: float, new: float) -> Estimate:
    """The relative change of a number without noise, measured against the absolute value of `base`."""
    change = (new - base) / abs(base) if base else math.copysign(math.inf, new) if new else 0.0
    return Estimate(base, new, math.log1p(change) if change > -1 else -math.inf, 0.0, math.inf)


def _mean(runs: Sequence[Estimate]) -> Estimate:
    """All runs together. The largest error stays: runs that share their base do not average its noise away."""
    with np.errstate(over="ignore", invalid="ignore"):  # a change from 0 is infinite, two of them may cancel
        base, new, log = (float(np.mean([getattr(run, name) for run in runs])) for name in ("base", "new", "log"))
    return Estimate(base, new, log, max(run.error for run in runs), min(run.df for run in runs))
