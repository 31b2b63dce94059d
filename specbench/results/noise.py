"""What the machine did during the measurement: outliers, drift, two groups of times, load. It changes no number.

Knows seconds, rounds and turns of samples; must not know how they are shown. Everything is judged on the logarithm of
seconds per round (a round of the baseline is one token), because a round costs the same whatever was accepted in it.

When a warning is given, and how often times of a single distribution caused it (10 to 164 values, normal, lognormal and
with heavy tails, standard deviation 5 and 20 %; `python -m tests.benchmarks.coverage`):

    drift         3 % or more from the first to the last turn, and p below 0.01 (Kendall)      at most 0.012
    bimodality    Sarle's coefficient above 0.6 (uniform has 0.556, two points have 1)         at most 0.004
    outliers      more than three samples, and more than one in four, beyond Tukey's fences    0.04 at 10, 0.003 from 40
    load          more than one process beyond the threads of this run                         not simulated

A drift of 6 % under noise of 2 % is found in 81 of a hundred runs of 20 turns, two groups 12 % apart in 49 of them
(in 91 of those with 40).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from specbench import metrics
from specbench.metrics import Trace
from specbench.results.samples import Sample
from specbench.results.steadiness import Fault, other_pace
from specbench.wording import Row, counted, number_in

LOAD = "load"  # the kind of the fault that other processes are
Flag = Literal["", "mild", "severe"]
Numbers = NDArray[np.float64]
FENCES = {"severe": 3.0, "mild": 1.5}  # interquartile ranges beyond the quartiles (Tukey)
LEAST_SPREAD = 1e-6  # of the interquartile range: what is narrower is rounding
FEWEST_VALUES = 10  # values below which a coefficient of bimodality says nothing
SAME_SPREAD = 0.01  # standard deviation of log times below which two groups of times would not matter
PAIRS_OF = 500  # values whose pairs are looked at; more of them are thinned evenly
BRIEF = 0.5  # load of short-lived processes that every machine has; one more that computes all the time gives 1
ONE_MORE = 1.0  # load by which a run is under another load than the run before: one process that computes
DRIFT_SHARE, DRIFT_P, TWO_GROUPS, OFTEN, SOME = 0.03, 0.01, 0.6, 1 / 4, 3


@dataclass(frozen=True)
class Drift:
    """By what share the times grew from the first to the last value, and the chance of such a trend in random order."""

    share: float
    p: float


@dataclass(frozen=True)
class Diagnostics:
    """The columns of results.csv about the machine.

    outliers: samples with an unusual time in either arm; drift, drift_p and bimodality: of the baseline's times;
    load_average: the highest before any turn, None where the system does not count it.
    """

    outliers: int
    drift: float
    drift_p: float
    bimodality: float
    load_average: float | None


def diagnose(samples: Sequence[Sample]) -> Diagnostics:
    """The diagnostics of a cell, its samples in any order."""
    in_time = sorted(samples, key=lambda s: s.turn)
    times = paces([s.baseline for s in in_time], [s.prompt_tokens for s in in_time])
    trend, loads = drift(times), [s.load for s in samples if s.load is not None]
    return Diagnostics(
        outliers=sum(flag != "" for flag in flags(samples)),
        drift=trend.share,
        drift_p=trend.p,
        bimodality=bimodality(times),
        load_average=max(loads, default=None),
    )


def flags(samples: Sequence[Sample]) -> list[Flag]:
    """Per sample the worse flag of its two arms."""
    prompts = [s.prompt_tokens for s in samples]
    arms = [outliers(paces(traces, prompts)) for traces in ([s.baseline for s in samples], [s.method for s in samples])]
    return [max(pair, key=("", "mild", "severe").index) for pair in zip(*arms, strict=True)]


def paces(traces: Sequence[Trace], prompt_tokens: Sequence[int]) -> list[float]:
    """Seconds per round of each trace, relative to the usual at its length of context; NaN where none were measured.

    The usual is a straight line through the logarithms (Theil and Sen). Long prompts are slower: in a data set that is
    sorted by length this would look like drift, and two kinds of prompts like two kinds of times. Updates of a draft
    that learns are left out: they fall on few prompts.
    """
    seconds = np.array([metrics.ratio(t.seconds - t.updating, len(t.rounds)) for t in traces])
    context = np.array([n + len(t.tokens) / 2 for n, t in zip(prompt_tokens, traces, strict=True)])
    logs = _logs(seconds)
    known = np.isfinite(logs)
    if np.unique(context[known]).size > 1:
        chosen = _thinned(np.flatnonzero(known))
        logs = logs - _slope(logs[chosen], context[chosen]) * (context - context[chosen].mean())
    found: list[float] = np.exp(logs).tolist()
    return found


def outliers(values: Sequence[float]) -> list[Flag]:
    """Tukey's fences on the logarithms: beyond 1.5 interquartile ranges mild, beyond 3 severe. None is ever dropped."""
    logs = _logs(values)
    known = logs[np.isfinite(logs)]
    if known.size < 4:
        return [""] * len(values)
    low, high = np.quantile(known, [0.25, 0.75])
    beyond = np.maximum(low - logs, logs - high) / max(high - low, LEAST_SPREAD)
    return ["severe" if far > FENCES["severe"] else "mild" if far > FENCES["mild"] else "" for far in beyond.tolist()]


