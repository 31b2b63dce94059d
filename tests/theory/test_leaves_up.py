"""Trees judged from the leaves up: the recursion against the rule that ships, and the best tree against Sequoia's."""

import pytest
import torch
from torch import Tensor

from specbench.decoding.drafters.tree import Independent, Planned
from specbench.decoding.loop import Speculate
from specbench.decoding.protocols import Verifier
from specbench.decoding.verifiers.block import Traversal
from specbench.decoding.verifiers.rejection import Rejection
from specbench.theory.sequoia import Search
from tests.support.laws import EXACT, one_round
from tests.support.toys import PROMPT, Toy, random_pair
from tests.theory.oracles import (
    best_from_the_leaves,
    rejection_chances,
    shape_of,
    shapes,
    traversal_tokens,
    tree_tokens,
)

ROWS = {
    "near": ((0.6, 0.3, 0.1), (0.5, 0.3, 0.2)),
    "far": ((0.1, 0.3, 0.6), (0.5, 0.3, 0.2)),
    "wide draft": ((0.9, 0.05, 0.05), (0.5, 0.3, 0.2)),
}
rows = pytest.mark.parametrize(("p", "q"), ROWS.values(), ids=ROWS)


def everywhere(row: tuple[float, ...], levels: int) -> Toy:
    """A model whose row is the same after every text."""
    like, _ = random_pair(0, len(row), levels)
    return Toy(torch.tensor(row, dtype=torch.float64).expand_as(like).clone())


def emitted(parents: tuple[int, ...], p: tuple[float, ...], q: tuple[float, ...], verifier: Verifier) -> float:
    """Tokens of a round of the loop that ships, over all its draws."""
    levels = len(parents) + 1
    method = Speculate(Planned(everywhere(q, levels), parents, Independent()), everywhere(p, levels), verifier)
    found = one_round(method, [PROMPT], method.drafter.depth + 2)
    accepted: Tensor = found.step.round.accepted
    return 1 + float(found.mean(accepted))


@rows
@pytest.mark.parametrize("parents", [(-1, 0), (-1, -1), (-1, -1, 0), (-1, -1, 1), (-1, 0, -1, 2)], ids=str)
def test_the_recursion_is_what_the_rule_emits(
    parents: tuple[int, ...], p: tuple[float, ...], q: tuple[float, ...]
) -> None:
    assert traversal_tokens(shape_of(parents), p, q) == pytest.approx(emitted(parents, p, q, Traversal()), abs=EXACT)


@rows
def test_sequoias_chances_are_those_of_the_rule_from_the_root(p: tuple[float, ...], q: tuple[float, ...]) -> None:
    chances = rejection_chances(3, p, q)
    parents = (-1, -1, 1)
    assert tree_tokens(parents, [chances[0], chances[1], chances[0]]) == pytest.approx(
        emitted(parents, p, q, Rejection()), abs=EXACT
    )


@rows
@pytest.mark.parametrize("nodes", [2, 4, 5])
def test_sequoias_tree_emits_no_more_than_the_best_one_from_the_leaves_up(
    nodes: int, p: tuple[float, ...], q: tuple[float, ...]
) -> None:
    search = Search.over(rejection_chances(nodes, p, q), nodes, nodes)
    first, best = shape_of(search.tree(nodes, nodes)), best_from_the_leaves(nodes, p, q)
    by_traversal = traversal_tokens(first, p, q)
    assert search.tokens(nodes, nodes) <= by_traversal + EXACT <= traversal_tokens(best, p, q) + 2 * EXACT
    if (p, q, nodes) == (*ROWS["wide draft"], 4):
        assert traversal_tokens(best, p, q) > by_traversal + 0.03


def test_all_trees_are_there_once() -> None:
    assert [len(set(shapes(n))) for n in range(1, 7)] == [1, 2, 5, 14, 42, 132]
