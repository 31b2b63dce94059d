"""What trees emit that are judged from the leaves up (traversal verification, Weng et al. 2025, arXiv 2505.12398).

Knows only numbers: one row p of the target and one row q of the draft, which hold at every node, and children drawn
from q independently. From the root down a node is accepted by chances that multiply along its path, so the best tree of
a size is made of best subtrees (`sequoia`). From the leaves up a child is reached with a weight that its token decides;
which subtree is best depends on that weight, while the shape is fixed before anything is drawn. So there is no
programme over sizes: the tokens of a tree are a recursion over weights, and the best of a size is found among all.
"""

import math
from collections.abc import Iterator, Sequence
from functools import cache

from specbench.theory.sequoia import Search
from specbench.theory.trees import ROOT

Shape = tuple["Shape", ...]  # the children of a node, each by its own children
MOST = 9  # nodes: there are 4,862 trees of nine


def traversal_tokens(shape: Shape, p: Sequence[float], q: Sequence[float]) -> float:
    """Tokens of a round: 1 and the expected accepted path, for a tree by the children of its root.

    A subtree that is reached with weight w ends the walk somewhere in it with chance w: so each child adds its mean
    weight, and what is expected below it, if all its older siblings were rejected.
    """
    check_rows(p, q)
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


def rejection_chances(children: int, p: Sequence[float], q: Sequence[float]) -> tuple[float, ...]:
    """The chance that child b of an accepted node is the accepted one, judged from the root down: what `Search` takes.
    At least the first; none that is never accepted after it."""
    check_rows(p, q)
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


def best_from_the_root(nodes: int, p: Sequence[float], q: Sequence[float]) -> Shape:
    """Sequoia's best tree of so many nodes, of any depth."""
    parents = Search.over(rejection_chances(nodes, p, q), nodes, nodes).tree(nodes, nodes)
    return shape_of(parents)


def best_from_the_leaves(nodes: int, p: Sequence[float], q: Sequence[float]) -> Shape:
    """The tree of so many nodes, at most `MOST`, that emits the most by traversal; of equals the first of `shapes`."""
    if not 1 <= nodes <= MOST:
        raise ValueError(f"all trees of 1 to {MOST} nodes can be looked at, got {nodes}")
    return max(shapes(nodes), key=lambda shape: traversal_tokens(shape, p, q))


@cache
def shapes(nodes: int) -> tuple[Shape, ...]:
    """All trees of so many nodes below the root, the order of siblings counted."""
    if not nodes:
        return ((),)
    return tuple(_with_first_child(nodes))


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


def parents_of(shape: Shape) -> tuple[int, ...]:
    """The same by the parents of its nodes, level by level."""
    found: list[int] = []
    waiting = [(ROOT, shape)]
    for node, children in waiting:  # it grows while it is read
        for child in children:
            waiting.append((len(found), child))
            found.append(node)
    return tuple(found)


def check_rows(p: Sequence[float], q: Sequence[float]) -> None:
    """ValueError unless both are distributions over the same tokens."""
    for name, row in (("p", p), ("q", q)):
        if len(p) != len(q) or min(row, default=-1) < 0 or abs(math.fsum(row) - 1) > 1e-9:
            raise ValueError(f"{name} must be a distribution over as many tokens as the other, got {list(row)[:8]}")
