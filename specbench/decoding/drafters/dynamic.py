"""Trees shaped by the draft's probabilities: a new shape in every round."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from specbench.decoding.drafters.chain import drawable
from specbench.decoding.drafters.tree import FromModel, Grown
from specbench.decoding.randomness import Source
from specbench.decoding.tokens import ROOT, TokenTree, constant, sent
from specbench.decoding.types import Context, Draft


@dataclass(frozen=True)
class Dynamic(FromModel):
    """The `nodes` tokens with the most probable paths under the draft, in a tree of depth k
    (EAGLE-2, Li et al. 2024, arXiv 2406.16858, §4, with an ordinary draft).

    In every level the `width` nodes with the most probable paths are fed, and each gives its
    `width` most probable children; the best of all these stay. They are point masses, because
    nothing is drawn. Probabilities are the draft's own, before temperature. The host reads once per
    level which nodes are fed, and once which stay, so a compiler sees different shapes in every
    round. Rows share the topology: it is the union of their trees, and a row has its own part.
    """

    k: int
    width: int
    nodes: int
    static: ClassVar[bool] = False
    drawn: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if min(self.width, self.nodes) < 1:
            raise ValueError(f"width and nodes: expected 1 or more, found {self.width} and {self.nodes}")

    @property
    def room(self) -> int:
        """The candidates of one row. If several rows have more than that together, the best of any row are kept."""
        return self.width * (1 + max(self.k - 1, 0) * self.width) if self.k else 0

    @property
    def depth(self) -> int:
        return self.k

    @property
    def branches(self) -> bool:
        return self.width > 1

    def propose(self, context: Context, budget: int | None, rng: Source, lag: int = 1) -> Draft:
        if min(self.k, self.k if budget is None else budget) < 1:
            return Draft.empty(context)
        found = Candidates.of_root(context)
        for level in range(self.k):
            fed = found.fed.size and len(found.frontier)
            rows = self.model.expand(context, found.fed, fed, 0 if level else lag, raw=True)
            found.add(rows, self.width)
            if level + 1 < self.k:
                found.feed(self.width, most=self.width**2)
        # The depth is constant even if less is left, so that passes keep their shapes; unusable nodes are masked.
        usable = drawable(context, self.k if budget is None else min(self.k, budget))
        return found.best(min(self.nodes, self.room), self.room, usable)


@dataclass
class Candidates:
    """The candidates for a tree while it grows: nodes by number, each with its token in every row.

    scores [B, n]: the log-probability of the path to a node; -inf in a row that does not have it. fed: the tree of the
    nodes that the model was fed, as_fed: their numbers there by candidate. frontier: the candidates fed last, above [B,
    m]: their scores, -inf in a row that did not choose them. begun: the number of candidates before the last level.
    """

    ids: Tensor
    scores: Tensor
    fed: TokenTree
    frontier: list[int]
    above: Tensor
    parents: list[int] = field(default_factory=list)
    as_fed: dict[int, int] = field(default_factory=lambda: {ROOT: ROOT})
    begun: int = 0

    @classmethod
    def of_root(cls, context: Context) -> "Candidates":
        """No candidates; the frontier is the last committed token, which every row has."""
        none = context.seq.new_zeros((context.rows, 0))
        chances = torch.zeros((context.rows, 0), dtype=torch.float64, device=none.device)
        root = chances.new_zeros((context.rows, 1))
        return cls(none, chances, TokenTree.chain(none), [ROOT], root)

    def add(self, rows: Tensor, width: int) -> None:
        """Add the `width` most probable children of each node of the frontier from its rows [B, m, V]."""
        rows = rows.float() if rows.dtype.itemsize == 2 else rows
        top = rows.topk(min(width, rows.shape[-1]))
        chance = (top.values - rows.logsumexp(-1, keepdim=True)).double().clamp_max(0)
        chance = chance.nan_to_num(-torch.inf, neginf=-torch.inf)  # a broken row keeps nothing
        self.begun = len(self.parents)
        self.parents += [node for node in self.frontier for _ in range(chance.shape[-1])]
        self.ids = torch.cat([self.ids, top.indices.flatten(1)], 1)
        self.scores = torch.cat([self.scores, (self.above.unsqueeze(2) + chance).flatten(1)], 1)

    def feed(self, width: int, most: int) -> None:
        """Make the best `width` nodes of the last level in any row the frontier; `most` of them if rows differ."""
        last = self.scores[:, self.begun :]
        chosen = best(last, width)
        self.frontier = [self.begun + node for node in union(last, chosen, most)]
        for node in self.frontier:
            self.as_fed[node] = len(self.as_fed) - 1
        index = sent(torch.tensor(self.frontier), last.device)
        parents = tuple(self.as_fed[self.parents[node]] for node in self.frontier)
        self.fed = TokenTree(torch.cat([self.fed.ids, self.ids[:, index]], 1), (*self.fed.parents, *parents))
        self.above = self.scores[:, index].masked_fill(~chosen[:, index - self.begun], -torch.inf)

    def best(self, nodes: int, most: int, usable: Tensor) -> Grown:
        """The tree of the best `nodes` candidates of every row, at most `most` together; usable [B] levels of it."""
        chosen = best(self.scores, nodes)
        kept = union(self.scores, chosen, most)
        number = {ROOT: ROOT} | {node: place for place, node in enumerate(kept)}
        index = sent(torch.tensor(kept), chosen.device)
        tree = TokenTree(self.ids[:, index], tuple(number[self.parents[node]] for node in kept))
        within = constant(tree.topology.depths, chosen.device) <= usable.unsqueeze(1)
        there = (chosen & self.scores.isfinite())[:, index]
        as_fed = tuple(self.as_fed.get(node, -1) for node in kept)
        return Grown(tree, None, there & within, drafted=tree.deepest(there), fed=self.fed, as_fed=as_fed)


def best(scores: Tensor, most: int) -> Tensor:
    """[B, n] bool mask of the greatest scores of every row; ties go to the earlier one. A parent
    comes before its children, whose scores are no greater, so it is included if one of them is."""
    order = scores.sort(dim=1, descending=True, stable=True).indices[:, :most]
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(1, order, True)


def union(scores: Tensor, chosen: Tensor, most: int) -> list[int]:
    """The nodes chosen in any row, at most `most`, the best of any row; read by the host."""
    highest = torch.where(chosen, scores, -torch.inf).amax(0, keepdim=True)
    # Nodes with probability zero stay chosen: this keeps the number of nodes constant.
    rank = torch.where(chosen.any(0, keepdim=True), highest.clamp_min(torch.finfo(scores.dtype).min), -torch.inf)
    kept = best(rank, most) & rank.isfinite()
    return [node for node, there in enumerate(kept[0].tolist()) if there]
