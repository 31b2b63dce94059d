"""Machine behaviour during the measurement: outliers, drift, bimodal times, load, clocks, throttling, steal.

It changes no number, and unknown values give no warning. Times are judged on the logarithm of seconds per
round (a round of the baseline is one token), because a round costs the same whatever is accepted. A clock is
read at one moment of a decode, so one reading in ten may be odd: a fall is from the 90th to the 10th
percentile.

When a warning is given, and how often times of a single distribution caused it (10 to 164 values, normal,
lognormal and heavy-tailed, standard deviation 5 and 20 %; `python -m tests.benchmarks.coverage`):

    drift         3 % or more from the first to the last turn, and p below 0.01 (Kendall)      at most 0.012
    bimodality    Sarle's coefficient above 0.6 (uniform has 0.556, two points have 1)         at most 0.004
    outliers      more than three samples, and more than one in four, beyond Tukey's fences    0.04 at 10, 0.003 from 40
    load          more than one process beyond the threads of this run                         not simulated

A drift of 6 % under noise of 2 % is found in 81 of a hundred runs of 20 turns, two groups 12 % apart in 49 of
them (in 91 of those with 40).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from specbench import metrics
from specbench.metrics import Trace, ratio
from specbench.results import machine
from specbench.results.machine import Reading
from specbench.results.samples import Sample
from specbench.wording import Row, counted, number_in, text_in

LOAD = "load"  # the fault kind for load by other processes
TIER = "tier"  # that of rounds that could not be captured or compiled
Flag = Literal["", "mild", "severe"]
Numbers = NDArray[np.float64]
FENCES = {"severe": 3.0, "mild": 1.5}  # interquartile ranges beyond the quartiles (Tukey)
LEAST_SPREAD = 1e-6  # of the interquartile range: less is rounding
FEWEST_VALUES = 10  # below this, a coefficient of bimodality is meaningless
SAME_SPREAD = 0.01  # standard deviation of log times below which two groups do not matter
PAIRS_OF = 500  # values for pairwise slopes; more are thinned evenly
BRIEF = 0.5  # load of short-lived processes on any machine; one more busy process gives 1
ONE_MORE = 1.0  # load difference of one busy process, for comparing runs
DRIFT_SHARE, DRIFT_P, TWO_GROUPS, OFTEN, SOME = 0.03, 0.01, 0.6, 1 / 4, 3
LOW, HIGH = 0.1, 0.9
GPU_FALL = 0.1  # GPUs change their clock in steps below 1 %, and by some 5 % as they warm up
CPU_FALL = 0.15  # a processor's fastest cores are up to a tenth faster than its others, and threads move
STOLEN = 0.02  # of the demanded time: all threads wait for the stolen one, so a pass loses more
LEAST_WANTED = 5.0  # seconds: the system counts hundredths, and ten of them are the least for a share of 2 %
THROTTLED = 0.05  # of the decodes: one in twenty is an outlier, which has its own note
RESOLVED = 0.01  # of a speedup: less is within the noise of a clock
LOCKED = "fix it low enough for the limits of power and heat (nvidia-smi --lock-gpu-clocks)"
# Largest difference of two runs with comparable seconds: relative for clocks, in points for shares.
CLOCKS = {
    "cpu_mhz": (CPU_FALL, "the processor's clock"),
    "gpu_mhz": (GPU_FALL, "the GPU's clock"),
    "gpu_memory_mhz": (GPU_FALL, "the clock of the GPU's memory"),
}
SHARES = {
    "cpu_clock_fall": (CPU_FALL, "the fall of the processor's clock"),
    "gpu_clock_fall": (GPU_FALL, "the fall of the GPU's clock"),
    "gpu_memory_clock_fall": (GPU_FALL, "the fall of the memory's clock"),
    "gpu_throttled": (THROTTLED, "throttled decodes"),
    "cpu_steal": (STOLEN, "steal"),
}
COOLED = "repeat on a cool, idle machine on mains power"


@dataclass(frozen=True)
class Fault:
    """An instability. size: severity within its kind; note: meaning and remedy; doubt: for an answer, if any."""

    kind: str
    size: float
    note: str
    doubt: str


def diagnose(samples: Sequence[Sample]) -> dict[str, Any]:
    """The columns of results.csv about times, from the samples of a cell in any order.

    outliers: samples with an unusual time in either arm; drift, drift_p and bimodality: of the baseline's
    times; load_average: the highest before any turn, None if unavailable.
    """
    in_time = sorted(samples, key=lambda s: s.turn)
    times = paces([s.baseline for s in in_time], [s.prompt_tokens for s in in_time])
    (growth, p), loads = drift(times), [s.load for s in samples if s.load is not None]
    return {
        "outliers": sum(flag != "" for flag in flags(samples)),
        "drift": growth,
        "drift_p": p,
        "bimodality": bimodality(times),
        "load_average": max(loads, default=None),
    }


def flags(samples: Sequence[Sample]) -> list[Flag]:
    """The worse flag of each sample's two arms."""
    prompts = [s.prompt_tokens for s in samples]
    arms = [outliers(paces(traces, prompts)) for traces in ([s.baseline for s in samples], [s.method for s in samples])]
    return [max(pair, key=("", "mild", "severe").index) for pair in zip(*arms, strict=True)]


