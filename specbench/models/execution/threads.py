"""How many threads a CPU should compute with: one for every physical core that this process may use.

torch asks neither how much time a container is given nor, in every build, which processors share a core; two threads on
one core, or more threads than there is time for, make each pass wait for the slowest of them.
"""

import math
import os
from pathlib import Path

import torch

CHOSEN = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # set by the user: then nothing is changed
UNLIMITED = 2**31


def fit_threads() -> None:
    """Let torch use no more threads than there are cores for it, unless the environment gives their number."""
    if not any(os.environ.get(name) for name in CHOSEN):
        torch.set_num_threads(min(torch.get_num_threads(), cores(processors())))


def processors() -> set[int]:
    """The processors on which this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def cores(allowed: set[int], root: Path = Path("/")) -> int:
    """How many physical cores the allowed processors have, and no more than the process is given the time of.

    Where the system does not say (it is not Linux), every processor counts as a core.
    """
    siblings = [root / f"sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list" for number in allowed]
    return max(1, min(len({read(file) or str(file) for file in siblings}), quota(root)))


def quota(root: Path) -> int:
    """The processors whose time the container is given (control groups, version 2 or 1), as a whole number."""
    folder = root / "sys/fs/cgroup"
    given, _, period = read(folder / "cpu.max").partition(" ")
    if not period:
        given, period = (read(folder / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    if not (given.isdigit() and period.isdigit()):
        return UNLIMITED  # "max", -1, or no control group
    return math.ceil(int(given) / int(period))


def read(path: Path) -> str:
    """The contents of a file of the system; empty where it cannot be read."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
