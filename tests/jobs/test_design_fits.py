"""The design of drafts as numbers: the front, the fits on data that was made by them, and the optimum that follows."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbench.jobs.training.design_results import (  # fmt: skip
    AcceptanceFit,
    Choice,
    Found,
    LatencyFit,
    Speed,
    Spread,
    best_choice,
    fit_acceptance,
    fit_latency,
    front,
    rising,
)
from specbench.theory import optimum as lookahead

points = st.lists(st.tuples(st.integers(0, 6).map(float), st.integers(0, 6).map(float)), min_size=1, max_size=12)
SHAPES = [(layers, parameters) for parameters in (1e6, 2e6, 4e6) for layers in (1, 2, 4, 8)]


def exactly(value: float) -> Any:
    return pytest.approx(value, rel=1e-6)


# --- the front --------------------------------------------------------------------------------------------------------


def better(a: tuple[float, float], b: tuple[float, float]) -> bool:
    return a != b and a[0] <= b[0] and a[1] >= b[1]


@given(points)
def test_the_front_is_what_nothing_beats_and_along_it_more_gain_costs_more(some: list[tuple[float, float]]) -> None:
    on = front(some)
    chosen = [point for point, kept in zip(some, on, strict=True) if kept]
    assert not any(better(other, point) for point in chosen for other in some)
    assert all(kept or any(better(one, point) for one in chosen) for point, kept in zip(some, on, strict=True))
    on = dict(zip(some, front(some), strict=True))  # equal points are on it together
    assert on[min(some, key=lambda p: (p[0], -p[1]))]
    assert on[min(some, key=lambda p: (-p[1], p[0]))]
    along = sorted({point for point, kept in zip(some, front(some), strict=True) if kept})
    assert [gain for _, gain in along] == sorted(gain for _, gain in along)
    assert len({cost for cost, _ in along}) == len({gain for _, gain in along}) == len(along)


# --- depth ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([(1, 0.9, 1.1), (2, 1.9, 2.1), (3, 2.9, 3.1)], "rises with depth"),
        ([(1, 0.9, 1.1)], "rises with depth"),
        ([(1.05, 0.9, 1.1), (1, 0.9, 1.2), (3, 2.9, 3.1)], "does not fall with depth beyond its spread"),
        ([(1, 0.9, 1.1), (1, 0.9, 1.1)], "does not fall with depth beyond its spread"),
        ([(2, 1.9, 2.1), (1, 0.9, 1.1), (3, 2.9, 3.1)], "does NOT rise with depth"),
    ],
)
def test_whether_latency_rises_is_judged_with_its_spread(values: list[tuple[float, ...]], expected: str) -> None:
    assert rising([Spread(*one) for one in values]) == expected


# --- fits -------------------------------------------------------------------------------------------------------------


def test_a_latency_that_is_a_plane_is_found_again() -> None:
    seconds = [1e-3 + 4e-4 * layers + 2e-10 * parameters for layers, parameters in SHAPES]
    found = fit_latency(*zip(*SHAPES, strict=True), seconds)  # type: ignore[arg-type]
    assert found is not None
    assert (found.fixed, found.per_layer, found.per_parameter) == (exactly(1e-3), exactly(4e-4), exactly(2e-10))
    assert found.residual < 1e-9
    assert found.at(16, 8e6) == exactly(1e-3 + 16 * 4e-4 + 8e6 * 2e-10)


def test_what_does_not_fit_shows_in_the_residual_and_few_shapes_are_not_fitted() -> None:
    seconds = [1e-3 * layers * (2 if place % 2 else 1) for place, (layers, _) in enumerate(SHAPES)]
    found = fit_latency(*zip(*SHAPES, strict=True), seconds)  # type: ignore[arg-type]
    assert found is not None
    assert 0.1 < found.residual <= found.worst
    assert min(found.fixed, found.per_layer, found.per_parameter) >= 0
    depths = [1, 2, 4, 8]
    found = fit_latency(depths, [1e6] * 4, [1e-3 + 2e-4 * n for n in depths])
    assert found is not None
    assert (found.fixed, found.per_layer, found.per_parameter) == (exactly(1e-3), exactly(2e-4), 0.0)
    assert fit_latency([1, 2, 4], [1e6, 1e6, 1e6], [1.0, 2.0, 3.0]) is None
    assert fit_acceptance(depths, [1e6] * 4, [1e5] * 4, [0.5, 0.6, 0.6, 0.6]) is None


def test_an_acceptance_that_follows_the_model_is_found_again() -> None:
    true = AcceptanceFit(-6.0, 0.3, 0.2, 0.15, 0.0, 0)
    rows = [(layers, parameters, tokens) for layers, parameters in SHAPES for tokens in (1e5, 4e5)]
    found = fit_acceptance(*zip(*rows, strict=True), [true.at(*row) for row in rows])  # type: ignore[arg-type]
    assert found is not None
    assert found.residual < 1e-9
    assert (found.by_parameters, found.by_layers, found.by_tokens) == (exactly(0.3), exactly(0.2), exactly(0.15))
    assert found.at(3, 3e6, 2e5) == exactly(true.at(3, 3e6, 2e5))


def test_acceptances_at_the_ends_of_their_range_can_be_fitted() -> None:
    depths, same = [1, 2, 4, 8, 16], [1e6] * 5
    found = fit_acceptance(depths, same, same, [0.0, 0.2, 0.5, 0.9, 1.0])
    assert found is not None
    assert 0 <= found.at(1, 1e6, 1e6) < found.at(16, 1e6, 1e6) <= 1


# --- the best lookahead and the best shape ----------------------------------------------------------------------------


@given(st.floats(0, 1), st.floats(0, 1), st.floats(1, 2))
def test_the_best_lookahead_is_that_of_the_formula(alpha: float, c: float, v: float) -> None:
    rounds = [k * c + v + 0.05 for k in range(1, 9)]
    found = best_choice(alpha, rounds)
    k, speedup = lookahead.best_k_of(alpha, (1.0, *rounds))
    assert 1 <= found.k <= 8
    assert found.speedup == pytest.approx(speedup) if k else found.speedup <= 1 + 1e-12


def test_a_draft_that_does_not_pay_has_a_best_lookahead_all_the_same() -> None:
    found = best_choice(0.1, (1.5, 2.0))
    assert found == Choice(1, exactly(1.1), exactly(1.1 / 1.5))


def test_where_layers_cost_and_buy_nothing_one_layer_is_the_best_and_the_reverse() -> None:
    speed = Speed(Spread(0.01, 0.01, 0.01), (1.0, *[1.05] * 8), 0.02, {}, {}, 8)
    dear, cheap = LatencyFit(1e-3, 1e-3, 0.0, 0, 0, 9), LatencyFit(1e-3, 1e-6, 1e-10, 0, 0, 9)
    flat, deep = AcceptanceFit(0.5, 0, 0.0, 0, 0, 9), AcceptanceFit(0.0, 0, 0.6, 0, 0, 9)

    def optimum(*fits: Any) -> Any:
        known: Any = SimpleNamespace(latency_fit=fits[0], acceptance_fit=fits[1], speed=speed, steps=[1e6])
        return max((Found.by_fits(known, *shape) for shape in SHAPES), key=lambda one: one.choice.speedup)

    assert optimum(dear, flat).layers == 1
    found = optimum(cheap, deep)
    assert (found.layers, found.parameters) == (8, 1e6)
    assert found.c == exactly((1e-3 + 8e-6 + 1e-4) / 0.01)
    assert found.alpha == exactly(1 / (1 + math.exp(-0.6 * math.log(8))))
