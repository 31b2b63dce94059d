"""Token trees drafted level by level from one model, and the ways in which a node gets its children.

Knows the algebra; must not know networks, or how a tree is judged.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from specbench.decoding.draft import NoDraft, drawable
from specbench.decoding.randomness import Source, Stream
from specbench.decoding.types import Context, Draft, Model, Verdict
from specbench.tokens import ROOT, TokenTree, constant

Children = tuple[Tensor, Tensor | None, Tensor]  # ids [B, m, w], what they were drawn from [B, m, w, V], which exist


class Branching(Protocol):
    """How the children of a node are chosen."""

    drawn: ClassVar[bool]

    def children(self, rows: Tensor, width: int, rng: Source) -> Children:
        """`width` children for each of m nodes, from rows [B, m, V]: laws where children are drawn, else scores."""
        ...


@dataclass(frozen=True)
class Top:
    """The tokens with the highest scores. Nothing is drawn, so they are point masses (SpecInfer with greedy decoding,
    Miao et al. 2023, §4; judged with the law of the draft instead they would be accepted too often)."""

    drawn: ClassVar[bool] = False

    def children(self, rows: Tensor, width: int, rng: Source) -> Children:
        there = min(width, rows.shape[-1])
        ids = rows.topk(there).indices
        ids = torch.cat([ids, ids[..., :1].expand(*ids.shape[:-1], width - there)], -1)
        return ids, None, (torch.arange(width, device=ids.device) < there).expand(ids.shape)


@dataclass(frozen=True)
class Independent:
    """Independent draws; a token that is drawn twice is two children (SpecInfer, Miao et al. 2023, Alg. 2): merged into
    one they would be tested too seldom, which changes the law of what is emitted."""

    drawn: ClassVar[bool] = True

    def children(self, rows: Tensor, width: int, rng: Source) -> Children:
        q = rows.unsqueeze(2).expand(-1, -1, width, -1)
        ids = rng.categorical(q, Stream.DRAFT)
        return ids, q, torch.ones_like(ids, dtype=torch.bool)


@dataclass(frozen=True)
class Distinct:
    """Draws without replacement: each from what the earlier ones left of the law, renormalised (Sequoia, Chen et al.
    2024, Alg. 2). Where nothing is left there is no further child."""

    drawn: ClassVar[bool] = True

    def children(self, rows: Tensor, width: int, rng: Source) -> Children:
        ids: list[Tensor] = []
        laws: list[Tensor] = []
        there: list[Tensor] = []
        left = rows
        for _ in range(width):
            mass = left.sum(-1, keepdim=True)
            exists = mass > 0
            law = torch.where(exists, left / mass.clamp_min(torch.finfo(rows.dtype).tiny), rows)
            token = rng.categorical(law, Stream.DRAFT)
            left = left.scatter(-1, token.unsqueeze(-1), 0)
            for kept, value in zip((ids, laws, there), (token, law, exists.squeeze(-1)), strict=True):
                kept.append(value)
        return torch.stack(ids, 2), torch.stack(laws, 2), torch.stack(there, 2)


@dataclass(frozen=True)
class Expand:
    """A tree of depth k: a node of level l has widths[l] children, one where there are fewer widths (SpecInfer's
    expansion ⟨k₁ … k_m⟩, Miao et al. 2023, §3). Every level is one pass of the model over the level above."""

    model: Model
    k: int
    widths: Sequence[int]
    branching: Branching = field(default_factory=Independent)
    static: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if min(self.widths, default=1) < 1:
            raise ValueError(f"widths: a node has at least one child, found {list(self.widths)}")

    @property
    def room(self) -> int:
        return sum(accumulate(map(self.width, range(self.k)), mul))

    @property
    def branches(self) -> bool:
        """Whether a node may have several children, so that no rule for chains can judge it."""
        return any(self.width(level) > 1 for level in range(self.k))

    def width(self, level: int) -> int:
        """How many children a node of this level has; the root's is 0."""
        return self.widths[level] if level < len(self.widths) else 1

    def start(self, context: Context) -> None:
        self.model.start(context)

    def admit(self, context: Context, row: int) -> None:
        self.model.admit(context, row)

    def propose(self, context: Context, budget: int | None, rng: Source, lag: int = 1) -> Draft:
        depth = self.k if budget is None else min(self.k, budget)
        if depth < 1:
            return NoDraft().propose(context, budget, rng)
        tree = TokenTree.chain(context.seq.new_zeros((context.rows, 0)))
        laws: list[Tensor] = []
        there = context.live.new_ones((context.rows, 1))  # which rows have the root, and then every node
        above = range(ROOT, ROOT + 1)  # the nodes of the level above; their rows stand one further
        for level in range(depth):
            new, behind = len(above) if level else 0, slice(above.start + 1, above.stop + 1)
            rows = self.model.expand(context, tree, new, 0 if level else lag, raw=not self.branching.drawn)
            token, q, exists = self.branching.children(rows, self.width(level), rng)
            parents = (*tree.parents, *(node for node in above for _ in range(self.width(level))))
            above = range(tree.size, len(parents))
            tree = TokenTree(torch.cat([tree.ids, token.flatten(1)], 1), parents)
            there = torch.cat([there, (exists & there[:, behind].unsqueeze(2)).flatten(1)], 1)
            laws += [] if q is None else [q.flatten(1, 2)]
        usable = constant(tree.topology.depths, there.device) <= drawable(context, depth).unsqueeze(1)
        return Draft(tree, torch.cat(laws, 1) if laws else None, there[:, 1:] & usable)

    def learn(self, context: Context, start: Tensor, draft: Draft, p: Tensor, verdict: Verdict) -> None:
        self.model.settle(start, draft.tree, verdict)

    def select(self, rows: Tensor) -> None:
        self.model.select(rows)
