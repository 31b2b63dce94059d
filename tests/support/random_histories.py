"""Histories made by chance: random trees of which random paths are committed, round after round, on ragged rows."""

from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.decoding.loop import commit
from specbench.decoding.protocols import Model
from specbench.decoding.tokens import ROOT, TokenTree
from specbench.decoding.types import Context, Draft, Verdict
from tests.support.tiny import path_to

HISTORIES = ([2], [0, 1, 2, 2], [1, 0, 0, 2, 1, 0])  # ragged: entries after the end of the shorter ones are stale

RAGGED = ((2, 2, 1, 0), (1,), (0, 1))


@dataclass
class Chance:
    """The random choices of a history."""

    seed: int

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)

    def below(self, n: int, shape: tuple[int, ...] = ()) -> Tensor:
        return torch.randint(n, shape, generator=self.generator)

    def tree(self, rows: int, vocab: int) -> TokenTree:
        """A random tree: depth at most 3, at most 3 children per node, nodes in any order that puts parents first."""
        parents: list[int] = [ROOT]
        while len(parents) < 7:
            parent = int(self.below(len(parents) + 1)) - 1
            if len(path_to(parents, parent)) < 3 and parents.count(parent) < 3:
                parents.append(parent)
        return TokenTree(self.below(vocab, (rows, 7)), tuple(parents))

    def path(self, tree: TokenTree, full: bool) -> list[int]:
        """A path from the root that ends anywhere, or at a leaf where `full`; -1 after its end."""
        path: list[int] = []
        while children := [n for n, p in enumerate(tree.parents) if p == (path[-1] if path else ROOT)]:
            if not full and int(self.below(3)) == 0:
                break
            path.append(children[int(self.below(len(children)))])
        return path + [-1] * (tree.topology.depth - len(path))


def accept(context: Context, tree: TokenTree, chance: Chance, full: bool, vocab: int) -> tuple[Verdict, Tensor]:
    """Commit a random path of the tree and a random token; returns the verdict and where the tree's root lay."""
    path = torch.tensor([chance.path(tree, full) for _ in range(context.rows)])
    token = chance.below(vocab, (context.rows,))
    verdict = Verdict(path, (path >= 0).sum(1), token, torch.zeros(path.shape))
    start = context.pos.clone()
    commit(context, Draft(tree), verdict)
    return verdict, start


def append(context: Context, chance: Chance, most: int, vocab: int) -> None:
    """Commit up to `most` more tokens per row of which the models learn nothing: those of an outer speculation."""
    for _ in range(most):
        context.pos += chance.below(2, (context.rows,))
        context.seq.scatter_(1, context.pos.unsqueeze(1), chance.below(vocab, (context.rows, 1)))


def accept_and_append(
    model: Model, context: Context, tree: TokenTree, chance: Chance, number: int, most: int, vocab: int
) -> None:
    """One round of a history: a path, every third round a whole one, is settled; then up to `most` tokens follow."""
    verdict, start = accept(context, tree, chance, number % 3 == 1, vocab)
    model.settle(start, tree, verdict)
    append(context, chance, most, vocab)
