"""The formulas against every number that the papers and the tutorials print, and against their own limits."""

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.theory import formulas, optimum
from specbench.theory.formulas import nested_costs
from tests.theory.oracles import chain_costs, round_costs

alphas = st.floats(0, 1)
costs = st.floats(0, 2)
lookaheads = st.integers(1, 40)
quick = settings(max_examples=100)


# fmt: off
# Leviathan Table 1: (alpha, K, operations, speedup), c = c-hat = 0.
LEVIATHAN_1 = [
    (0.6, 2, 1.53, 1.96), (0.7, 3, 1.58, 2.53), (0.8, 2, 1.23, 2.44),
    (0.8, 5, 1.63, 3.69), (0.9, 2, 1.11, 2.71), (0.9, 10, 1.60, 6.86),
]

# Leviathan Tables 2 and 4: (alpha, K, c, "Exp" speedup) of the T5 drafts small, base, large under T5-XXL.
LEVIATHAN_4 = [
    (0.75, 7, 0.02, 3.2), (0.80, 7, 0.04, 3.3), (0.82, 7, 0.11, 2.5),  # EnDe, T = 0
    (0.62, 7, 0.02, 2.3), (0.68, 5, 0.04, 2.4), (0.71, 3, 0.11, 2.0),  # EnDe, T = 1
    (0.65, 5, 0.02, 2.4), (0.73, 5, 0.04, 2.6), (0.74, 3, 0.11, 2.0),  # CNN/DM, T = 0
    (0.53, 5, 0.02, 1.9), (0.55, 3, 0.04, 1.8), (0.56, 3, 0.11, 1.6),  # CNN/DM, T = 1
]

REFUSED = [
    (formulas.expected_tokens, (1.1, 3)),
    (formulas.expected_tokens, (math.nan, 3)), (formulas.expected_tokens, (0.5, -1)),
    (formulas.expected_tokens_by_position, ([0.5, -0.1],)),
    (formulas.speedup, (0.5, 3, -0.1)), (formulas.speedup, (0.5, 3, math.inf)),
    (formulas.operations, (0.5, 3, math.nan)),
    (formulas.accepted_per_drafted, (0.5, 0)), (optimum.pays, (0.5, -1)),
    (optimum.best_k, (0.5, 0.1, -1)), (optimum.near_best, (0.5, -1)), (optimum.break_even_alpha, (0, 0.1)),
    (optimum.alpha_from_tokens, (0.9, 3)), (optimum.alpha_from_tokens, (4.1, 3)),
    (optimum.alpha_from_tokens, (math.nan, 3)), (optimum.alpha_from_tokens, (1, 0)),
    (optimum.best_k_of, (1.1, (1, 1))), (optimum.near_best_of, (1.1, (1, 1))),
]
# fmt: on

# The tutorial's expected tokens for K = 3..9, as printed.
TUTORIAL_TOKENS = {
    0.1: (1.111, 1.111, 1.111, 1.111, 1.111, 1.111, 1.111),
    0.3: (1.417, 1.425, 1.427, 1.428, 1.428, 1.428, 1.428),
    0.5: (1.875, 1.937, 1.968, 1.984, 1.992, 1.996, 1.998),
    0.7: (2.532, 2.773, 2.941, 3.058, 3.141, 3.198, 3.239),
    0.8: (2.952, 3.361, 3.689, 3.951, 4.161, 4.328, 4.463),
}

# The tutorial's speedups for K = 3..6, as printed: (c = .01, c = .05).
TUTORIAL_SPEEDUPS = {
    0.5: ((1.820, 1.630), (1.862, 1.614), (1.875, 1.575), (1.872, 1.526)),
    0.6: ((2.112, 1.892), (2.216, 1.921), (2.269, 1.906), (2.292, 1.869)),
    0.7: ((2.459, 2.202), (2.666, 2.310), (2.801, 2.352), (2.885, 2.352)),
    0.8: ((2.866, 2.566), (3.232, 2.801), (3.513, 2.951), (3.727, 3.039)),
}