def paces(traces: Sequence[Trace], prompt_tokens: Sequence[int]) -> list[float]:
    """Seconds per round of each trace, relative to the expected at its context length; NaN if not measured.

    The expected value is a straight line through the logarithms (Theil and Sen). Long prompts are slower:
    data sorted by length would look like drift, and two kinds of prompts like bimodal times. Updates of a
    draft that learns are left out: they fall on few prompts.
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


def drift(values: Sequence[float]) -> tuple[float, float]:
    """The growth of times from the first to the last measurement: slope of Theil and Sen, p of Kendall's τ."""
    logs = _logs(values)
    turns = _thinned(np.flatnonzero(np.isfinite(logs)))
    if turns.size < 3:
        return math.nan, math.nan
    if np.ptp(logs[turns]) < LEAST_SPREAD:
        return 0.0, 1.0
    from scipy.stats import kendalltau  # scipy.stats takes 0.4 s, and most commands do not need it

    grown = _slope(logs[turns], turns) * (turns[-1] - turns[0])
    return math.expm1(grown), float(kendalltau(turns, logs[turns]).pvalue)


def bimodality(values: Sequence[float]) -> float:
    """Sarle's coefficient of the logarithms with the correction for few values (Pfister and others 2013).

    Between 0 and 1; NaN below ten values, or if all are within about 1 %. Severe outliers are left out: a
    single one makes any sample look skewed, which is not bimodality.
    """
    flagged = outliers(values)
    logs = _logs([value for value, flag in zip(values, flagged, strict=True) if flag != "severe"])
    logs = logs[np.isfinite(logs)]
    n = logs.size
    if n < FEWEST_VALUES or logs.std() < SAME_SPREAD:
        return math.nan
    from scipy.stats import kurtosis, skew

    skewness, excess = skew(logs, bias=False), kurtosis(logs, bias=False)
    return float((skewness**2 + 1) / (excess + 3 * (n - 1) ** 2 / ((n - 2) * (n - 3))))


def warned(row: Mapping[str, Any], samples: int, threads: int | None) -> Iterator[Fault]:
    """Notes on the numbers of `diagnose`, with remedies. Thresholds: see the module. NaN gives no warning."""
    names = ("outliers", "drift", "drift_p", "bimodality", "load_average")
    odd, drift, p, groups, load = (row[name] for name in names)
    if abs(drift) >= DRIFT_SHARE and p < DRIFT_P:
        way = "slowed down" if drift > 0 else "became faster"
        note = (
            f"the machine {way} by {abs(drift):.0%} during the run (p {p:.1g}): speedups hold, "
            "because both arms shared every moment; tokens per second do not. Repeat once it is warm and quiet"
        )
        yield Fault("drift", abs(drift), note, "")
    if groups > TWO_GROUPS:
        note = (
            f"baseline times fall into two groups (bimodality {groups:.2f}): another process or a changing "
            "clock frequency. Intervals are wider than they need be; repeat on a quiet machine, or with --repeat 3"
        )
        yield Fault("two groups", groups, note, "")
    if odd > max(SOME, OFTEN * samples):
        note = (
            f"{odd} of {samples} samples are outliers in time: all are counted. Look at them in samples.csv "
            "(column outlier) before you trust the last digits"
        )
        yield Fault("outliers", odd, note, "")
    if load is not None and busy(load, threads):
        note = (
            f"load average {load:.1f} on {counted(threads or 0, 'thread')}: other processes slowed both "
            "arms, not always equally; repeat on a quiet machine"
        )
        yield Fault(LOAD, load, note, "")


