"""The machine: its free and peak memory, its threads, and the processes of a sharded network, as torchrun starts
them. All do the same; values that could differ (a draw, a time, free memory) are taken from the first."""

import ctypes
import math
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path, PurePosixPath
from threading import Thread
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from specbench.errors import SpecbenchError, UsageError

# --- free memory ------------------------------------------------------------------------------------------------------
# Limits of the machine, of its container, and of the shell.

NO_MEMORY_LIMIT = 1 << 60
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
V2 = ("memory.max", "memory.current", "inactive_file")


def free_memory(device: torch.device, root: Path = Path("/")) -> int | None:
    """Free bytes of a device; None if the system does not report them (it is not Linux)."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    machine = kilobytes(root / "proc/meminfo", "MemAvailable")  # free pages and files that can be read again
    known = [left for left in (machine, *contained(root), addressable(root)) if left is not None]
    return max(0, min(known)) if known else None


def resident(root: Path = Path("/")) -> int:
    """Bytes of this process's resident memory; 0 if the system does not report them."""
    return kilobytes(root / "proc/self/status", "VmRSS") or 0


def contained(root: Path) -> Iterator[int]:
    """The memory left by the control groups of this process, its own and all above it (version 2 or 1)."""
    for line in read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        folder, names = root / "sys/fs/cgroup" / ("memory" if controllers else ""), V1 if controllers else V2
        for group in (PurePosixPath(path), *PurePosixPath(path).parents):
            # A container sees its own group as the root of the tree, and often a path that does not exist.
            here = folder / str(group).lstrip("/")
            limit, used = read(here / names[0]), read(here / names[1])
            if limit.isdigit() and used.isdigit() and int(limit) < NO_MEMORY_LIMIT:
                stat = dict(line.split(maxsplit=1) for line in read(here / "memory.stat").splitlines())
                yield int(limit) - int(used) + int(stat.get(names[2], 0))  # without droppable files


def addressable(root: Path) -> int | None:
    """The memory left by `ulimit -v`; None without such a limit."""
    if sys.platform == "win32":
        return None
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    return limit - (kilobytes(root / "proc/self/status", "VmSize") or 0)


def kilobytes(file: Path, name: str) -> int | None:
    """A line such as `VmRSS: 1234 kB`, in bytes."""
    for line in read(file).splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return 1024 * int(value.split()[0])
    return None


def give_back() -> None:
    """Return freed memory to the system: glibc keeps free space between blocks that are still in use."""
    with suppress(OSError, AttributeError):  # only glibc has this
        ctypes.CDLL(None).malloc_trim(0)


# --- peak memory ------------------------------------------------------------------------------------------------------
# Linux resets the peak resident memory of a process to the present one on request (proc(5), clear_refs).

SET_BACK = "5"


@contextmanager
def watched(device: torch.device, root: Path = Path("/")) -> Iterator[Callable[[], tuple[int | None, int | None]]]:
    """Yields a function that returns the peak bytes on the device, None if that is the host, and on the host,
    None if unknown. The device's bytes are those of tensors: its allocator keeps memory when a method ends."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    known = set_back(root)

    def peak() -> tuple[int | None, int | None]:
        host = kilobytes(root / "proc/self/status", "VmHWM") if known else None
        return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None, host

    yield peak


def set_back(root: Path) -> bool:
    """Reset the peak resident memory to the present one; returns whether that succeeded."""
    try:
        (root / "proc/self/clear_refs").write_text(SET_BACK)
    except OSError:
        return False
    return True


# --- threads ----------------------------------------------------------------------------------------------------------
# One thread per physical core that this process may use. torch considers neither the CPU quota of a container nor,
# in every build, which processors share a core; with too many threads each pass waits for the slowest of them.

CHOSEN = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # set by the user: then nothing is changed
NO_THREAD_LIMIT = 2**31


def fit_threads() -> None:
    """Limit torch's threads to the available cores, unless the environment sets their number."""
    if not any(os.environ.get(name) for name in CHOSEN):
        torch.set_num_threads(min(torch.get_num_threads(), cores(processors())))


def processors() -> set[int]:
    """The processors on which this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def cores(allowed: set[int], root: Path = Path("/")) -> int:
    """The number of physical cores of the allowed processors, at most the CPU quota of the
    process; every processor counts as a core if the system does not report cores."""
    siblings = [root / f"sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list" for number in allowed]
    return max(1, min(len({read(file) or str(file) for file in siblings}), quota(root)))


def quota(root: Path) -> int:
    """The CPU quota of the container (control groups, version 2 or 1) as a whole number of processors."""
    folder = root / "sys/fs/cgroup"
    given, _, period = read(folder / "cpu.max").partition(" ")
    if not period:
        given, period = (read(folder / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    if not (given.isdigit() and period.isdigit()):
        return NO_THREAD_LIMIT  # "max", -1, or no control group
    return math.ceil(int(given) / int(period))


def read(path: Path) -> str:
    """The contents of a system file; empty if unreadable."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


# --- processes --------------------------------------------------------------------------------------------------------

T = TypeVar("T")
STARTED = "TORCHELASTIC_RUN_ID"  # set by torchrun
PATIENCE = timedelta(hours=2)  # one may read weights for long while the others wait


def started() -> int:
    """The number of processes that torchrun has started; 1 without torchrun."""
    return int(os.environ["WORLD_SIZE"]) if STARTED in os.environ else 1


def number() -> int:
    """The local rank of this process, which is the number of its GPU; 0 if there is one process."""
    return int(os.environ["LOCAL_RANK"]) if started() > 1 else 0


def joined() -> int:
    """World size."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def first() -> bool:
    """Whether this process is the one that decides, writes and prints."""
    return joined() == 1 or dist.get_rank() == 0


@contextmanager
def together() -> Iterator[None]:
    """Join the processes started by torchrun, if any. Only the first reports errors of a run."""
    if started() == 1:
        yield
        return
    join()
    try:
        yield
    except SpecbenchError as error:
        if first():
            raise
        raise SystemExit(error.exit_code) from None
    finally:
        dist.destroy_process_group()


def join() -> None:
    """Join the process group; each process takes the GPU of its rank."""
    if not torch.cuda.is_available():
        dist.init_process_group("gloo", timeout=PATIENCE)
        return
    if number() >= torch.cuda.device_count():
        raise UsageError(f"torchrun started {started()} processes for {torch.cuda.device_count()} GPUs: start fewer")
    torch.cuda.set_device(number())
    dist.init_process_group("cpu:gloo,cuda:nccl", timeout=PATIENCE)


def agreed(value: T) -> T:
    """The first process's value, which replaces those of all others."""
    if joined() == 1:
        return value
    found = [value]
    dist.broadcast_object_list(found, src=0, device=torch.device("cpu"))
    return found[0]


def decided(decision: Tensor) -> Tensor:
    """The decisions of the first process, of whatever shape, in place of those of each."""
    if joined() > 1:
        decision = decision.contiguous()
        dist.broadcast(decision, src=0)
    return decision


def end_with_parent() -> None:
    """End this process as soon as its parent ends; a thread waits for the system's event."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        assert parent is not None
        parent.join()
        os._exit(1)

    if parent is not None:
        Thread(target=wait, daemon=True).start()
