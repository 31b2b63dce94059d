"""CUDA graphs: a round captured once and replayed, with the events that time its phases inside. Only `tests/cuda`
covers this file; other tests replay rounds in their order (`decoding.rounds`) through a stand-in for `Captured`.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from specbench.decoding.timing import CudaClock

WARM = 3  # calls before the capture: libraries allocate their workspaces and choose their kernels in the first ones


@dataclass
class Shared:
    """What the captures of one tier share: a pool of memory, so that they must not run at the same time,
    and a stream, as each has workspaces (32 MiB of cuBLAS alone on some GPUs) that are never given back."""

    device: torch.device
    pool: Any = field(init=False, repr=False)
    stream: torch.cuda.Stream = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def warm(self, work: Callable[[], object]) -> None:
        """Call a function a few times on the stream, as a capture needs it."""
        with self.aside():
            for _ in range(WARM):
                work()

    @contextmanager
    def capturing(self) -> Iterator[torch.cuda.CUDAGraph]:
        """Capture what is done. Whatever fails in it, the stream is the one of before afterwards."""
        graph = torch.cuda.CUDAGraph()
        with self.aside(), uncollected():
            torch.cuda.synchronize(self.device)
            graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
            try:
                yield graph
            finally:
                graph.capture_end()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """On the stream, after what is under way, and before what comes."""
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            yield
        torch.cuda.current_stream(self.device).wait_stream(self.stream)


@contextmanager
def uncollected() -> Iterator[None]:
    """Garbage is collected before and not during what is done: destroying a dropped graph or event ends a capture."""
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
    """A round as a CUDA graph. Its results are copied out, as the next replay of any capture may write over them."""

    play: Callable[[], tuple[Tensor, Tensor]]
    shared: Shared
    clock: CudaClock

    def __post_init__(self) -> None:
        self.shared.warm(self.play)
        with self.shared.capturing() as self._graph:
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

    def read(self) -> Tensor:
        self._read.synchronize()
        self.clock.replayed(self._laps)
        return self._host


@dataclass
class Repeated:
    """A function of tensors as a CUDA graph: what it is called with is copied to where the capture found its inputs.

    Its result is written over by the next call of any function of the pool.
    """

    function: Callable[..., Tensor]
    shared: Shared
    _inputs: tuple[Tensor, ...] = field(default=(), init=False, repr=False)

    def __call__(self, *inputs: Tensor) -> Tensor:
        if not self._inputs:
            self._capture(inputs)
        for input_, given in zip(self._inputs, inputs, strict=True):
            input_.copy_(given)
        self._graph.replay()
        return self._result

    def _capture(self, inputs: tuple[Tensor, ...]) -> None:
        self._inputs = tuple(tensor.clone() for tensor in inputs)
        self.shared.warm(lambda: self.function(*self._inputs))
        with self.shared.capturing() as self._graph:
            self._result = self.function(*self._inputs)
