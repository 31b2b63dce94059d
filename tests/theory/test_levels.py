"""The cost of nested drafts: by hand, at their limits, and against a simulation with a fixed seed."""

import random

import pytest

from specbench.theory import formulas
from specbench.theory.formulas import chain_costs, nested_costs


def inner_round(draw: random.Random, alpha: float, k: int) -> int:
    """Tokens that a round emits."""
    accepted = 0
    while accepted < k and draw.random() < alpha:
        accepted += 1
    return accepted + 1


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


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: nested_costs(1.5, 1, 0.1, (0.0,)), "the inner alpha"),
        (lambda: nested_costs(0.5, -1, 0.1, (0.0,)), "K must be"),
        (lambda: nested_costs(0.5, 1, 0.1, (0.0, float("inf"))), "finite"),
        (lambda: chain_costs(-0.1, 3), "c must be"),
    ],
)
def test_wrong_numbers_are_refused(call: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()  # type: ignore[operator]