def drift(values: Sequence[float]) -> Drift:
    """The trend of times in the order in which they were measured: slope of Theil and Sen, p of Kendall's τ."""
    logs = _logs(values)
    turns = _thinned(np.flatnonzero(np.isfinite(logs)))
    if turns.size < 3:
        return Drift(math.nan, math.nan)
    if np.ptp(logs[turns]) < LEAST_SPREAD:
        return Drift(0.0, 1.0)
    grown = _slope(logs[turns], turns) * (turns[-1] - turns[0])
    return Drift(math.expm1(grown), float(stats.kendalltau(turns, logs[turns]).pvalue))


def bimodality(values: Sequence[float]) -> float:
    """Sarle's coefficient of the logarithms with the correction for few values (Pfister and others 2013).

    Between 0 and 1; NaN below ten values, or where all lie within about 1 %. Severe outliers are left out: a single one
    makes any sample look skewed, and two groups are something else.
    """
    flagged = outliers(values)
    logs = _logs([value for value, flag in zip(values, flagged, strict=True) if flag != "severe"])
    logs = logs[np.isfinite(logs)]
    n = logs.size
    if n < FEWEST_VALUES or logs.std() < SAME_SPREAD:
        return math.nan
    skewness, excess = stats.skew(logs, bias=False), stats.kurtosis(logs, bias=False)
    return float((skewness**2 + 1) / (excess + 3 * (n - 1) ** 2 / ((n - 2) * (n - 3))))


def warnings(found: Diagnostics, samples: int, threads: int | None) -> list[str]:
    """What a user should know about the machine, and what to do. Thresholds: see the module. NaN warns of nothing."""
    return [fault.note for fault in warned(found, samples, threads)]


def warned(found: Diagnostics, samples: int, threads: int | None) -> list[Fault]:
    """The same as faults: how bad each is, among those of its kind."""
    faults = (
        Fault("drift", abs(found.drift), _drifting(found), ""),
        Fault("two groups", found.bimodality, _two_groups(found), ""),
        Fault("outliers", found.outliers, _many_outliers(found, samples), ""),
        Fault(LOAD, found.load_average or 0.0, _under_load(found, threads), ""),
    )
    return [fault for fault in faults if fault.note]


def _drifting(found: Diagnostics) -> str:
    if not (abs(found.drift) >= DRIFT_SHARE and found.drift_p < DRIFT_P):
        return ""
    way = "slowed down" if found.drift > 0 else "became faster"
    return (
        f"the machine {way} by {abs(found.drift):.0%} during the run (p {found.drift_p:.1g}): speedups hold, "
        "because both arms shared every moment; tokens per second do not. Repeat once it is warm and quiet"
    )


def _two_groups(found: Diagnostics) -> str:
    if not found.bimodality > TWO_GROUPS:
        return ""
    return (
        f"baseline times fall into two groups (bimodality {found.bimodality:.2f}): another process or a changing "
        "clock frequency. Intervals are wider than they need be; repeat on a quiet machine, or with --repeat 3"
    )


def _many_outliers(found: Diagnostics, samples: int) -> str:
    if found.outliers <= max(SOME, OFTEN * samples):
        return ""
    return (
        f"{found.outliers} of {samples} samples are outliers in time: all are counted. Look at them in samples.csv "
        "(column outlier) before you trust the last digits"
    )


def _under_load(found: Diagnostics, threads: int | None) -> str:
    if not busy(found.load_average, threads):
        return ""
    return (
        f"load average {found.load_average:.1f} on {counted(threads or 0, 'thread')}: other processes slowed both "
        "arms, not always equally; repeat on a quiet machine"
    )


def busy(load: float | None, threads: float | None) -> bool:
    """Whether something else was running, as far as is known.

    The load counts the threads of this run, too: a quiet machine has these, and now and then a short-lived process.
    """
    return load is not None and threads is not None and load > threads + BRIEF


def other_conditions(before: Row, now: Row) -> str:
    """What the machine did in one run and not in the other, so that their seconds cannot be compared; empty where
    nothing is known of that."""
    return next(chain(other_load(before, now), other_pace(before, now)), "")


def other_load(before: Row, now: Row) -> Iterator[str]:
    """Load that one of two runs had from other programs, and the other not, or not as much."""
    old, new = (number_in(row, "load_average") for row in (before, now))
    if old is None or new is None or abs(new - old) <= ONE_MORE:
        return
    for row, load in ((now, new), (before, old)):
        threads = number_in(row, "threads")
        if busy(load, threads):
            yield f"load {new:.1f} on {counted(int(threads or 0), 'thread')} against {old:.1f}"


def crowd(load: float, threads: int, others: str) -> str:
    """What `busy` means for a run that goes on; `others`: the programs that run now, if any."""
    found = f"load {load:.1f} on {counted(threads, 'thread')}"
    if others:
        return f"{found}: other programs run ({others}), so results will be PROVISIONAL; stop them, or go on"
    return f"{found} in the last minute: results will be PROVISIONAL; wait for a quiet machine, or go on"


def _logs(values: Sequence[float] | Numbers) -> Numbers:
    """Logarithms; NaN for values that are not times (zero, negative, NaN, infinite)."""
    numbers = np.asarray(values, dtype=float)
    good = np.isfinite(numbers) & (numbers > 0)
    return np.where(good, np.log(np.where(good, numbers, 1.0)), math.nan)


def _slope(logs: Numbers, where: NDArray[Any]) -> float:
    """The median of the slopes of all pairs (Theil and Sen)."""
    with np.errstate(
        invalid="ignore"
    ):  # raised for the interval of the slope, which is not used, where values are equal
        return float(stats.theilslopes(logs, where).slope)


def _thinned(places: NDArray[np.intp]) -> NDArray[np.intp]:
    """At most 500 of them, evenly spread: slopes look at all pairs."""
    return places[:: -(-places.size // PAIRS_OF) or 1]
