"""What follows from the parents of a tree: depths, ranks of siblings, paths."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.decoding.tokens import ROOT, Rank, TokenTree, ancestors, constant, topology
from tests.support.toys import CPU

#        root ─┬─ 0 ─┬─ 2
#              │     └─ 4 ── 5
#              └─ 1 ─── 3
BUSH = (-1, -1, 0, 1, 0, 4)

trees = st.integers(0, 8).flatmap(lambda n: st.tuples(*(st.integers(ROOT, node - 1) for node in range(n))))


def test_a_bush_is_read_off_its_parents() -> None:
    shape = topology(BUSH)
    assert shape.depths == (1, 1, 2, 2, 2, 3)
    assert shape.depth == 3
    assert shape.ranks == (Rank((0, 2, 3, 5), (-1, 0, 1, 4)), Rank((1, 4), (-1, 0)))
    assert not shape.is_chain


def test_a_chain_has_one_rank() -> None:
    tree = TokenTree.chain(torch.tensor([[5, 6, 7], [1, 2, 3]]))
    assert tree.parents == (-1, 0, 1)
    assert tree.size == 3
    assert tree.topology.is_chain
    assert tree.topology.depths == (1, 2, 3)
    assert tree.topology.ranks == (Rank((0, 1, 2), (-1, 0, 1)),)


def test_an_empty_tree_is_a_chain_of_no_depth() -> None:
    tree = TokenTree.chain(torch.zeros((2, 0), dtype=torch.long))
    assert (tree.size, tree.topology.depth, tree.topology.ranks, tree.topology.is_chain) == (0, 0, (), True)
    assert ancestors(tree.parents, CPU).shape == (0, 0)


def test_a_constant_is_made_once() -> None:
    assert constant((2, 0, -1), CPU).tolist() == [2, 0, -1]
    assert constant((2, 0, -1), CPU) is constant((2, 0, -1), CPU)


@pytest.mark.parametrize("parents", [(0,), (-1, 1), (-2,), (-1, 5)])
def test_a_parent_that_does_not_come_first_is_refused(parents: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="a parent comes before its child, -1 is the root"):
        topology(parents)


@settings(max_examples=200)
@given(trees)
def test_ranks_hold_every_node_once_and_no_two_siblings(parents: tuple[int, ...]) -> None:
    ranks = topology(parents).ranks
    assert sorted(node for rank in ranks for node in rank.nodes) == list(range(len(parents)))
    for number, rank in enumerate(ranks):
        assert rank.parents == tuple(parents[node] for node in rank.nodes)
        assert len(set(rank.parents)) == len(rank.parents)
        assert all(parents[:node].count(parents[node]) == number for node in rank.nodes)  # tested in their order


@settings(max_examples=200)
@given(trees)
def test_the_ancestors_of_a_node_are_its_path_from_the_root(parents: tuple[int, ...]) -> None:
    seen, depths = ancestors(parents, CPU), topology(parents).depths
    for node in range(len(parents)):
        path, here = set(), node
        while here != ROOT:
            path.add(here)
            here = parents[here]
        assert set(seen[node].nonzero().flatten().tolist()) == path
        assert depths[node] == len(path)