# Best K and its speedup, by brute force over K = 0..199.
BEST_C = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3)
BEST = {
    0.3: ((3, 1.376), (3, 1.337), (2, 1.264), (1, 1.182), (1, 1.083), (0, 1.0)),
    0.4: ((4, 1.586), (3, 1.532), (2, 1.418), (2, 1.300), (1, 1.167), (1, 1.077)),
    0.5: ((5, 1.875), (4, 1.794), (3, 1.630), (2, 1.458), (1, 1.250), (1, 1.154)),
    0.6: ((7, 2.297), (6, 2.170), (4, 1.921), (3, 1.674), (2, 1.400), (1, 1.231)),
    0.7: ((9, 2.972), (8, 2.758), (6, 2.353), (4, 1.981), (3, 1.583), (2, 1.369)),
    0.8: ((14, 4.232), (11, 3.817), (8, 3.092), (6, 2.470), (4, 1.868), (3, 1.554)),
    0.9: ((24, 7.486), (19, 6.365), (13, 4.674), (10, 3.431), (7, 2.373), (5, 1.874)),
    0.95: ((40, 12.542), (31, 9.954), (21, 6.600), (15, 4.479), (10, 2.875), (8, 2.175)),
}


def truncates_to(value: float, printed: float) -> bool:
    """The tutorial truncates (2.533 is printed 2.532: its float falls short); no last bit of libm may decide."""
    return any(math.floor(near * 1000) / 1000 == printed for near in (value - 1e-12, value, value + 1e-12))


@pytest.mark.parametrize(("alpha", "k", "operations", "speedup"), LEVIATHAN_1)
def test_leviathan_table_1(alpha: float, k: int, operations: float, speedup: float) -> None:
    assert round(formulas.operations(alpha, k, 0), 2) == operations
    assert round(formulas.speedup(alpha, k, 0), 2) == speedup


def test_leviathan_table_4() -> None:
    # The paper computed from alpha and c before it rounded them to two decimals. Nine of the twelve agree at the
    # printed digit; the other three are off by up to 0.066, which alpha ± .005 and c ± .005 explain.
    found = [(formulas.speedup(alpha, k, c), printed) for alpha, k, c, printed in LEVIATHAN_4]
    assert all(speedup == pytest.approx(printed, abs=0.07) for speedup, printed in found)
    assert sum(round(speedup, 1) == printed for speedup, printed in found) == 9


@pytest.mark.parametrize(
    ("alpha", "k", "printed"),
    [(alpha, k, printed) for alpha, row in TUTORIAL_TOKENS.items() for k, printed in enumerate(row, start=3)],
)
def test_tutorial_expected_tokens(alpha: float, k: int, printed: float) -> None:
    assert truncates_to(formulas.expected_tokens(alpha, k), printed)


@pytest.mark.parametrize(
    ("alpha", "k", "c", "printed"),
    [
        (alpha, k, c, printed)
        for alpha, rows in TUTORIAL_SPEEDUPS.items()
        for k, row in enumerate(rows, start=3)
        for c, printed in zip((0.01, 0.05), row, strict=True)
    ],
)
def test_tutorial_speedups(alpha: float, k: int, c: float, printed: float) -> None:
    assert truncates_to(formulas.speedup(alpha, k, c), printed)


@pytest.mark.parametrize(
    ("alpha", "c", "k", "speedup"),
    [(alpha, c, *best) for alpha, row in BEST.items() for c, best in zip(BEST_C, row, strict=True)],
)
def test_best_k(alpha: float, c: float, k: int, speedup: float) -> None:
    best, value = optimum.best_k(alpha, c)
    assert (best, round(value, 3)) == (k, speedup)
    costs = round_costs(c, c, [1.0] * 61, 0.0)  # those of the formula
    assert optimum.best_k_of(alpha, costs) == pytest.approx((best, value), rel=1e-12)
    assert optimum.near_best_of(alpha, costs) == optimum.near_best(alpha, c)


