"""Streams, events and graphs of the simulated device. Graphs are what was dispatched, done again on the same memory."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _disable_current_modes

from tests.support.fakecuda.machine import SimulatedError, specbench_line
from tests.support.fakecuda.tensors import NO_KERNEL, both_mapped, machine, tensors_in

UNRECORDED = "Both events must be recorded before calculating elapsed time."
UNFINISHED = "Both events must be completed before calculating elapsed time."
INSIDE = "CUDA error: operation not permitted on an event last recorded in a capturing stream"


class Stream:
    """A stream: all of them are one queue, so their order is not tested."""

    cuda_stream = 0

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.device = torch.device("cuda", machine().index(device))

    def wait_stream(self, other: "Stream") -> None:
        return

    def synchronize(self) -> None:
        machine().wait("stream.synchronize")


@dataclass
class Streams:
    """The default stream of every GPU, and the current one."""

    default: dict[int, Stream] = field(default_factory=dict)
    current: dict[int, Stream] = field(default_factory=dict)

    def default_stream(self, device: Any = None) -> Stream:
        index = machine().index(device)
        return self.default.setdefault(index, Stream(index))

    def current_stream(self, device: Any = None) -> Stream:
        return self.current.get(machine().index(device)) or self.default_stream(device)

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        now, index = machine(), machine().index(stream.device)
        before, was = self.current_stream(index), now.current
        self.current[index], now.current = stream, index
        try:
            yield
        finally:
            self.current[index], now.current = before, was


class Event:
    """An event: its place in the queue, and the time at which the queue came to it."""

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ) -> None:
        self.timing, self.external = enable_timing, external
        self.place, self.at, self.inside = 0, 0.0, False

    def record(self, stream: Stream | None = None) -> None:
        graph = machine().capturing
        self.inside = graph is not None and not self.external
        if graph is None:
            self.happen()
        elif self.external:
            graph.nodes.append(self)

    def happen(self) -> None:
        self.place, self.at = machine().enqueue(), time.perf_counter()

    def synchronize(self) -> None:
        self._refuse_inside()
        machine().wait("event.synchronize", self.place)

    def elapsed_time(self, other: "Event") -> float:
        for event in (self, other):
            event._refuse_inside()
            if not event.timing:
                raise ValueError("Both events must be created with argument 'enable_timing=True'.")
            if not event.place:
                raise ValueError(UNRECORDED)
            if event.place > machine().reached:
                raise SimulatedError(f"{UNFINISHED} ({specbench_line()})")
        return (other.at - self.at) * 1000

    def _refuse_inside(self) -> None:
        if self.inside:
            raise SimulatedError(f"{INSIDE} ({specbench_line()})")


@dataclass
class Outside:
    """Memory that a graph reads or writes and does not own: as on a GPU, it is an address, and keeps nothing alive."""

    storage: StorageWeakRef
    address: int
    dtype: torch.dtype
    offset: int
    shape: torch.Size
    strides: tuple[int, ...]
    line: str

    @classmethod
    def of(cls, tensor: Tensor) -> "Outside":
        storage = tensor.untyped_storage()
        place = (tensor.storage_offset(), tensor.shape, tensor.stride())
        return cls(StorageWeakRef(storage), storage.data_ptr(), tensor.dtype, *place, specbench_line())

    def tensor(self) -> Tensor:
        storage = torch.UntypedStorage._new_with_weak_ptr(self.storage.cdata)
        if storage is None or storage.data_ptr() != self.address:
            what = "has moved" if storage is not None else "was freed"
            raise SimulatedError(f"CUDA error: an illegal memory access was encountered: it {what} ({self.line})")
        return torch.empty(0, dtype=self.dtype).set_(storage, self.offset, self.shape, self.strides)


def found_again(one: Any) -> Any:
    return one.tensor() if isinstance(one, Outside) else one


@dataclass(frozen=True)
class Node:
    """An operator of a graph; `made` are those of its results whose memory is the graph's, None for the others."""

    func: Any
    name: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    made: Sequence[Tensor | None]

    def again(self) -> None:
        given, named = both_mapped(found_again, self.args, self.kwargs)
        for old, new in zip(self.made, tensors_in(self.func(*given, **named)), strict=True):
            if old is not None and old.data_ptr() != new.data_ptr():
                old.copy_(new)


class CUDAGraph:
    """What was dispatched between `capture_begin` and `capture_end`."""

    def __init__(self, keep_graph: bool = False) -> None:
        self.nodes: list[Node | Event] = []
        self._own: set[int] = set()  # memory that was allocated in the capture
        self.failed = False  # an operator was refused

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        now = machine()
        if torch.cuda.current_stream() is torch.cuda.default_stream():
            raise SimulatedError("CUDA graphs must be captured on a non-default stream")
        now.capturing = self

    def capture_end(self) -> None:
        machine().capturing = None
        if self.failed:
            raise SimulatedError("CUDA error: operation failed due to a previous error during capture")

    def record(self, func: Any, name: str, args: Any, kwargs: Any, found: Any) -> None:
        before = {one.untyped_storage()._cdata for one in tensors_in(*args, *kwargs.values())}
        made: list[Tensor | None] = []
        for one in tensors_in(found):
            storage = one.untyped_storage()._cdata
            self._own |= set() if storage in before else {storage}
            made.append(one if storage in self._own else None)
        self.nodes.append(Node(func, name, *both_mapped(self._held, args, kwargs), made))

    def _held(self, one: Any) -> Any:
        return Outside.of(one) if isinstance(one, Tensor) and one.untyped_storage()._cdata not in self._own else one

    def replay(self) -> None:
        now = machine()
        with _disable_current_modes(), torch.no_grad():
            for node in self.nodes:
                if isinstance(node, Event):
                    node.happen()
                    continue
                node.again()
                if node.name not in NO_KERNEL:
                    now.launches[node.name] += 1
        now.enqueue()

    def reset(self) -> None:
        self.nodes.clear()
