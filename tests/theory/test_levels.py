"""Trees, nests and relays by formula: golden values, limits that are the chain's, and simulations with a fixed seed."""

import heapq
import random
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.theory import formulas
from specbench.theory.levels import chain_costs, nested_costs, relay_speedup, vertical_speedup, vertical_tokens
from specbench.theory.trees import tree_speedup, tree_tokens

shares = st.floats(0, 1)
quick = settings(max_examples=100)


def best_tree(chances: tuple[float, ...], nodes: int, depth: int = 8) -> tuple[list[int], list[float]]:
    """The tree of so many nodes with the root, taken greedily by their products: optimal where any shape may be had."""
    parents: list[int] = []
    own: list[float] = []
    tie = count()
    queue = [(-p, next(tie), -1, p, 1) for p in chances]
    heapq.heapify(queue)
    while len(parents) < nodes - 1:
        product, _, parent, chance, level = heapq.heappop(queue)
        parents.append(parent)
        own.append(chance)
        if level < depth:
            for p in chances:
                heapq.heappush(queue, (product * p, next(tie), len(parents) - 1, p, level + 1))
    return parents, own


# Sequoia's measure of a tree, from its dynamic programme: tokens of the best tree of 2, 3, 4, 6, 8 nodes.
@pytest.mark.parametrize(
    ("chances", "golden"),
    [
        ((0.6, 0.2, 0.1), (1.6, 1.96, 2.176, 2.5056, 2.7456)),
        ((0.7, 0.1, 0.05), (1.7, 2.19, 2.533, 2.9412, 3.1588)),
        ((0.4, 0.3, 0.15), (1.4, 1.7, 1.86, 2.13, 2.34)),
    ],
)
def test_the_tokens_of_the_best_trees_are_sequoias(chances: tuple[float, ...], golden: tuple[float, ...]) -> None:
    found = [tree_tokens(*best_tree(chances, nodes)) for nodes in (2, 3, 4, 6, 8)]
    assert [round(value, 4) for value in found] == [pytest.approx(value, abs=5.1e-5) for value in golden]


@quick
@given(shares, st.integers(0, 12))
def test_a_tree_without_branches_is_a_chain(alpha: float, k: int) -> None:
    tokens = tree_tokens(range(-1, k - 1), [alpha] * k)
    assert tokens == pytest.approx(formulas.expected_tokens(alpha, k), rel=1e-12)
    assert tree_speedup(min(tokens, k + 1.0), k, 0.1, 1.0) == pytest.approx(formulas.speedup(alpha, k, 0.1), rel=1e-12)


def test_a_tree_by_simulation() -> None:
    parents, chances = (-1, -1, 0, 0, 1, 2), (0.5, 0.2, 0.4, 0.3, 0.7, 0.6)
    draw, rounds, tokens = random.Random(0), 60_000, 0
    for _ in range(rounds):
        here, tokens = -1, tokens + 1
        while True:
            u, children = draw.random(), [n for n, p in enumerate(parents) if p == here]
            for node in children:
                u -= chances[node]
                if u < 0:
                    break
            else:
                break
            here, tokens = node, tokens + 1
    assert tokens / rounds == pytest.approx(tree_tokens(parents, chances), rel=0.01)


def inner_round(draw: random.Random, alpha: float, k: int) -> int:
    """Tokens that a round emits."""
    accepted = 0
    while accepted < k and draw.random() < alpha:
        accepted += 1
    return accepted + 1


def test_the_vertical_cascade_has_its_golden_value_and_agrees_with_a_simulation() -> None:
    assert vertical_tokens(0.8, 0.5, 2, 3) == pytest.approx(3.1764, abs=5e-5)
    draw, rounds = random.Random(1), 60_000
    tokens = sum(inner_round(draw, 0.8, sum(inner_round(draw, 0.5, 3) for _ in range(2))) for _ in range(rounds))
    assert tokens / rounds == pytest.approx(vertical_tokens(0.8, 0.5, 2, 3), rel=0.01)
    assert vertical_speedup(0.8, 0.5, 2, 3, 0.2, 0.05) == pytest.approx(3.17641984 / (1 + 2 * 0.2 + 6 * 0.05))


