"""Read the machine right after an arm has decoded: the processor from system files, a GPU through NVML.

Unavailable values are None, and nothing here raises: a reading must not disturb the measurement.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

import torch

from specbench.models.checkpoints import names
from specbench.results import machine
from specbench.results.machine import UNREAD, Reading, gpu_of

T = TypeVar("T")
EXTRA = "gpu"
LISTED = 64  # largest number of processors for reading /proc/cpuinfo, at about 0.05 ms each
LAST_RAN_ON = 36  # field 39 of /proc/thread-self/stat (proc(5)), counted after the name, which is field 2
IDLE = (3, 4)  # in the first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal, guest …
STEAL, GUEST = 7, 8  # guest time is part of user time


@dataclass(frozen=True)
class Times:
    """Processor time of the whole machine since boot, in ticks: total demand, and the part stolen by the hypervisor."""

    wanted: int
    stolen: int


class ReadsGpu(Protocol):
    def state(self) -> Reading: ...


@dataclass(frozen=True)
class Sensors:
    """Sensors around every decode. gpu: None if unreadable; remark: a note on that; root: of the system's files."""

    gpu: ReadsGpu | None = None
    remark: str = ""
    root: Path | None = Path("/")

    def begin(self) -> Times | None:
        """Start a reading, before a decode."""
        return None if self.root is None else times(self.root)

    def end(self, before: Times | None) -> Reading:
        """The reading after a decode. Clocks come first: they fall as soon as nothing runs."""
        found = UNREAD if self.gpu is None else self.gpu.state()
        if self.root is None:
            return found
        found, now = replace(found, cpu_mhz=clock(self.root)), times(self.root)
        if before is None or now is None:
            return found
        stolen = max(now.stolen - before.stolen, 0)  # it can decrease after the machine moves to another host
        wanted, second = max(now.wanted - before.wanted, stolen), os.sysconf("SC_CLK_TCK")
        return replace(found, cpu_wanted=wanted / second, cpu_stolen=stolen / second)


NO_SENSORS = Sensors(root=None)


def sensors_for(device: torch.device) -> Sensors:
    """The sensors available while `device` computes."""
    if device.type != "cuda" or torch.version.cuda is None:
        return Sensors()
    if not machine.installed():
        return Sensors(remark=f"clocks, power and temperature of the GPU are not recorded: {names.install(EXTRA)}")
    gpu = gpu_of(device)
    unread = "clocks, power and temperature of the GPU are not recorded: NVML does not answer for it (try nvidia-smi)"
    return Sensors(gpu, "" if gpu else unread)


def readable(question: Callable[[], T]) -> T | None:
    """The answer from a system file; None if it is missing or has another format."""
    try:
        return question()
    except (OSError, ValueError, IndexError):
        return None


def times(root: Path) -> Times | None:
    """The first line of /proc/stat; None if missing."""
    return readable(lambda: counted_times((root / "proc/stat").read_text(encoding="ascii", errors="replace")))


def counted_times(text: str) -> Times:
    name, *fields = text.partition("\n")[0].split()
    ticks = [int(field) for field in fields]
    if name != "cpu" or len(ticks) <= STEAL:
        raise ValueError("not the times of all processors")
    return Times(sum(ticks[:GUEST]) - sum(ticks[place] for place in IDLE), ticks[STEAL])


def clock(root: Path) -> float | None:
    """MHz of the processor that this thread runs on: it was just busy. Others may be idle, and therefore slow."""
    here = readable(lambda: processor((root / "proc/thread-self/stat").read_text(encoding="utf-8", errors="replace")))
    if here is None:
        return None
    file = root / f"sys/devices/system/cpu/cpu{here}/cpufreq/scaling_cur_freq"
    khz = readable(lambda: int(file.read_text(encoding="ascii")))
    return khz / 1000 if khz is not None else readable(lambda: listed_clock(root / "proc/cpuinfo", here))


def processor(text: str) -> int:
    """The processor that a thread ran on last. The thread name may contain brackets; it ends at the last one."""
    return int(text.rpartition(")")[2].split()[LAST_RAN_ON])


def listed_clock(file: Path, number: int) -> float | None:
    """The clock in /proc/cpuinfo; in a virtual machine, which has no other source, that may be the nominal clock."""
    if (os.cpu_count() or 1) > LISTED:
        return None
    text = file.read_text(encoding="utf-8", errors="replace")
    found = re.search(rf"^processor\s*: {number}$.*?^cpu MHz\s*: ([\d.]+)$", text, re.MULTILINE | re.DOTALL)
    return float(found[1]) if found else None
