"""Drafts that complement each other: each is fitted where those before it miss the target (SpecInfer, Miao et al. 2023,
arXiv 2305.09781, §3).

Knows networks along known text; must not know how one of them is trained.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specbench.training.batches import Batch
from specbench.training.rows import logits_of

REST = 0.1  # what a token counts that an earlier draft has: a draft must still be able to walk on from there


@dataclass(frozen=True)
class Missed:
    """How much every token of a batch counts: fully where no earlier draft's likeliest token is the target's.

    The paper drops whole prompts that an earlier draft completes as the target does; here that is done token by token.
    """

    earlier: Sequence[Any]
    rest: float = REST

    def __call__(self, batch: Batch, p: Tensor) -> Tensor:
        """[n], from the target's rows p [n, V]."""
        return torch.where(hit(self.earlier, batch, p.argmax(-1)), self.rest, 1.0)


@torch.no_grad()
def hit(drafts: Sequence[Any], batch: Batch, told: Tensor) -> Tensor:
    """[n] whether the likeliest token of any draft is the one that is told [n]."""
    found = torch.zeros_like(told, dtype=torch.bool)
    for draft in drafts:
        found |= logits_of(draft, batch).argmax(-1) == told
    return found