@quick
@given(shares, shares, st.floats(0, 1))
def test_one_inner_round_without_a_draft_is_a_chain_of_one(alpha: float, inner: float, c: float) -> None:
    assert vertical_speedup(alpha, inner, 1, 0, c, 9.0) == pytest.approx(formulas.speedup(alpha, 1, c), rel=1e-9)


def test_where_everything_is_accepted_the_cascade_is_as_long_as_its_draft() -> None:
    assert vertical_tokens(1.0, 0.5, 2, 3) == 1 + 2 * formulas.expected_tokens(0.5, 3)
    assert vertical_tokens(1 - 1e-9, 0.5, 2, 3) == pytest.approx(vertical_tokens(1.0, 0.5, 2, 3), rel=1e-7)


def test_the_draft_of_a_nest_costs_what_a_simulation_of_its_rounds_costs() -> None:
    alpha, k, length, pass_, c = 0.6, 3, 7, 0.3, 0.05
    draw, trials, cost = random.Random(2), 40_000, 0.0
    for _ in range(trials):
        missing = length
        while missing:
            most = min(k, missing - 1)
            cost += pass_ + most * c
            missing -= inner_round(draw, alpha, most)
    assert nested_costs(alpha, k, pass_, chain_costs(c, length))[length] == pytest.approx(cost / trials, rel=0.01)


def test_a_token_of_a_long_nested_draft_costs_a_round_by_its_tokens() -> None:
    costs = nested_costs(0.5, 3, 0.2, chain_costs(0.05, 400))
    assert costs[400] - costs[399] == pytest.approx((0.2 + 3 * 0.05) / formulas.expected_tokens(0.5, 3), rel=1e-9)


def test_nests_by_hand_and_at_their_limits() -> None:
    assert nested_costs(0.5, 3, 0.2, chain_costs(0.05, 1))[1:] == (
        pytest.approx(0.2),  # one token is missing: nothing is drafted for it
        pytest.approx(0.2 + 0.05 + 0.5 * 0.2),  # one is drafted, and half the time another round is needed
    )
    assert nested_costs(1.0, 3, 0.2, chain_costs(0.05, 4))[4] == pytest.approx(0.2 + 3 * 0.05)
    assert nested_costs(0.0, 3, 0.2, chain_costs(0.0, 5))[5] == pytest.approx(5 * 0.2)
    inside = nested_costs(0.0, 0, 0.1, chain_costs(9.0, 5))  # a level that drafts nothing is a chain of its own model
    assert inside == pytest.approx(chain_costs(0.1, 6))
    assert nested_costs(0.7, 2, 0.3, inside) == pytest.approx(nested_costs(0.7, 2, 0.3, chain_costs(0.1, 6)))


def test_a_relay_of_equal_drafters_is_a_chain() -> None:
    assert relay_speedup([0.7] * 4, [0.1] * 4) == pytest.approx(formulas.speedup(0.7, 4, 0.1))
    assert relay_speedup([0.8, 0.5], [0.2, 0.05]) == pytest.approx((1 + 0.8 + 0.4) / 1.25)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: tree_tokens([-1], []), "needs as many chances"),
        (lambda: tree_tokens([0], [0.5]), "a parent comes before its child"),
        (lambda: tree_tokens([-1, -1], [0.7, 0.6]), "exceed 1"),
        (lambda: tree_tokens([-1], [float("nan")]), "must lie in"),
        (lambda: tree_speedup(3.5, 2, 0.1, 1.0), "must lie in"),
        (lambda: tree_speedup(1.0, 0, 0.0, 0.0), "more than nothing"),
        (lambda: vertical_tokens(0.5, 1.5, 1, 1), "the inner alpha"),
        (lambda: vertical_speedup(0.5, 0.5, 1, 1, -1.0, 0.0), "c₁"),
        (lambda: nested_costs(0.5, -1, 0.1, (0.0,)), "K must be"),
        (lambda: nested_costs(0.5, 1, 0.1, (0.0, float("inf"))), "finite"),
        (lambda: relay_speedup([0.5], []), "as many costs"),
        (lambda: relay_speedup([0.5], [-0.1]), "a drafted token"),
    ],
)
def test_wrong_numbers_are_refused(call: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()  # type: ignore[operator]
