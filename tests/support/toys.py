"""Toys: the table models of the proofs, drafters of small trees over them, and methods made of these."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import ClassVar

import torch
from torch import Tensor

from specbench.decoding.drafters.chain import Memoryless, ModelDrafter, NoDraft
from specbench.decoding.drafters.schedule import Constant, Schedule
from specbench.decoding.loop import Speculate
from specbench.decoding.proofs.exact import CPU, PROMPT
from specbench.decoding.proofs.tables import (
    KINDS,
    nodes,
    number_of,
    numbers,
    random_pair,
    table,
    tokens_of,
)
from specbench.decoding.proofs.tables import TableModel as Toy
from specbench.decoding.protocols import Verifier
from specbench.decoding.randomness import Source, Stream
from specbench.decoding.rounds import read_rows, state
from specbench.decoding.tokens import ROOT, TokenTree
from specbench.decoding.types import Context, Draft
from specbench.decoding.verifiers.rejection import Rejection, TokenMatch

__all__ = ["CPU", "KINDS", "PROMPT", "Stopping", "Toy", "Tree", "chain", "levels_left", "methods", "nested", "nodes",
           "nodes_per_level", "number_of", "numbers", "random_pair", "table", "three", "tokens_of"]  # fmt: skip


def levels_left(context: Context) -> int:
    """The tokens that the longest live row may still emit; 0 when all have ended. NonFiniteError as in decode."""
    return max(read_rows(state(context))[0])


@dataclass(frozen=True, eq=False)
class Tree(Memoryless):
    """A tree with `widths[l]` children under every node of level l, the s-th drawn from models[s mod number of models].

    iid: independent draws; without: without replacement, from what earlier siblings left of the law; top: the most
    probable tokens, which are point masses. A child that would be drawn from nothing does not exist.
    """

    models: tuple[Toy, ...]
    widths: tuple[int, ...]
    how: str = "iid"
    static: ClassVar[bool] = False  # the host's budget says how many levels there are
    adapts: ClassVar[str] = ""
    carries: ClassVar[None] = None

    @property
    def depth(self) -> int:
        return len(self.widths)

    @property
    def branches(self) -> bool:
        return any(width > 1 for width in self.widths)

    @property
    def drawn(self) -> bool:
        return self.how != "top"

    @property
    def room(self) -> int:
        return sum(nodes_per_level(self.widths))

    def propose(self, context: Context, budget: int, rng: Source, lag: int = 1) -> Draft:
        parents: list[int] = []
        ids, q, valid = [], [], []
        level = [(ROOT, self.models[0].number(context), torch.ones_like(context.live))]
        for width in self.widths[:budget]:
            below = []
            for parent, number, there in level:
                left = torch.ones_like(self.models[0].table[number])
                for child in range(width):
                    model = self.models[child % len(self.models)]
                    law, token, exists = self._child(model.table[number], left, child, rng)
                    left = left.scatter(1, token.unsqueeze(1), 0)
                    below.append((len(parents), model.after(number, token), there & exists))
                    parents.append(parent)
                    for kept, value in zip((ids, q, valid), (token, law, there & exists), strict=True):
                        kept.append(value)
            level = below
        if not parents:
            return Draft(TokenTree.chain(context.seq[:, :0]))
        tree = TokenTree(torch.stack(ids, 1), tuple(parents))
        return Draft(tree, None if self.how == "top" else torch.stack(q, 1), torch.stack(valid, 1))

    def _child(self, law: Tensor, left: Tensor, child: int, rng: Source) -> tuple[Tensor, Tensor, Tensor]:
        """Law, token and existence of the next child, given what its siblings have `left`."""
        exists = torch.full_like(law[:, 0], child < law.shape[1], dtype=torch.bool)
        if self.how == "top":
            return law, law.topk(min(child + 1, law.shape[1])).indices[:, -1], exists
        if self.how == "without":
            exists = (law * left).sum(1) > 0
            law = torch.where(exists.unsqueeze(1), law * left, law)
            law = law / law.sum(1, keepdim=True)
        return law, rng.categorical(law, Stream.DRAFT), exists


def nodes_per_level(widths: Sequence[int]) -> list[int]:
    return [reduce(lambda a, b: a * b, widths[: level + 1]) for level in range(len(widths))]


@dataclass(frozen=True, eq=False)
class Stopping(Tree):
    """A tree that draws no further child and no further sibling after a drawn token `stop`, which it keeps."""

    stop: int = 0

    def propose(self, context: Context, budget: int, rng: Source, lag: int = 1) -> Draft:
        draft = super().propose(context, budget, rng)
        stops = draft.tree.ids == self.stop
        valid = draft.valid.clone() if draft.valid is not None else torch.ones_like(stops)
        for node, parent in enumerate(draft.tree.parents):
            if parent != ROOT:
                valid[:, node] &= valid[:, parent] & ~stops[:, parent]
            for sibling in range(node):
                if draft.tree.parents[sibling] == parent:
                    valid[:, node] &= ~stops[:, sibling]
        return replace(draft, valid=valid)


def chain(
    p: Tensor, q: Tensor, k: int, verifier: Verifier | None = None, schedule: Schedule | None = None
) -> Speculate:
    """Speculative sampling of the toy with table p, drafted by the toy with table q."""
    return Speculate(ModelDrafter(Toy(q), k, schedule or Constant()), Toy(p), verifier or Rejection())


def three(seed: int, vocab: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tables of a target, a model between and a draft."""
    return *random_pair(seed, vocab, length), random_pair(seed + 5, vocab, length)[1]


def nested(
    p: Tensor,
    middle: Tensor,
    q: Tensor,
    k: int,
    length: int,
    inside: Verifier | None = None,
    schedule: Schedule | None = None,
) -> Speculate:
    """A speculation drafted by a speculation: q drafts k at a time for `middle`, which drafts `length` for p."""
    return Speculate(replace(chain(middle, q, k, inside, schedule), length=length), Toy(p), Rejection())


def methods(k: int, vocab: int = 3) -> dict[str, Speculate]:
    """One of each by the name of what is special about it, with drafts of k levels."""
    p, middle, q = three(0, vocab, k + 4)
    return {
        "baseline": Speculate(NoDraft(), Toy(p), Rejection()),
        "chain": chain(p, q, k),
        "match": chain(p, q, k, TokenMatch()),
        "tree": Speculate(Tree((Toy(q),), (2, *[1] * (k - 1))), Toy(p), Rejection()),
        "ragged": Speculate(Stopping((Toy(q),), (1,) * k, stop=1), Toy(p), Rejection()),
        "nested": nested(p, middle, q, 1, k),
    }
