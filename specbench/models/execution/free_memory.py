"""How much memory a device has left for this process: of the machine, of its container, of the limits of a shell.

Knows the system and the device; must not know what the memory is for.
"""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

import torch

from specbench.models.execution.threads import read

UNLIMITED = 1 << 60
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
V2 = ("memory.max", "memory.current", "inactive_file")


def free_memory(device: torch.device, root: Path = Path("/")) -> int | None:
    """Bytes that can still be had on a device; None where the system does not say (it is not Linux)."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    known = [left for left in (available(root), *contained(root), addressable(root)) if left is not None]
    return max(0, min(known)) if known else None


def resident(root: Path = Path("/")) -> int:
    """Bytes of the machine's memory that this process has now; 0 where the system does not say."""
    return kilobytes(root / "proc/self/status", "VmRSS") or 0


def available(root: Path) -> int | None:
    """What the machine can give without swapping: free pages and files that can be read again."""
    return kilobytes(root / "proc/meminfo", "MemAvailable")


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
    if limit.isdigit() and used.isdigit() and int(limit) < UNLIMITED:
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
