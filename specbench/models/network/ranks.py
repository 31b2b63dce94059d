"""The likeliest tokens of a network by its own scores: of every row that it gives, and along the prompts that it reads.

Knows what a network is fed; must not know what its ranks are used for.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from specbench.decoding.rows import likeliest
from specbench.decoding.types import STEP, Context


class Reader(Protocol):
    """What is needed of a network."""

    width: int

    def start(self, context: Context) -> None: ...

    def along(self, context: Context, slots: Tensor) -> Tensor:
        """[B, m, V'] the logits of committed tokens at slots [B, m], which are fed once more."""
        ...

    def alone(self) -> "Reader":
        """The same with a cache of its own."""
        ...


class Ranks:
    """See `Ranking`. `last` is written by every `probs` of the network."""

    last: Tensor

    def __init__(self, model: Reader, most: int) -> None:
        self.model, self.most, self.width = model, most, model.width

    def hear(self, logits: Tensor) -> None:
        """Note the rows [B, n + 1, V'] of a pass."""
        self.last = likeliest(logits[..., : self.width], self.most)

    def along(self, context: Context, row: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """The prompts are read once more, few tokens at a time: no prefill has the logits of all tokens at once."""
        model = self.model
        if row is not None:  # the other rows are in the middle of their texts
            model = model.alone()
            context = context.select(torch.tensor([row], device=context.pos.device))
            model.start(context)
        longest = int(context.pos.max())
        for begin in range(0, longest, STEP):
            end = min(begin + STEP, longest)
            slots = torch.arange(begin, end, device=context.pos.device).expand(context.rows, -1)
            here = replace(context, reach=min(begin + STEP, context.seq.shape[1]))
            yield slots, likeliest(model.along(here, slots)[..., : self.width], self.most)