def test_costs_of_a_machine_by_hand_their_best_k_and_their_break_even_alpha() -> None:
    costs = round_costs(0.3, 0.1, (1.0, 1.2, 1.2, 1.6), 0.05)
    assert costs == pytest.approx((1, 1.55, 1.65, 2.15))
    # α = 0.8 gives 1.8, 2.44 and 2.952 tokens: 1.16×, 1.479× and 1.373×
    assert optimum.best_k_of(0.8, costs) == (2, pytest.approx(2.44 / 1.65))
    assert optimum.near_best_of(0.8, costs) == [2]
    assert optimum.near_best_of(0.8, (1.0, 1.55, 1.65, 2.01)) == [2, 3]
    assert optimum.best_k_of(0.3, costs) == (0, 1.0)
    assert optimum.break_even_alpha_of(costs) == pytest.approx((math.sqrt(1 + 4 * 0.65) - 1) / 2)  # 1 + α + α² = 1.65
    assert optimum.near_best_of(0.9, (1.0, 1.0, 2.0, 3.439 / 1.9)) == [1, 3]
    assert optimum.break_even_alpha_of((1.0, 2.1, 3.2)) is None
    assert optimum.break_even_alpha_of((1.0, 2.1, 3.0)) == pytest.approx(1)
    assert optimum.break_even_alpha_of((1.0, 0.9)) == 0  # a round that is cheaper than a step pays without acceptance
    assert optimum.break_even_alpha_of((1.0,)) is None


@quick
@given(st.floats(0, 1), st.lists(st.floats(0.5, 8), min_size=1, max_size=9), st.floats(0, 1), st.floats(-0.2, 0.5))
def test_some_k_pays_exactly_above_the_break_even_alpha(
    later: float, passes: list[float], first: float, overhead: float
) -> None:
    costs = round_costs(first, later, [1.0, *passes], overhead)
    even = optimum.break_even_alpha_of(costs)
    if even is None:
        assert optimum.best_k_of(1, costs) == (0, 1.0)
        return
    assert optimum.best_k_of(max(even - 1e-9, 0), costs)[1] <= 1 + 1e-9 or even == 0
    assert optimum.best_k_of(min(even + 1e-9, 1), costs)[1] >= 1 - 1e-12


def test_a_bigram_draft_of_no_cost_still_pays_and_accepted_per_drafted_is_not_alpha() -> None:
    assert formulas.speedup(0.2, 3, 0) == pytest.approx(1.248)  # the paper says 1.25x
    assert formulas.accepted_per_drafted(0.7, 5) == pytest.approx(0.388, abs=5e-4)
    assert formulas.accepted_per_drafted(0.7, 1) == pytest.approx(0.7)


@pytest.mark.parametrize("k", [0, 1, 7, 500])
def test_limits_of_expected_tokens(k: int) -> None:
    assert formulas.expected_tokens(1, k) == k + 1
    assert formulas.expected_tokens(0, k) == formulas.expected_tokens(0.34, 0) == 1
    assert formulas.expected_tokens(math.nextafter(1, 0), k) == pytest.approx(k + 1, rel=1e-12)
    assert formulas.expected_tokens(1 - 1e-9, k) == pytest.approx(k + 1 - 1e-9 * k * (k + 1) / 2, rel=1e-12)


def test_the_oracle_is_the_limit_of_long_drafts_and_the_optimum_is_flat_or_has_no_bound() -> None:
    assert formulas.expected_tokens(0.8, 500) == pytest.approx(1 / (1 - 0.8)) == pytest.approx(5)
    assert optimum.best_k(0.7, 0)[0] == formulas.K_MAX
    assert optimum.best_k(1, 0.5, k_max=9) == (9, 10 / 5.5)
    assert optimum.best_k(1, 1) == (0, 1.0)
    assert optimum.best_k(0, 0) == (0, 1.0)
    assert optimum.near_best(0.7, 0.05) == [5, 6]
    assert optimum.near_best(0.9, 0.01) == list(range(20, 30))
    assert optimum.near_best(0.2, 0.5) == [0]


