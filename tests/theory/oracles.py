"""Plain formulas that the tests hold the package against: tokens of a round by a tree, and by both rules on a tree.

p and q are one row of the target and one of the draft that hold at every node; children are drawn from q independently.
From the leaves up is traversal verification, Weng et al. 2025, arXiv 2505.12398. A child is reached with a weight that
its token decides, so there is no dynamic programme over sizes, and the best tree is found among all of a size.
"""

import math
from collections.abc import Iterator, Sequence
from functools import cache

from specbench.theory.optimum import ROOT, Costs

Shape = tuple["Shape", ...]  # the children of a node, each by its own children


def tree_tokens(parents: Sequence[int], chances: Sequence[float]) -> float:
    """F = Σ over nodes of Π p along the path, the root counted as 1. Sequoia, §3.

    chances[i]: that node i is the accepted child of its parent, given that the parent was accepted.
    """
    reached: list[float] = []
    for parent, chance in zip(parents, chances, strict=True):
        reached.append(chance * (reached[parent] if parent != ROOT else 1.0))
    return 1.0 + sum(reached)


def rejection_chances(children: int, p: Sequence[float], q: Sequence[float]) -> tuple[float, ...]:
    """The chance that child b of an accepted node is the accepted one, from the root down: what `Search` takes."""
    missed, row, found = 1.0, tuple(p), list[float]()
    for _ in range(children):
        hit = math.fsum(map(min, row, q))
        found.append(missed * hit)
        missed *= 1 - hit
        rest = [max(a - b, 0.0) for a, b in zip(row, q, strict=True)]
        mass = math.fsum(rest)
        if not mass:
            break
        row = tuple(one / mass for one in rest)
    return tuple(found)


def traversal_tokens(shape: Shape, p: Sequence[float], q: Sequence[float]) -> float:
    """Tokens of a round from the leaves up, for a tree by the children of its root.

    A subtree that is reached with weight w ends the walk somewhere in it with chance w: so each child adds its mean
    weight, and what is expected below it, if all its older siblings were rejected.
    """
    return 1 + below(shape, 1.0, tuple(p), tuple(q))


def below(shape: Shape, weight: float, p: tuple[float, ...], q: tuple[float, ...]) -> float:
    """Expected accepted nodes below one that is reached with this weight."""
    missed, found, row = 1.0, 0.0, p
    for child in shape:
        weights = [min(1.0, weight * a / b) if b else 0.0 for a, b in zip(row, q, strict=True)]
        found += missed * math.fsum(b * (w + below(child, w, p, q)) for b, w in zip(q, weights, strict=True) if b)
        missed *= 1 - math.fsum(b * w for b, w in zip(q, weights, strict=True))
        rest = [max(weight * a - b, 0.0) for a, b in zip(row, q, strict=True)]
        mass = math.fsum(rest)
        weight = mass / (mass + 1 - weight) if mass + 1 - weight > 0 else 1.0
        row = tuple(one / mass for one in rest) if mass else row
    return found


def best_from_the_leaves(nodes: int, p: Sequence[float], q: Sequence[float]) -> Shape:
    """The tree of so many nodes that emits the most from the leaves up; of equals the first of `shapes`."""
    return max(shapes(nodes), key=lambda shape: traversal_tokens(shape, p, q))


@cache
def shapes(nodes: int) -> tuple[Shape, ...]:
    """All trees of so many nodes below the root, the order of siblings counted."""
    return tuple(_with_first_child(nodes)) if nodes else ((),)


def _with_first_child(nodes: int) -> Iterator[Shape]:
    for size in range(nodes - 1, -1, -1):
        for child in shapes(size):
            for siblings in shapes(nodes - 1 - size):
                yield (child, *siblings)


def shape_of(parents: Sequence[int]) -> Shape:
    """A tree by the parents of its nodes (-1: the root) as the children of the root."""

    def children(node: int) -> Shape:
        return tuple(children(child) for child, parent in enumerate(parents) if parent == node)

    return children(ROOT)


def round_costs(first: float, later: float, verify: Sequence[float], overhead: float) -> tuple[float, ...]:
    """Cost of a round in target decode steps, by K = 0..len(verify) − 1; K = 0 is plain decoding."""
    return (1.0, *Costs(first, later, tuple(verify), overhead).rounds(len(verify) - 1))


def chain_costs(c: float, length: int) -> tuple[float, ...]:
    """Cost of a draft of 0..length tokens from a model at c per token: the innermost `draft` of `nested_costs`."""
    return tuple(i * c for i in range(length + 1))
