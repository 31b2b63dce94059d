"""The state of the simulated device: what waits in its queue, and what the ledger counts."""

import sys
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

ELSEWHERE = "elsewhere"


class SimulatedError(RuntimeError):
    """What CUDA would refuse, or read from memory that is no longer the same."""


@dataclass
class Machine:
    """One simulated host with `count` GPUs, whose work is one queue, in order.

    waits: how often the host waited, by what made it wait and by the line of specbench that did. launches: kernels by
    operator, replayed ones included. scalars: CPU tensors without dimensions among the operands of a kernel, by
    operator and line: CUDA takes them, a compiled round does not.

    Kernels are executed at once. Late are only copies to pinned memory, so that a host which reads them without
    waiting reads what was there before: `_late` has their place in the queue, the memory, and what it will hold.
    """

    count: int = 1
    current: int = 0
    capturing: Any = None  # the graph
    waits: Counter[tuple[str, str]] = field(default_factory=Counter)
    launches: Counter[str] = field(default_factory=Counter)
    scalars: Counter[tuple[str, str]] = field(default_factory=Counter)
    queued: int = 0  # the last place of the queue
    reached: int = 0  # the last one that the host knows to be done
    pinned: set[int] = field(default_factory=set)  # addresses
    _late: deque[tuple[int, Tensor, Tensor]] = field(default_factory=deque)

    def enqueue(self) -> int:
        self.queued += 1
        return self.queued

    def copy_late(self, host: Tensor, value: Tensor) -> None:
        self._late.append((self.enqueue(), host, value.clone()))

    def wait(self, kind: str, until: int | None = None) -> None:
        """The host waits, for the whole queue or `until` a place of it. Raises SimulatedError in a capture."""
        if self.capturing is not None:
            self.capturing.failed = True
            raise SimulatedError(
                f"CUDA error: operation not permitted when stream is capturing ({kind}, {specbench_line()})"
            )
        self.waits[kind, specbench_line()] += 1
        self.reached = max(self.reached, self.queued if until is None else until)
        while self._late and self._late[0][0] <= self.reached:
            _, host, value = self._late.popleft()
            host.copy_(value)

    def index(self, device: torch.device | int | str | None) -> int:
        """The number of a GPU."""
        if device is None or isinstance(device, int):
            return self.current if device is None else device
        found = torch.device(device).index
        return self.current if found is None else found


def specbench_line() -> str:
    """The innermost line of the package that is being executed."""
    frame = sys._getframe(1)
    while frame is not None:
        before, found, name = frame.f_code.co_filename.rpartition("/specbench/")
        if found and "/tests/" not in before:
            return f"{name}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    return ELSEWHERE
