"""Token trees: ids and parents, and the topology derived from the parents."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import NewType

import torch
from torch import Tensor

ROOT = -1  # the parent of a first token: the last committed token
Parent = NewType("Parent", int)  # a node, or the root


@dataclass(frozen=True)
class Rank:
    """The s-th child of every node that has one: `nodes[i]` is drafted under node `parents[i]` (-1: the root)."""

    nodes: tuple[int, ...]
    parents: tuple[int, ...]


@dataclass(frozen=True)
class Topology:
    """The properties of a tree that depend on its parents alone; computed once per shape.

    `depths[i]` counts edges from the root, so it is at least 1; `ranks` lists the children by
    their order among their siblings, which is the order in which they are tested.
    """

    depths: tuple[int, ...]
    ranks: tuple[Rank, ...]
    is_chain: bool

    @property
    def depth(self) -> int:
        return max(self.depths, default=0)


@lru_cache(maxsize=1024)
def topology(parents: tuple[int, ...]) -> Topology:
    """The topology of a tree; raises ValueError if a parent does not come before its child."""
    depths: list[int] = []
    order: list[int] = []
    for node, parent in enumerate(parents):
        if not ROOT <= parent < node:
            raise ValueError(f"node {node} has parent {parent}: a parent comes before its child, -1 is the root")
        depths.append(1 if parent == ROOT else depths[parent] + 1)
        order.append(parents[:node].count(parent))
    ranks = tuple(
        Rank(nodes, tuple(parents[n] for n in nodes))
        for rank in range(max(order, default=-1) + 1)
        if (nodes := tuple(n for n, o in enumerate(order) if o == rank))
    )
    return Topology(tuple(depths), ranks, parents == tuple(range(-1, len(parents) - 1)))


@dataclass(frozen=True)
class Level:
    """How a level of a tree is drafted: by one pass over those nodes of the level above that have children.

    families: positions in that pass, and the number of children of each; nodes with equal numbers are one family.
    parents: of the level's nodes in the order of the families, numbered in the tree so far. fed: the number of each in
    the tree of all nodes with children, -1 if it has none. above: the parents, in that tree, of those with children.
    """

    families: tuple[tuple[tuple[int, ...], int], ...]
    parents: tuple[int, ...]
    fed: tuple[int, ...]
    above: tuple[int, ...]

    @property
    def inner(self) -> tuple[int, ...]:
        """The positions in the level of its nodes with children."""
        return tuple(place for place, number in enumerate(self.fed) if number >= 0)


@lru_cache(maxsize=1024)
def levels(parents: tuple[int, ...]) -> tuple[Level, ...]:
    """A tree level by level; siblings keep their order, nodes are renumbered. ValueError as in `topology`."""
    topology(parents)
    children: dict[int, list[int]] = {node: [] for node in range(ROOT, len(parents))}
    for node, parent in enumerate(parents):
        children[parent].append(node)
    number, fed, found = {ROOT: ROOT}, {ROOT: ROOT}, []
    above = [ROOT] if parents else []
    while above:
        widths = dict.fromkeys(len(children[node]) for node in above)
        families = tuple((tuple(i for i, n in enumerate(above) if len(children[n]) == w), w) for w in widths)
        below = [child for places, _ in families for place in places for child in children[above[place]]]
        above = [node for node in below if children[node]]
        of_below, of_above = tuple(number[parents[n]] for n in below), tuple(fed[parents[n]] for n in above)
        for numbers, nodes in ((number, below), (fed, above)):
            for node in nodes:
                numbers[node] = len(numbers) - 1
        found.append(Level(families, of_below, tuple(fed.get(n, -1) for n in below), of_above))
    return tuple(found)


def constant(values: tuple[float, ...], device: torch.device, dtype: torch.dtype = torch.long) -> Tensor:
    """[n] on the device, made once, for values that recur. In a compiled round it is a constant of the code."""
    if torch.compiler.is_compiling():
        with torch.inference_mode(False):
            return torch.tensor(values, dtype=dtype, device=device)
    found = kept(values, device, dtype)
    for some in _holders:
        some.append(found)
    return found


@lru_cache(maxsize=4096)
def kept(values: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """[n] as `constant` makes them the first time."""
    with torch.inference_mode(False):  # a compiler may be its next user
        return sent(torch.tensor(values, dtype=dtype), device)


_holders: list[list[Tensor]] = []


@contextmanager
def holding() -> Iterator[list[Tensor]]:
    """Collect the constants that the enclosed code uses: a captured graph reads them even if others replace them."""
    _holders.append([])
    try:
        yield _holders[-1]
    finally:
        _holders.pop()


def sent(data: Tensor, device: torch.device) -> Tensor:
    """Data of the host on the device. From pageable memory the host would wait for all that the device has to do."""
    return data.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else data.to(device)


def picked(rows: Tensor, numbers: tuple[int, ...]) -> Tensor:
    """[B, m, ...] those of the rows [B, n, ...] with these numbers; a view of them if they are consecutive."""
    first, count = numbers[0], len(numbers)
    if numbers == tuple(range(first, first + count)):
        return rows[:, first : first + count]
    return rows[:, constant(numbers, rows.device)]


@lru_cache(maxsize=1024)
def lineage(parents: tuple[int, ...]) -> tuple[bool, ...]:
    """The n · n values of `ancestors`, row by row."""
    paths: list[set[int]] = []
    for node, parent in enumerate(parents):
        paths.append({node} | (paths[parent] if parent != ROOT else set()))
    return tuple(other in path for path in paths for other in range(len(parents)))


def ancestors(parents: tuple[int, ...], device: torch.device) -> Tensor:
    """[n, n] bool: whether node j is node i or on the path from the root to it."""
    return constant(lineage(parents), device, torch.bool).view(len(parents), len(parents))


@dataclass(frozen=True)
class TokenTree:
    """ids [B, n] on one topology shared by the rows: `parents[i] < i`; -1 is the last committed token."""

    ids: Tensor
    parents: tuple[int, ...]

    @staticmethod
    def chain(ids: Tensor) -> "TokenTree":
        """The tree of B chains, each node the only child of the one before it. ids [B, n]."""
        return TokenTree(ids, tuple(range(-1, ids.shape[1] - 1)))

    @property
    def size(self) -> int:
        return len(self.parents)

    @property
    def topology(self) -> Topology:
        return topology(self.parents)

    def deepest(self, there: Tensor) -> Tensor:
        """[B] the last level on which a row has one of the nodes in the mask [B, n], n ≥ 1; 0 if it has none."""
        return (there * constant(self.topology.depths, there.device)).amax(1)