def busy(load: float | None, threads: float | None) -> bool:
    """Whether other programs were running, as far as is known.

    The load includes the threads of this run: an idle machine has these, and occasionally a short-lived process.
    """
    return load is not None and threads is not None and load > threads + BRIEF


def other_load(before: Row, now: Row) -> Iterator[str]:
    """Load from other programs in only one of two runs, or much more of it."""
    old, new = (number_in(row, "load_average") for row in (before, now))
    if old is None or new is None or abs(new - old) <= ONE_MORE:
        return
    for row, load in ((now, new), (before, old)):
        threads = number_in(row, "threads")
        if busy(load, threads):
            yield f"load {new:.1f} on {counted(int(threads or 0), 'thread')} against {old:.1f}"


def crowd(load: float, threads: int, others: str) -> str:
    """The consequence of `busy` for a run in progress; `others`: the programs running now, if any."""
    found = f"load {load:.1f} on {counted(threads, 'thread')}"
    if others:
        return f"{found}: other programs run ({others}), so results will be PROVISIONAL; stop them, or go on"
    return f"{found} in the last minute: results will be PROVISIONAL; wait for a quiet machine, or go on"


def _logs(values: Sequence[float] | Numbers) -> Numbers:
    """Logarithms; NaN for invalid times (zero, negative, NaN, infinite)."""
    numbers = np.asarray(values, dtype=float)
    good = np.isfinite(numbers) & (numbers > 0)
    return np.where(good, np.log(np.where(good, numbers, 1.0)), math.nan)


def _slope(logs: Numbers, where: NDArray[Any]) -> float:
    """The median of the slopes of all pairs (Theil and Sen)."""
    from scipy.stats import theilslopes

    with np.errstate(invalid="ignore"):  # from the slope's interval, which is not used, for equal values
        return float(theilslopes(logs, where).slope)


