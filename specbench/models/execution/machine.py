"""The machine: its free and highest memory, its threads, and processes that compute one network together, as
torchrun starts them. All do the same; what could differ (a drawn number, a time, free memory) is that of the first.
"""

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
# Of the machine, of its container, of the limits of a shell.

NO_MEMORY_LIMIT = 1 << 60
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
V2 = ("memory.max", "memory.current", "inactive_file")


def free_memory(device: torch.device, root: Path = Path("/")) -> int | None:
    """Bytes that can still be had on a device; None where the system does not say (it is not Linux)."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    machine = kilobytes(root / "proc/meminfo", "MemAvailable")  # free pages and files that can be read again
    known = [left for left in (machine, *contained(root), addressable(root)) if left is not None]
    return max(0, min(known)) if known else None


def resident(root: Path = Path("/")) -> int:
    """Bytes of the machine's memory that this process has now; 0 where the system does not say."""
    return kilobytes(root / "proc/self/status", "VmRSS") or 0


def contained(root: Path) -> Iterator[int]:
    """What the control groups of this process leave, its own and all above it (version 2 or 1)."""
    for line in read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        folder = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        for group in (PurePosixPath(path), *PurePosixPath(path).parents):
            # A container sees its own group as the root of the tree, and often a path that is not there.
            yield from left_in(folder / str(group).lstrip("/"), V1 if controllers else V2)


def left_in(folder: Path, names: tuple[str, str, str]) -> Iterator[int]:
    """What a control group leaves: its limit less what it uses, without the files that it could drop."""
    limit, used = read(folder / names[0]), read(folder / names[1])
    if limit.isdigit() and used.isdigit() and int(limit) < NO_MEMORY_LIMIT:
        stat = dict(line.split(maxsplit=1) for line in read(folder / "memory.stat").splitlines())
        yield int(limit) - int(used) + int(stat.get(names[2], 0))


def addressable(root: Path) -> int | None:
    """What `ulimit -v` leaves; None without such a limit."""
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
    """Give memory that was freed back to the system: glibc keeps what lies between blocks that are still in use."""
    with suppress(OSError, AttributeError):  # no other C library has this
        ctypes.CDLL(None).malloc_trim(0)


# --- peak memory ------------------------------------------------------------------------------------------------------
# Linux sets the highest resident memory of a process back to the present one when asked to (proc(5), clear_refs).

SET_BACK = "5"


@contextmanager
def watched(device: torch.device, root: Path = Path("/")) -> Iterator[Callable[[], tuple[int | None, int | None]]]:
    """Yields what gives the bytes on the device, None where that is the host, and on the host, None where
    nobody knows. The device's are those of tensors: what its allocator keeps does not fall when a method ends."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    known = set_back(root)

    def peak() -> tuple[int | None, int | None]:
        host = kilobytes(root / "proc/self/status", "VmHWM") if known else None
        return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None, host

    yield peak


def set_back(root: Path) -> bool:
    """Make the highest resident memory the present one; whether that could be done."""
    try:
        (root / "proc/self/clear_refs").write_text(SET_BACK)
    except OSError:
        return False
    return True


# --- threads ----------------------------------------------------------------------------------------------------------
# One for every physical core that this process may use. torch asks neither how much time a container is given nor,
# in every build, which processors share a core; with too many threads each pass waits for the slowest of them.

CHOSEN = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # set by the user: then nothing is changed
NO_THREAD_LIMIT = 2**31


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
    """How many physical cores the allowed processors have, and no more than the process
    is given the time of; every processor counts as a core where the system does not say."""
    siblings = [root / f"sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list" for number in allowed]
    return max(1, min(len({read(file) or str(file) for file in siblings}), quota(root)))


def quota(root: Path) -> int:
    """The processors whose time the container is given (control groups, version 2 or 1), as a whole number."""
    folder = root / "sys/fs/cgroup"
    given, _, period = read(folder / "cpu.max").partition(" ")
    if not period:
        given, period = (read(folder / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    if not (given.isdigit() and period.isdigit()):
        return NO_THREAD_LIMIT  # "max", -1, or no control group
    return math.ceil(int(given) / int(period))


def read(path: Path) -> str:
    """The contents of a file of the system; empty where it cannot be read."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


# --- processes --------------------------------------------------------------------------------------------------------

T = TypeVar("T")
STARTED = "TORCHELASTIC_RUN_ID"  # torchrun tells its processes
PATIENCE = timedelta(hours=2)  # one may read weights for long while the others wait


def started() -> int:
    """How many processes torchrun has started; 1 where it has started none."""
    return int(os.environ["WORLD_SIZE"]) if STARTED in os.environ else 1


def number() -> int:
    """The number of this process on its machine, which is that of its GPU; 0 where there is one process."""
    return int(os.environ["LOCAL_RANK"]) if started() > 1 else 0


def joined() -> int:
    """How many processes compute together with this one, itself included."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def first() -> bool:
    """Whether this process is the one that decides, writes and prints."""
    return joined() == 1 or dist.get_rank() == 0


@contextmanager
def together() -> Iterator[None]:
    """Join the processes that torchrun has started, if any. What is wrong with a run, the first one alone says."""
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
    """Meet the other processes; each takes the GPU of its number."""
    if not torch.cuda.is_available():
        dist.init_process_group("gloo", timeout=PATIENCE)
        return
    if number() >= torch.cuda.device_count():
        raise UsageError(f"torchrun started {started()} processes for {torch.cuda.device_count()} GPUs: start fewer")
    torch.cuda.set_device(number())
    dist.init_process_group("cpu:gloo,cuda:nccl", timeout=PATIENCE)


def agreed(value: T) -> T:
    """What the first process says of a value that each of them has."""
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
    """End this process at once when the one that started it has ended; a thread waits for the system's event."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        assert parent is not None
        parent.join()
        os._exit(1)

    if parent is not None:
        Thread(target=wait, daemon=True).start()
