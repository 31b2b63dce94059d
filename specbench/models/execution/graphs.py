"""CUDA graphs: a round captured once and replayed, with the events that time its phases inside. Only `tests/cuda`
covers this file; other tests replay rounds in order (`decoding.rounds`) through a mock of `Captured`."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from specbench.decoding.timing import CudaClock
from specbench.decoding.tokens import holding

WARM = 3  # calls before the capture, in which libraries allocate workspaces and choose kernels


@dataclass
class Shared:
    """The resources shared by the captures of one tier: a memory pool, so that they must not run at the same time,
    and the stream of all captures of the device."""

    device: torch.device
    pool: Any = field(init=False, repr=False)
    stream: torch.cuda.Stream = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()
        self.stream = stream_of(self.device)

    def warm(self, work: Callable[[], object]) -> None:
        """Call a function a few times on the stream, as a capture requires."""
        with self.aside():
            for _ in range(WARM):
                work()

    @contextmanager
    def capturing(self) -> Iterator[torch.cuda.CUDAGraph]:
        """Capture the enclosed calls. The previous stream is restored even if they fail."""
        graph = torch.cuda.CUDAGraph()
        with self.aside(), uncollected():
            torch.cuda.synchronize(self.device)
            graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
            try:
                yield graph
            except BaseException:
                with suppress(RuntimeError):  # it fails as well, and would hide the cause
                    graph.capture_end()
                raise
            graph.capture_end()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Use the stream, after pending work and before later work."""
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            yield
        torch.cuda.current_stream(self.device).wait_stream(self.stream)


@cache
def stream_of(device: torch.device) -> torch.cuda.Stream:
    """One stream per device: each has workspaces (32 MiB of cuBLAS alone on an H100) that are never freed."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect garbage before and not during the enclosed code: destroying a dropped graph or event ends a capture."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@dataclass
class Captured:
    """A round as a CUDA graph. Its results are copied, as the next replay of any capture may overwrite them."""

    play: Callable[[], tuple[Tensor, Tensor]]
    shared: Shared
    clock: CudaClock

    def __post_init__(self) -> None:
        self.shared.warm(self.play)
        with holding() as self._constants, self.shared.capturing() as self._graph:
            self.clock.lap("")
            self._seen, self._counts = self.play()
        self._laps = self.clock.captured()
        self._host = torch.empty(self._seen.shape, dtype=self._seen.dtype, pin_memory=True)
        self._read = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def launch(self) -> Tensor:
        self._graph.replay()
        self._host.copy_(self._seen, non_blocking=True)
        self._read.record()
        return self._counts.clone()

    def read(self, idle: bool = False) -> Tensor:
        self._read.synchronize()
        self.clock.replayed(self._laps, idle)
        return self._host


@dataclass
class Repeated:
    """A function of tensors as a CUDA graph: its arguments are copied to the captured addresses.

    Its result is overwritten by the next call of any function of the pool.
    """

    function: Callable[..., Tensor]
    shared: Shared
    _inputs: tuple[Tensor, ...] = field(default=(), init=False, repr=False)
    _graph: torch.cuda.CUDAGraph | None = field(default=None, init=False, repr=False)

    def __call__(self, *inputs: Tensor) -> Tensor:
        if self._graph is None:
            self._graph = self._captured(inputs)
        for input_, given in zip(self._inputs, inputs, strict=True):
            input_.copy_(given)
        self._graph.replay()
        return self._result

    def _captured(self, inputs: tuple[Tensor, ...]) -> torch.cuda.CUDAGraph:
        self._inputs = tuple(tensor.clone() for tensor in inputs)
        self.shared.warm(lambda: self.function(*self._inputs))
        with holding() as self._constants, self.shared.capturing() as graph:
            self._result = self.function(*self._inputs)
        return graph
