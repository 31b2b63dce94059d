"""Texts that begin alike as one token tree, and the trees of several rows on one topology.

Knows tokens and parents; must not know what the texts say, or which drafter they are of.
"""

from collections.abc import Mapping, Sequence

from specbench.decoding.tokens import ROOT

Place = tuple[int, ...]  # of a node: which child of its parent, from the root down; () is the root
Trie = dict[Place, int]  # the token at every place but the root, a parent before its children


def leaves(parents: Sequence[int], there: Sequence[bool]) -> list[list[int]]:
    """The paths, as nodes from the root down, to all nodes that are there and have no child that is; the first child of
    every node comes first."""
    children: dict[int, list[int]] = {node: [] for node in range(ROOT, len(parents))}
    for node, parent in enumerate(parents):
        if there[node]:
            children[parent].append(node)
    found, waiting = [], [[node] for node in reversed(children[ROOT])]
    while waiting:
        path = waiting.pop()
        below = children[path[-1]]
        found += [] if below else [path]
        waiting += [[*path, node] for node in reversed(below)]
    return found


def trie(texts: Sequence[Sequence[int]], most: int) -> Trie:
    """The tree of some texts, of `most` nodes at most: what earlier ones need comes first. No two children of a node
    have the same token, so every token of a text is proposed once at its place."""
    found: Trie = {}
    numbers: dict[Place, dict[int, Place]] = {}  # the children of a place by their tokens
    for text in texts:
        place: Place = ()
        for token in text:
            below = numbers.setdefault(place, {})
            if token not in below:
                if len(found) == most:
                    break
                below[token] = (*place, len(below))
                found[below[token]] = token
            place = below[token]
    return found


def together(tries: Sequence[Trie], most: int) -> tuple[list[Place], tuple[int, ...]]:
    """The places that any row has, at most so many, and the parents of the nodes there: a topology for all rows. Of too
    many those stay that come first in a row."""
    rank: dict[Place, int] = {}
    for one in tries:
        for number, place in enumerate(one):
            rank[place] = min(number, rank.get(place, number))
    places = sorted(rank, key=lambda place: (rank[place], place))[:most]  # a parent ranks before its children
    node: dict[Place, int] = {(): ROOT} | {place: n for n, place in enumerate(places)}
    return places, tuple(node[place[:-1]] for place in places)


def tokens_at(places: Sequence[Place], one: Mapping[Place, int]) -> list[int]:
    """The tokens of a row at some places; 0 where it has none."""
    return [one.get(place, 0) for place in places]
