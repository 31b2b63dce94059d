"""Reads the machine right after an arm has decoded: the processor from files of the system, a GPU through NVML.

What a system does not tell stays None, and nothing here raises: a reading is worth less than the measurement.
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
LISTED = 64  # processors up to which /proc/cpuinfo is read: it takes some 0.05 ms for each
LAST_RAN_ON = 36  # field 39 of /proc/thread-self/stat (proc(5)), counted after the name, which is field 2
IDLE = (3, 4)  # in the first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal, guest …
STEAL, GUEST = 7, 8  # time of guests is part of that of users


@dataclass(frozen=True)
class Times:
    """Processor time of the whole machine since it began, in ticks:
    asked for by anybody, and of it stolen by the hypervisor."""

    wanted: int
    stolen: int


class ReadsGpu(Protocol):
    """A GPU that can be read."""

    def state(self) -> Reading: ...


@dataclass(frozen=True)
class Sensors:
    """What is read around every decode. gpu: None where there is none, or it cannot be read;
    remark: what a user should know about that, or nothing. root: where the files of the system are."""

    gpu: ReadsGpu | None = None
    remark: str = ""
    root: Path | None = Path("/")

    def begin(self) -> Times | None:
        """To be called before a decode."""
        return None if self.root is None else times(self.root)

    def end(self, before: Times | None) -> Reading:
        """What the machine says after a decode. The clocks first: they fall as soon as nothing runs."""
        found = UNREAD if self.gpu is None else self.gpu.state()
        if self.root is None:
            return found
        found, now = replace(found, cpu_mhz=clock(self.root)), times(self.root)
        if before is None or now is None:
            return found
        stolen = max(now.stolen - before.stolen, 0)  # it can go backwards when a machine has moved to another host
        wanted, second = max(now.wanted - before.wanted, stolen), os.sysconf("SC_CLK_TCK")
        return replace(found, cpu_wanted=wanted / second, cpu_stolen=stolen / second)


NO_SENSORS = Sensors(root=None)


def sensors_for(device: torch.device) -> Sensors:
    """What can be read of this machine while `device` computes."""
    if device.type != "cuda" or torch.version.cuda is None:
        return Sensors()
    if not machine.installed():
        return Sensors(remark=f"clocks, power and temperature of the GPU are not recorded: {names.install(EXTRA)}")
    gpu = gpu_of(device)
    unread = "clocks, power and temperature of the GPU are not recorded: NVML does not answer for it (try nvidia-smi)"
    return Sensors(gpu, "" if gpu else unread)


def told(question: Callable[[], T]) -> T | None:
    """What a file of the system says; None where there is no such file, or it says something else."""
    try:
        return question()
    except (OSError, ValueError, IndexError):
        return None


def times(root: Path) -> Times | None:
    """The first line of /proc/stat; None where the system has none."""
    return told(lambda: counted_times((root / "proc/stat").read_text(encoding="ascii", errors="replace")))


def counted_times(text: str) -> Times:
    name, *fields = text.partition("\n")[0].split()
    ticks = [int(field) for field in fields]
    if name != "cpu" or len(ticks) <= STEAL:
        raise ValueError("not the times of all processors")
    return Times(sum(ticks[:GUEST]) - sum(ticks[place] for place in IDLE), ticks[STEAL])


def clock(root: Path) -> float | None:
    """MHz of the processor that this thread runs on: it has just worked. Others may be idle, and slow for that."""
    here = told(lambda: processor((root / "proc/thread-self/stat").read_text(encoding="utf-8", errors="replace")))
    if here is None:
        return None
    file = root / f"sys/devices/system/cpu/cpu{here}/cpufreq/scaling_cur_freq"
    khz = told(lambda: int(file.read_text(encoding="ascii")))
    return khz / 1000 if khz is not None else told(lambda: listed_clock(root / "proc/cpuinfo", here))


def processor(text: str) -> int:
    """The processor that a thread ran on last. Its name, which may hold brackets, ends at the last one."""
    return int(text.rpartition(")")[2].split()[LAST_RAN_ON])


def listed_clock(file: Path, number: int) -> float | None:
    """What /proc/cpuinfo says; in a virtual machine, which has no other file for it, that may be the nominal clock."""
    if (os.cpu_count() or 1) > LISTED:
        return None
    text = file.read_text(encoding="utf-8", errors="replace")
    found = re.search(rf"^processor\s*: {number}$.*?^cpu MHz\s*: ([\d.]+)$", text, re.MULTILINE | re.DOTALL)
    return float(found[1]) if found else None
