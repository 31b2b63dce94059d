"""Prompts that stream through a few rows, with any source of randomness."""

from collections.abc import Callable, Sequence

import torch

from specbench.decoding.decode import Stream
from specbench.decoding.loop import Speculate
from specbench.decoding.randomness import Source
from specbench.decoding.rounds import Stepwise
from specbench.decoding.timing import Clock, NullClock
from specbench.metrics import Trace


@torch.no_grad()
def decode_stream(
    method: Speculate,
    prompts: Sequence[Sequence[int]],
    *,
    rows: int,
    new: int,
    eos: Sequence[int],
    rng: Source,
    device: torch.device,
    clock: Clock | None = None,
    admitted: Callable[[int, int], None] = lambda row, prompt: None,
) -> list[Trace]:
    """As `decode_batches`; a source with a seed per row must be reseeded in `admitted`."""
    stream = Stream(method, prompts, rows, new, rng, Stepwise(method), clock or NullClock(), admitted)
    stream.run(eos, device)
    return stream.traces()
