"""Trees judged from the leaves up: the recursion against the rule that ships, and the best tree against Sequoia's."""

import pytest
import torch
from torch import Tensor

from specbench.decoding.drafters.branching import Independent
from specbench.decoding.drafters.tree import Planned
from specbench.decoding.loop import Speculate
from specbench.decoding.protocols import Verifier
from specbench.decoding.verifiers.rejection import Rejection
from specbench.decoding.verifiers.traversal import Traversal
from specbench.theory.leaves_up import (
    best_from_the_leaves,
    best_from_the_root,
    parents_of,
    rejection_chances,
    shape_of,
    shapes,
    traversal_tokens,
)
from specbench.theory.sequoia import Search
from specbench.theory.trees import tree_tokens
from tests.support.laws import EXACT, one_round
from tests.support.toys import PROMPT, Toy, random_pair

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
def test_the_best_tree_emits_at_least_what_sequoias_does(
    nodes: int, p: tuple[float, ...], q: tuple[float, ...]
) -> None:
    chances, first = rejection_chances(nodes, p, q), best_from_the_root(nodes, p, q)
    from_the_root = Search.over(chances, nodes, nodes).tokens(nodes, nodes)
    same_tree, best = (traversal_tokens(shape, p, q) for shape in (first, best_from_the_leaves(nodes, p, q)))
    assert from_the_root <= same_tree + EXACT <= best + 2 * EXACT
    assert best == max(traversal_tokens(shape, p, q) for shape in shapes(nodes))


def test_the_best_tree_of_the_one_rule_is_not_that_of_the_other() -> None:
    p, q = ROWS["wide draft"]
    first, best = best_from_the_root(4, p, q), best_from_the_leaves(4, p, q)
    assert first != best
    assert traversal_tokens(best, p, q) > traversal_tokens(first, p, q) + 0.03


def test_all_trees_are_there_once_and_shapes_are_parents() -> None:
    assert [len(shapes(n)) for n in range(1, 7)] == [1, 2, 5, 14, 42, 132]
    assert len(set(shapes(5))) == 42
    assert all(shape_of(parents_of(shape)) == shape for shape in shapes(5))
    assert parents_of(shape_of((-1, -1, 1, 1, 2))) == (-1, -1, 1, 1, 2)


@pytest.mark.parametrize(("p", "q"), [((0.5, 0.5), (1.0,)), ((0.5, 0.4), (0.5, 0.5)), ((1.5, -0.5), (0.5, 0.5))])
def test_rows_that_are_none_are_refused(p: tuple[float, ...], q: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="distribution"):
        traversal_tokens(((),), p, q)


def test_more_nodes_than_can_be_looked_at_are_refused() -> None:
    with pytest.raises(ValueError, match="1 to 9"):
        best_from_the_leaves(10, (1.0,), (1.0,))