def test_where_one_pass_drafts_all_tokens_another_one_costs_nothing() -> None:
    """By hand, α = 1/2 and a pass of a quarter of a step: 1.5, 1.75, 1.875 tokens for 1.25 steps; at most 2 / 1.25."""
    found = [formulas.speedup(0.5, k, 0.25, at_once=True) for k in range(4)]
    assert found == pytest.approx([1, 1.2, 1.4, 1.5])
    best, speedup = optimum.best_k(0.5, 0.25, at_once=True)
    assert (best, speedup) == (formulas.K_MAX, pytest.approx(1.6))
    assert optimum.near_best(0.5, 0.25, at_once=True) == list(range(6, formulas.K_MAX + 1))  # 2^−7 of it is missing
    assert optimum.best_k(0.5, 0.25)[0] == 1  # tokens at a quarter of a step each: 1.5 / 1.25, then 1.75 / 1.5
    far = optimum.near_best(0.33, 0.5, at_once=True)  # no K pays, and the greatest nearly do
    assert (far[:2], far[-1]) == ([0, 4], formulas.K_MAX)
    assert formulas.operations(0.5, 3, 0.25, at_once=True) == pytest.approx(4.25 / 1.875)


def test_break_even_where_one_pass_drafts_all_tokens() -> None:
    """1 + α = 1.25 for K = 1, 1 + α + α² = 1.25 for K = 2, 1 / (1 − α) = 1.25 for any K."""
    assert optimum.break_even_alpha(1, 0.25, at_once=True) == pytest.approx(0.25)
    assert optimum.break_even_alpha(2, 0.25, at_once=True) == pytest.approx((math.sqrt(2) - 1) / 2)
    assert optimum.break_even_alpha(40, 0.25, at_once=True) == pytest.approx(0.2)
    assert optimum.break_even_alpha(2, 1.5, at_once=True) == pytest.approx((math.sqrt(7) - 1) / 2)  # one each would not
    assert optimum.break_even_alpha(2, 2.01, at_once=True) is None
    assert (optimum.pays(0.2, 0.25, at_once=True), optimum.pays(0.201, 0.25, at_once=True)) == (False, True)
    assert optimum.best_k(0.2, 0.25, at_once=True) == (0, 1.0)
    assert optimum.best_k(0.22, 0.25, k_max=1, at_once=True) == (0, 1.0)  # it pays with two tokens, not with one
    assert optimum.best_k(0, 0, at_once=True) == (0, 1.0)
    assert optimum.break_even_alpha(1, 0.3) == pytest.approx(0.3)
    assert optimum.break_even_alpha(4, 0) == 0
    assert optimum.break_even_alpha(4, 1) == pytest.approx(1)
    assert optimum.break_even_alpha(4, 1.01) is None


def test_the_ends_of_texts_cut_rounds_by_hand() -> None:
    chances = [0.2, 0.4, 0.4]  # of 1, 2 and 3 tokens, 2.2 in the mean
    assert formulas.tokens_of_texts(chances, [1]) == 1  # of whatever round
    # two tokens take a second round only after one of one token; three, only after one of one or two
    assert formulas.tokens_of_texts(chances, [2]) == pytest.approx(2 / 1.2)
    assert formulas.tokens_of_texts(chances, [1, 3]) == pytest.approx(4 / (1 + 1 + 0.2 * 1.2 + 0.4))
    assert formulas.tokens_of_texts([1.0], [7, 5]) == 1
    assert formulas.tokens_of_texts(chances, [100_000]) == pytest.approx(2.2, rel=1e-4)
    assert math.isnan(formulas.tokens_of_texts(chances, [0]))


