"""Whether the machine kept its pace: clocks, what throttled those of a GPU, stolen processor time, a slow baseline.

Knows readings of samples, and the columns of results.csv that sum them up; must not know how they are read or shown.
It changes no number, and what is unknown warns of nothing. A clock is read in one moment of a decode, so one reading in
ten may be odd: a fall is that from the 90th to the 10th percentile.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

import numpy as np

from specbench.metrics import ratio
from specbench.results import nvml
from specbench.results.readings import Reading
from specbench.results.samples import Sample
from specbench.wording import Row, number_in, text_in

LOW, HIGH = 0.1, 0.9
GPU_FALL = 0.1  # GPUs change their clock in steps below 1 %, and by some 5 % as they warm up
CPU_FALL = 0.15  # the fastest cores of a processor are up to a tenth faster than its others, and threads move
STOLEN = 0.02  # of the time asked for: all threads wait for the one that was robbed, so a pass loses more than that
LEAST_WANTED = 5.0  # seconds: the system counts in hundredths, and ten of them are the least that is a share of 2 %
THROTTLED = 0.05  # of the decodes: one in twenty is no more than an outlier, of which there is a note of its own
RESOLVED = 0.01  # of a speedup: less than that is within the noise of a clock
LOCKED = "fix it low enough for the limits of power and heat (nvidia-smi --lock-gpu-clocks)"
# By how much two runs may differ whose seconds are compared: clocks in a share of themselves, shares in points.
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
COOLED = "repeat on a machine that is cool, on mains, and does nothing else"


@dataclass(frozen=True)
class Steadiness:
    """The columns of results.csv about the pace of the machine, over the decodes of both arms; None: it is unknown.

    …mhz: median clocks; …clock_fall: 1 − 10th ÷ 90th percentile. cpu_steal: stolen ÷ wanted processor time. Highest
    temperature, median power, lowest limit of power. gpu_throttled: share of the decodes after which something held the
    clocks down; gpu_throttle_reasons: all that did, in words.
    """

    cpu_mhz: float | None
    cpu_clock_fall: float | None
    cpu_steal: float | None
    gpu_mhz: float | None
    gpu_clock_fall: float | None
    gpu_memory_mhz: float | None
    gpu_memory_clock_fall: float | None
    gpu_celsius: float | None
    gpu_watts: float | None
    gpu_watts_limit: float | None
    gpu_throttled: float | None
    gpu_throttle_reasons: str | None


@dataclass(frozen=True)
class Fault:
    """Something that did not stay as it was. size: how bad it is, among faults of its kind; note: what a reader of the
    numbers must know, and do; doubt: why an answer is provisional for it, empty where it need not be."""

    kind: str
    size: float
    note: str
    doubt: str


def steadiness(samples: Sequence[Sample]) -> Steadiness:
    """The pace of the machine while a cell was measured; samples that were decoded together are given as one."""
    readings = [reading for sample in samples for reading in sample.readings]

    def known(value: Callable[[Reading], float | None]) -> list[float]:
        return [found for found in map(value, readings) if found is not None]

    cpu, gpu, memory = known(lambda r: r.cpu_mhz), known(lambda r: r.gpu_mhz), known(lambda r: r.gpu_memory_mhz)
    bits = [r.gpu_reasons for r in readings if r.gpu_reasons is not None]
    return Steadiness(
        cpu_mhz=median(cpu),
        cpu_clock_fall=fall(cpu),
        cpu_steal=steal(known(lambda r: r.cpu_stolen), known(lambda r: r.cpu_wanted)),
        gpu_mhz=median(gpu),
        gpu_clock_fall=fall(gpu),
        gpu_memory_mhz=median(memory),
        gpu_memory_clock_fall=fall(memory),
        gpu_celsius=max(known(lambda r: r.gpu_celsius), default=None),
        gpu_watts=median(known(lambda r: r.gpu_watts)),
        gpu_watts_limit=min(known(lambda r: r.gpu_watts_limit), default=None),
        gpu_throttled=ratio(sum(bool(nvml.reasons(one)) for one in bits), len(bits)) if bits else None,
        gpu_throttle_reasons=", ".join(nvml.reasons(reduce(or_, bits))) if bits else None,
    )


def median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None


def fall(clocks: Sequence[float]) -> float | None:
    """By what share the low clocks lie below the high ones; None for fewer than two."""
    if len(clocks) < 2:
        return None
    low, high = np.quantile(clocks, [LOW, HIGH], method="nearest").tolist()
    return 1 - ratio(low, high) if high else None


def steal(stolen: Sequence[float], wanted: Sequence[float]) -> float | None:
    """The share of the processor time that was stolen; None where there was too little of it to tell."""
    total = math.fsum(wanted)
    return math.fsum(stolen) / total if total >= LEAST_WANTED else None


def faults(row: Row) -> Iterator[Fault]:
    """What did not stay as it was while a cell was measured, from its row of results.csv, as numbers or as text."""
    yield from fallen(row, "gpu", GPU_FALL, "the clock of the GPU", LOCKED)
    yield from fallen(row, "gpu_memory", GPU_FALL, "the clock of the GPU's memory", LOCKED)
    yield from fallen(row, "cpu", CPU_FALL, "the clock of the processor", COOLED)
    yield from throttled(row)
    yield from stolen_from(row)
    yield from slow_baseline(row)


def fallen(row: Row, part: str, most: float, what: str, advice: str) -> Iterator[Fault]:
    """A clock that fell between decodes."""
    share, clock = number_in(row, f"{part}_clock_fall") or 0.0, number_in(row, f"{part}_mhz") or 0.0
    if share > most:
        fell = f"{what} fell by {share:.0%} between decodes"
        said = f"{fell} (median {clock:,.0f} MHz): tokens per second are of several clocks, and the arms of a prompt"
        yield Fault(f"{part} clock", share, f"{said} may not have had the same; {advice}", f"while {fell}")


def throttled(row: Row) -> Iterator[Fault]:
    """A GPU whose clocks were held down. Where they always are, as at a low limit of power, that is what it can do."""
    share, why = number_in(row, "gpu_throttled") or 0.0, text_in(row, "gpu_throttle_reasons")
    if share > THROTTLED:
        said = f"the GPU was throttled in {share:.0%} of the decodes ({why})"
        often = share < 1 - THROTTLED
        yield Fault("throttled", share, f"{said}: it is faster with more power or less heat", f"while {said}" * often)


def stolen_from(row: Row) -> Iterator[Fault]:
    """A virtual machine whose processors were given to others."""
    share = number_in(row, "cpu_steal") or 0.0
    if share > STOLEN:
        taken = f"{share:.1%} of the processor time that was asked for went to other virtual machines (steal)"
        advice = "both arms lost some, not always equally; repeat at another time, or on a machine of your own"
        yield Fault("steal", share, f"{taken}: {advice}", f"while {taken}")


def slow_baseline(row: Row) -> Iterator[Fault]:
    """A baseline whose step takes longer than a round without its draft: then the speedup is partly the baseline's.

    Requests that come at times of their own wait for each other, which a round does not show.
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
    """Clocks, throttling and steal that were not the same in two runs, as far as both are known."""
    for name, (most, what) in {**CLOCKS, **SHARES}.items():
        old, new = number_in(before, name), number_in(now, name)
        if old is None or new is None:
            continue
        if name in SHARES and abs(new - old) > most:
            yield f"{what} {new:.1%} against {old:.1%}"
        if name in CLOCKS and abs(new - old) > most * old:
            yield f"{what} {new:,.0f} MHz against {old:,.0f}"


def worst(among: Iterable[Fault]) -> list[Fault]:
    """Of every kind of fault the worst: cells share a machine, but not every moment of it."""
    found: dict[str, Fault] = {}
    for fault in among:
        if fault.kind not in found or fault.size > found[fault.kind].size:
            found[fault.kind] = fault
    return list(found.values())
