"""CUDA graphs: a round captured once and replayed, with the events that time its phases inside.

Knows streams, events and memory pools; must not know what a round does. Needs a GPU; CPU tests do not
cover this file: they replay rounds in their order (`decoding.replay`) through a stand-in for `Captured`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from specbench.decoding.timing import CudaClock

WARM = 3  # calls before the capture: libraries allocate their workspaces and choose their kernels in the first ones


@dataclass
class Captured:
    """A round as a CUDA graph. Captures of one pool share memory: they must not run at the same time.

    Its results are copied out, as the next replay of any of them may write over them.
    """

    play: Callable[[], tuple[Tensor, Tensor]]
    device: torch.device
    pool: Any
    clock: CudaClock

    def __post_init__(self) -> None:
        on_the_side(self.play, self.device)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=self.pool, capture_error_mode="thread_local"):
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


def on_the_side(work: Callable[[], object], device: torch.device) -> None:
    """Warm a function up on a stream of its own, as a capture needs it."""
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(WARM):
            work()
    torch.cuda.current_stream(device).wait_stream(side)


@dataclass
class Repeated:
    """A function of tensors as a CUDA graph: what it is called with is copied to where the capture found its inputs.

    Its result is written over by the next call of any function of the pool.
    """

    function: Callable[..., Tensor]
    device: torch.device
    pool: Any
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
        on_the_side(lambda: self.function(*self._inputs), self.device)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=self.pool, capture_error_mode="thread_local"):
            self._result = self.function(*self._inputs)
