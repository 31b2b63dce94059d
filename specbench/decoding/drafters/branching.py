"""The ways in which a node of a tree gets its children. Knows rows and draws; must not know trees or models."""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from specbench.decoding.randomness import Source, Stream

Children = tuple[Tensor, Tensor | None, Tensor]  # ids [B, m, w], what they were drawn from [B, m, w, V], which exist


class Branching(Protocol):
    """How the children of a node are chosen."""

    drawn: ClassVar[bool]

    def children(self, rows: Tensor, width: int, rng: Source) -> Children:
        """`width` children for each of m nodes, from rows [B, m, V]: scores where nothing is drawn."""
        ...


@dataclass(frozen=True)
class Top:
    """The tokens with the highest scores. Nothing is drawn, so they are point masses (SpecInfer with greedy decoding,
    Miao et al. 2023, §4; judged with the draft's distribution they would be accepted too often)."""

    drawn: ClassVar[bool] = False

    def children(self, rows: Tensor, width: int, rng: Source) -> Children:
        there = min(width, rows.shape[-1])
        ids = rows.topk(there).indices
        ids = torch.cat([ids, ids[..., :1].expand(*ids.shape[:-1], width - there)], -1)
        return ids, None, (torch.arange(width, device=ids.device) < there).expand(ids.shape)


@dataclass(frozen=True)
class Independent:
    """Independent draws; a token that is drawn twice is two children (SpecInfer, Miao et al. 2023, Alg. 2): merged into
    one they would be tested too seldom, which biases what is emitted."""

    drawn: ClassVar[bool] = True

    def children(self, rows: Tensor, width: int, rng: Source) -> Children:
        q = rows.unsqueeze(2).expand(-1, -1, width, -1)
        ids = rng.categorical(q, Stream.DRAFT)
        return ids, q, torch.ones_like(ids, dtype=torch.bool)


@dataclass(frozen=True)
class Distinct:
    """Draws without replacement: each from what the earlier ones left, renormalised (Sequoia, Chen et al.
    2024, Alg. 2). Where nothing is left there is no further child."""

    drawn: ClassVar[bool] = True

    def children(self, rows: Tensor, width: int, rng: Source) -> Children:
        ids: list[Tensor] = []
        kept_rows: list[Tensor] = []
        there: list[Tensor] = []
        left = rows
        for _ in range(width):
            mass = left.sum(-1, keepdim=True)
            exists = mass > 0
            row = torch.where(exists, left / mass.clamp_min(torch.finfo(rows.dtype).tiny), rows)
            token = rng.categorical(row, Stream.DRAFT)
            left = left.scatter(-1, token.unsqueeze(-1), 0)
            for kept, value in zip((ids, kept_rows, there), (token, row, exists.squeeze(-1)), strict=True):
                kept.append(value)
        return torch.stack(ids, 2), torch.stack(kept_rows, 2), torch.stack(there, 2)
