"""The memory that this process has at most while something is done, on its device and of its machine.

Knows the system and the device; must not know what is done. A process's highest resident memory never falls by itself,
but Linux sets it back to what there is now when asked to (proc(5), clear_refs).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from specbench.models.execution.free_memory import kilobytes

SET_BACK = "5"


@contextmanager
def watched(device: torch.device, root: Path = Path("/")) -> Iterator[Callable[[], tuple[int | None, int | None]]]:
    """Yields what gives the bytes on the device, None where that is the host, and on the host, None where nobody knows.

    It takes microseconds before and after what is done, and nothing meanwhile. The device's are those of tensors: what
    its allocator keeps for later does not fall when a method ends, so it is none's.
    """
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
