"""Trees from a model: their shape, their children, and the law of what is emitted from them."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.decoding.decode import begin
from specbench.decoding.drafters.tree import Branching, Distinct, Expand, Independent, Top
from specbench.decoding.loop import Speculate
from specbench.decoding.randomness import seeded
from specbench.decoding.tokens import TokenTree, topology
from specbench.decoding.verifiers.rejection import Rejection
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from tests.support.laws import EXACT, block_error, one_round, proposals
from tests.support.tiny import network
from tests.support.toys import CPU, KINDS, PROMPT, Toy, chain, random_pair

WAYS: list[Branching] = [Top(), Independent(), Distinct()]
ways = pytest.mark.parametrize("branching", WAYS, ids=lambda way: type(way).__name__)


def tree(p: Tensor, q: Tensor, k: int, widths: tuple[int, ...], branching: Branching) -> Speculate:
    return Speculate(Expand(Toy(q), k, widths, branching), Toy(p), Rejection())


@pytest.mark.parametrize(
    ("k", "widths", "parents"),
    [
        (1, (3,), (-1, -1, -1)),
        (2, (2, 2), (-1, -1, 0, 0, 1, 1)),
        (3, (2,), (-1, -1, 0, 1, 2, 3)),
        (2, (), (-1, 0)),
        (1, (2, 5), (-1, -1)),
        (3, (1, 2), (-1, 0, 0, 1, 2)),
    ],
)
def test_an_expansion_stands_level_by_level(k: int, widths: tuple[int, ...], parents: tuple[int, ...]) -> None:
    p, q = random_pair(0, 3, 5)
    drafter = tree(p, q, k, widths, Top()).drafter
    draft, _ = proposals(drafter, PROMPT, k)
    assert draft.tree.parents == parents
    assert drafter.room == len(parents)
    assert topology(parents).depth == k


@ways
@pytest.mark.parametrize(
    ("vocab", "k", "widths"), [(2, 1, (3,)), (3, 1, (2,)), (2, 2, (2, 2)), (3, 2, (2,)), (3, 2, (1, 2)), (2, 3, (2,))]
)
def test_a_tree_emits_the_law_of_its_target(vocab: int, k: int, widths: tuple[int, ...], branching: Branching) -> None:
    for seed in range(len(KINDS)):
        p, q = random_pair(seed, vocab, k + 1)
        assert block_error(tree(p, q, k, widths, branching), p, k + 1) <= EXACT, seed


@ways
def test_a_tree_accepts_more_than_a_chain_of_its_depth(branching: Branching) -> None:
    gains = []
    for seed in range(len(KINDS)):
        p, q = random_pair(seed, 3, 3)
        found = [one_round(method, [PROMPT], 4) for method in (tree(p, q, 2, (2, 2), branching), chain(p, q, 2))]
        gains.append(float(found[0].mean(found[0].step.round.accepted) - found[1].mean(found[1].step.round.accepted)))
    assert max(gains) > 0.2
    if not isinstance(branching, Top):  # a point mass may be accepted less often than a draw
        assert min(gains) >= -1e-12


def test_top_children_are_the_most_probable_and_point_masses() -> None:
    rows = torch.tensor([[[0.1, 0.6, 0.3]]])
    ids, q, there = Top().children(rows, 2, None)  # type: ignore[arg-type]
    assert (ids.tolist(), q, there.tolist()) == ([[[1, 2]]], None, [[[True, True]]])
    _, _, there = Top().children(rows, 5, None)  # type: ignore[arg-type]
    assert there.tolist() == [[[True] * 3 + [False] * 2]]


def test_distinct_children_differ_and_end_with_the_law() -> None:
    p, q = random_pair(2, 3, 2)  # laws of one point
    draft, _ = proposals(tree(p, q, 1, (3,), Distinct()).drafter, PROMPT, 1)
    assert draft.valid.tolist() == [[True, False, False]]
    p, q = random_pair(0, 3, 2)
    draft, weight = proposals(tree(p, q, 1, (3,), Distinct()).drafter, PROMPT, 1)
    assert {len(set(ids)) for ids in draft.tree.ids.tolist()} == {3}
    assert Counter(map(tuple, draft.valid.tolist())) == {(True,) * 3: len(weight)}


def test_rows_that_can_use_less_have_fewer_levels() -> None:
    _, q = random_pair(0, 3, 6)
    context = begin([(0,), (1, 0), (2,)], 9, 14, (), CPU)
    context.last[0], context.live[2] = context.pos[0] + 2, False
    draft = Expand(Toy(q), 3, (2, 2), Top()).propose(context, None, None)  # type: ignore[arg-type]
    assert draft.valid.sum(1).tolist() == [2, 2 + 4 + 4, 0]


@pytest.mark.parametrize("widths", [(), (2, 2), (1, 3), (3,)], ids=str)
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3", "gpt2"])
def test_rows_level_by_level_are_those_of_the_whole_tree(name: str, widths: tuple[int, ...]) -> None:
    """A level feeds itself alone; what lies above it was fed before, at the slots where it looks for it."""
    rng, rows = seeded([1, 2], CPU), []

    class Watched(Causal):
        def expand(self, *arguments: Any, **named: Any) -> Tensor:
            rows.append(super().expand(*arguments, **named))
            return rows[-1]

    model = Watched(network(name, 24), Sampling(1.0), 24)
    drafter = Expand(model, 3, widths, Distinct())
    context = begin([[3, 1, 4, 1, 5], [9, 2]], 9, drafter.room, (), CPU)
    drafter.start(context)
    draft = drafter.propose(context, None, rng)
    nodes = sum(level.shape[1] for level in rows) - 1  # the last level is never fed
    inner = TokenTree(draft.tree.ids[:, :nodes], draft.tree.parents[:nodes])
    fresh = Causal(network(name, 24), Sampling(1.0), 24)
    fresh.start(context)
    assert (torch.cat(rows, 1) - fresh.probs(context, inner)).abs().max() < 1e-12