@quick
@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=6), st.integers(1, 12))
def test_rounds_of_a_text_are_the_mean_over_all_ways_to_emit_it(weights: list[float], length: int) -> None:
    chances = [weight / math.fsum(weights) for weight in weights]

    def rounds(missing: int) -> float:  # over every sequence of rounds, one after the other
        return sum(p * (1 + rounds(missing - j)) for j, p in enumerate(chances, 1)) if missing > 0 else 0.0

    assert formulas.tokens_of_texts(chances, [length] * 2) == pytest.approx(length / rounds(length), rel=1e-9)


@quick
@given(alphas, st.integers(0, 40))
def test_expected_tokens_lie_between_one_and_k_plus_one_and_below_the_oracle(alpha: float, k: int) -> None:
    tokens = formulas.expected_tokens(alpha, k)
    assert 1 - 1e-12 <= tokens <= min(k + 1, 1 / (1 - alpha) if alpha < 1 else math.inf) * (1 + 1e-12)
    assert tokens == pytest.approx(sum(alpha**i for i in range(k + 1)), rel=1e-12)
    assert formulas.expected_tokens_by_position([alpha] * k) == pytest.approx(
        formulas.expected_tokens(alpha, k), rel=1e-12
    )


@quick
@given(alphas, lookaheads)
def test_alpha_from_tokens_inverts_expected_tokens(alpha: float, k: int) -> None:
    tokens = min(max(formulas.expected_tokens(alpha, k), 1), k + 1)
    assert optimum.alpha_from_tokens(tokens, k) == pytest.approx(alpha, abs=1e-12)


@quick
@given(lookaheads, st.floats(0, 1))
def test_the_speedup_is_one_at_break_even(k: int, c: float) -> None:
    alpha = optimum.break_even_alpha(k, c)
    assert alpha is not None
    assert formulas.speedup(alpha, k, c) == pytest.approx(1, rel=1e-12)
    assert alpha >= c - 1e-12


@pytest.mark.parametrize(("formula", "arguments"), REFUSED)
def test_what_is_out_of_range_is_refused_in_one_line(
    formula: Callable[..., object], arguments: tuple[object, ...]
) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        formula(*arguments)


def inner_round(draw: random.Random, alpha: float, k: int) -> int:
    """Tokens that a round emits."""
    accepted = 0
    while accepted < k and draw.random() < alpha:
        accepted += 1
    return accepted + 1


def test_nests_cost_what_a_simulation_of_their_rounds_costs_and_what_they_do_by_hand() -> None:
    alpha, k, length, pass_, c = 0.6, 3, 7, 0.3, 0.05
    draw, trials, cost = random.Random(2), 40_000, 0.0
    for _ in range(trials):
        missing = length
        while missing:
            most = min(k, missing - 1)
            cost += pass_ + most * c
            missing -= inner_round(draw, alpha, most)
    assert nested_costs(alpha, k, pass_, chain_costs(c, length))[length] == pytest.approx(cost / trials, rel=0.01)
    costs = nested_costs(0.5, 3, 0.2, chain_costs(0.05, 400))
    assert costs[400] - costs[399] == pytest.approx((0.2 + 3 * 0.05) / formulas.expected_tokens(0.5, 3), rel=1e-9)
    assert nested_costs(0.5, 3, 0.2, chain_costs(0.05, 1))[1:] == (
        pytest.approx(0.2),  # one token is missing: nothing is drafted for it
        pytest.approx(0.2 + 0.05 + 0.5 * 0.2),  # one is drafted, and half the time another round is needed
    )
    assert nested_costs(1.0, 3, 0.2, chain_costs(0.05, 4))[4] == pytest.approx(0.2 + 3 * 0.05)
    assert nested_costs(0.0, 3, 0.2, chain_costs(0.0, 5))[5] == pytest.approx(5 * 0.2)
    inside = nested_costs(0.0, 0, 0.1, chain_costs(9.0, 5))  # a level that drafts nothing is a chain of its own model
    assert inside == pytest.approx(chain_costs(0.1, 6))
    assert nested_costs(0.7, 2, 0.3, inside) == pytest.approx(nested_costs(0.7, 2, 0.3, chain_costs(0.1, 6)))
