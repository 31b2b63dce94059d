"""The best token tree for measured acceptance and measured costs (Sequoia, Chen et al. 2024, arXiv 2402.12374, §3, §4).

acceptance[b] is the probability that child b of an accepted node is the accepted one: its earlier siblings were
rejected, and it was not. A node is accepted with the product of these along its path, so F(tree) = 1 + Σ over nodes of
that product is the number of tokens per round, if a child's probability depends only on its rank among its siblings.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import add, attrgetter
from typing import Literal

Aim = Literal["speedup", "tokens"]  # on this machine, or on any machine

ROOT = -1  # the parent of a first token
NEVER = -math.inf  # no tree has that many nodes at that depth


@dataclass(frozen=True)
class Size:
    """The size of a tree, and for the best of that size the tokens of a round and its cost in baseline steps."""

    nodes: int
    depth: int
    tokens: float
    cost: float

    @property
    def speedup(self) -> float:
        return self.tokens / self.cost


@dataclass(frozen=True)
class Search:
    """All trees of at most `nodes` nodes and `depth` levels, searched at once.

    subtree[d][m]: the most tokens of a subtree of m nodes, its root included, at most d levels
    below it, if that root is accepted. forest[d][b][m]: the tokens added by the first b
    children of such a root with m nodes in these subtrees.
    """

    acceptance: tuple[float, ...]
    subtree: tuple[tuple[float, ...], ...]
    forest: tuple[tuple[tuple[float, ...], ...], ...]

    @classmethod
    def over(cls, acceptance: Sequence[float], nodes: int, depth: int) -> "Search":
        """The dynamic programme; `nodes` and `depth` at least 1. ValueError if an argument is out of range."""
        if not acceptance or not all(0 <= chance <= 1 for chance in acceptance) or sum(acceptance) > 1 + 1e-9:
            shown = list(acceptance)
            raise ValueError(f"acceptance: chances of siblings must be in [0, 1], together at most 1, got {shown}")
        if min(nodes, depth) < 1:
            raise ValueError(f"a tree has at least one node and one level, got {nodes} and {depth}")
        subtree = [(NEVER, 1.0, *[NEVER] * nodes)]
        forest: list[tuple[tuple[float, ...], ...]] = [()]
        for _ in range(depth):
            below = subtree[-1]
            children = [(0.0, *[NEVER] * nodes)]
            for chance in acceptance:
                before = children[-1]
                backwards = scaled(below, chance)[nodes::-1]
                # for every number of nodes the best division between this child and those before it
                best = (max(map(add, before[:m], backwards[nodes - m : nodes])) for m in range(1, nodes + 1))
                children.append((NEVER, *best))
            forest.append(tuple(children))
            subtree.append((NEVER, *(1 + max(some[m] for some in children) for m in range(nodes + 1))))
        return cls(tuple(acceptance), tuple(subtree), tuple(forest))

    def tokens(self, nodes: int, depth: int) -> float:
        """The most tokens per round of a tree of exactly `nodes` nodes in at most `depth` levels; else -inf."""
        return self.subtree[depth][nodes + 1]

    def tree(self, nodes: int, depth: int) -> tuple[int, ...]:
        """The parents of that tree, level by level, siblings in their order. ValueError if it does not exist."""
        if self.tokens(nodes, depth) == NEVER:
            raise ValueError(f"{nodes} nodes fit into no tree of {depth} levels with {len(self.acceptance)} children")
        parents: list[int] = []
        waiting = [(ROOT, nodes + 1, depth)]
        for node, size, levels in waiting:  # it grows while it is read
            for part in self.children(size, levels):
                waiting.append((len(parents), part, levels - 1))
                parents.append(node)
        return tuple(parents)

    def children(self, size: int, depth: int) -> list[int]:
        """The number of nodes in each child's subtree in the best subtree of `size` nodes."""
        left, parts = size - 1, list[int]()
        if not left:
            return parts
        forest, below = self.forest[depth], self.subtree[depth - 1]
        for place in range(max(range(len(forest)), key=lambda b: forest[b][left]), 0, -1):
            child = scaled(below, self.acceptance[place - 1])
            shares = list(map(add, forest[place - 1][:left], child[left:0:-1]))
            parts.append(left - shares.index(max(shares)))
            left -= parts[-1]
        return parts[::-1]


def scaled(tokens: Sequence[float], chance: float) -> tuple[float, ...]:
    return tuple(chance * some if some > NEVER else NEVER for some in tokens)


def best_sizes(
    search: Search, first: float, later: float, verify: Sequence[float], overhead: float, aim: Aim = "speedup"
) -> tuple[Size, ...]:
    """For every number of nodes m the depth d with the greatest speedup, F ÷ cost of a round, or the most tokens, F.

    The cost is first + (d − 1)·later + verify[m] + overhead as in `optimum.Costs`. Goes
    up to as many nodes as both `search` and `verify` cover; empty if that is not even one.
    """
    found = []
    for m in range(1, min(len(search.subtree[0]) - 1, len(verify))):
        sizes = [
            Size(m, d, search.tokens(m, d), first + (d - 1) * later + verify[m] + overhead)
            for d in range(1, len(search.subtree))
            if search.tokens(m, d) > NEVER
        ]
        found += [max(sizes, key=attrgetter(aim))] if sizes else []
    return tuple(found)