def _thinned(places: NDArray[np.intp]) -> NDArray[np.intp]:
    """At most 500 of them, evenly spread: slopes use all pairs."""
    return places[:: -(-places.size // PAIRS_OF) or 1]


# --- clocks, throttling, steal ----------------------------------------------------------------------------------------


def steadiness(samples: Sequence[Sample]) -> dict[str, Any]:
    """The columns of results.csv about the pace of the machine, over the decodes of both arms; None if unknown.

    …mhz: median clocks; …clock_fall: 1 − 10th ÷ 90th percentile. cpu_steal: stolen ÷ wanted processor time.
    Highest temperature, median power, lowest power limit. gpu_throttled: share of decodes after which clocks
    were throttled; gpu_throttle_reasons: all causes, in words. Samples decoded together count as one.
    """
    readings = [reading for sample in samples for reading in sample.readings]

    def known(value: Callable[[Reading], float | None]) -> list[float]:
        return [found for found in map(value, readings) if found is not None]

    cpu, gpu, memory = known(lambda r: r.cpu_mhz), known(lambda r: r.gpu_mhz), known(lambda r: r.gpu_memory_mhz)
    wanted = math.fsum(known(lambda r: r.cpu_wanted))
    bits = [r.gpu_reasons for r in readings if r.gpu_reasons is not None]
    return {
        "cpu_mhz": median(cpu),
        "cpu_clock_fall": fall(cpu),
        "cpu_steal": math.fsum(known(lambda r: r.cpu_stolen)) / wanted if wanted >= LEAST_WANTED else None,
        "gpu_mhz": median(gpu),
        "gpu_clock_fall": fall(gpu),
        "gpu_memory_mhz": median(memory),
        "gpu_memory_clock_fall": fall(memory),
        "gpu_celsius": max(known(lambda r: r.gpu_celsius), default=None),
        "gpu_watts": median(known(lambda r: r.gpu_watts)),
        "gpu_watts_limit": min(known(lambda r: r.gpu_watts_limit), default=None),
        "gpu_throttled": ratio(sum(bool(machine.throttle_reasons(one)) for one in bits), len(bits)) if bits else None,
        "gpu_throttle_reasons": ", ".join(machine.throttle_reasons(reduce(or_, bits))) if bits else None,
    }


def median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None


def fall(clocks: Sequence[float]) -> float | None:
    """The relative difference of low and high clocks; None for fewer than two."""
    if len(clocks) < 2:
        return None
    low, high = np.quantile(clocks, [LOW, HIGH], method="nearest").tolist()
    return 1 - ratio(low, high) if high else None


def faults(row: Row) -> Iterator[Fault]:
    """Instabilities while a cell was measured, from its row of results.csv, as numbers or as text."""
    yield from fallen(row, "gpu", GPU_FALL, "the clock of the GPU", LOCKED)
    yield from fallen(row, "gpu_memory", GPU_FALL, "the clock of the GPU's memory", LOCKED)
    yield from fallen(row, "cpu", CPU_FALL, "the clock of the processor", COOLED)
    yield from throttled(row)
    share = number_in(row, "cpu_steal") or 0.0
    if share > STOLEN:
        taken = f"{share:.1%} of the requested processor time went to other virtual machines (steal)"
        advice = "both arms lost some, not always equally; repeat at another time, or on a machine of your own"
        yield Fault("steal", share, f"{taken}: {advice}", f"while {taken}")
    yield from slow_baseline(row)
    if why := text_in(row, "tier_refused"):
        note = (
            f"{why}: all arms ran in tier eager, and Python is part of every number; --tier eager is this by intention"
        )
        yield Fault(TIER, 1.0, note, "all arms ran in tier eager, because the tier that auto chose failed")


def fallen(row: Row, part: str, most: float, what: str, advice: str) -> Iterator[Fault]:
    """A clock that fell between decodes."""
    share, clock = number_in(row, f"{part}_clock_fall") or 0.0, number_in(row, f"{part}_mhz") or 0.0
    if share > most:
        fell = f"{what} fell by {share:.0%} between decodes"
        said = f"{fell} (median {clock:,.0f} MHz): tokens per second are of several clocks, and the arms of a prompt"
        yield Fault(f"{part} clock", share, f"{said} may not have had the same; {advice}", f"while {fell}")


def throttled(row: Row) -> Iterator[Fault]:
    """A GPU with throttled clocks. If it always is, as at a low power limit, that is its normal speed."""
    share, why = number_in(row, "gpu_throttled") or 0.0, text_in(row, "gpu_throttle_reasons")
    if share > THROTTLED:
        said = f"the GPU was throttled in {share:.0%} of the decodes ({why})"
        often = share < 1 - THROTTLED
        yield Fault("throttled", share, f"{said}: it is faster with more power or less heat", f"while {said}" * often)


def slow_baseline(row: Row) -> Iterator[Fault]:
    """A baseline step slower than a round without its draft: then part of the speedup is due to the baseline.

    Requests with arrival times wait for each other, which a round does not show.
    """
    v, high, speedup, tokens = (number_in(row, name) for name in ("v", "v_high", "speedup", "tokens_per_round"))
    if number_in(row, "arrivals") is not None or not number_in(row, "k"):
        return
    if v and high is not None and high < 1:
        low = number_in(row, "v_low") or 0.0
        found, size = f"a verify pass took less time than a baseline step (v {v:.2f}, 95 % {low:.2f} – {high:.2f})", v
    elif speedup and tokens and speedup > tokens * (1 + RESOLVED):
        found, size = f"the speedup is above the tokens per round ({speedup:.2f} > {tokens:.2f})", tokens / speedup
    else:
        return
    advice = "the baseline was slower than it can be, and the speedup is too high; repeat on a quiet machine"
    yield Fault("slow baseline", 1 - size, f"{found}: {advice}", f"while {found}")


def other_pace(before: Row, now: Row) -> Iterator[str]:
    """Clocks, throttling and steal that differ between two runs, if known in both."""
    for name, (most, what) in {**CLOCKS, **SHARES}.items():
        old, new = number_in(before, name), number_in(now, name)
        if old is None or new is None:
            continue
        if name in SHARES and abs(new - old) > most:
            yield f"{what} {new:.1%} against {old:.1%}"
        if name in CLOCKS and abs(new - old) > most * old:
            yield f"{what} {new:,.0f} MHz against {old:,.0f}"


def worst(among: Iterable[Fault]) -> list[Fault]:
    """The worst of every kind of fault: cells share a machine, but are measured at different times."""
    found: dict[str, Fault] = {}
    for fault in among:
        if fault.kind not in found or fault.size > found[fault.kind].size:
            found[fault.kind] = fault
    return list(found.values())
