"""Costs that were calculated or extrapolated have the form of measured ones, and give the same rounds."""

import pytest

from specbench.results.calibration import AtContext, calculated, extrapolated, points_of
from specbench.theory.formulas import expected_tokens
from specbench.theory.roofline import Engine, Reads

TARGET = Reads(32, 32 * (4 * 4096**2 + 3 * 4096 * 11008), 32000 * 4096, 32 * 2 * 4096, 32, 2)
DRAFT = Reads(2, 2 * (4 * 768**2 + 3 * 768 * 3072), 32000 * 768, 2 * 2 * 768, 12, 2)


@pytest.mark.parametrize("tier", ["eager", "graph", "compile"])
def test_a_calculated_round_is_the_sum_of_its_parts(tier: str) -> None:
    """The form of a calibration takes differences to the baseline's pass; nothing may be lost or counted twice."""
    engine = Engine.of("h100", tier)
    level = calculated(engine, TARGET, DRAFT, 4096, 6)
    step, token, rest = engine.step(TARGET, 4096), engine.draft(DRAFT, 4096), engine.rest()
    for k, cost in enumerate(level.rounds()[1:], 1):
        assert cost * step == pytest.approx(k * token + engine.verify(TARGET, 4096, k + 1) + rest, rel=1e-12)
    assert level.step == pytest.approx(1000 * step)


def test_a_forecast_has_the_best_k_of_those_given_and_its_costs_add_up() -> None:
    engine = Engine.of("h100", "graph", 8)
    level = calculated(engine, TARGET, DRAFT, 512, 8)
    rows = level.forecast([0.0, 0.5, 0.9], [0, 2, 4, 8], 8)
    assert [row["k"] for row in rows] == [0, 4, 8]
    assert (rows[0]["speedup"], rows[0]["v"], rows[0]["overhead"]) == (1.0, 1.0, pytest.approx(-rows[0]["c"] * 0))
    for row in rows[1:]:
        k = row["k"]
        assert row["v"] == pytest.approx(engine.verify(TARGET, 512, k + 1) / engine.alone(TARGET, 512))
        assert row["c"] == pytest.approx(engine.draft(DRAFT, 512) / engine.step(TARGET, 512))
        tokens = expected_tokens(row["alpha"], k)
        assert row["speedup"] == pytest.approx(tokens / (k * row["c"] + row["v"] + row["overhead"]))
        assert row["tokens_per_second"] == pytest.approx(row["speedup"] * 8 / engine.step(TARGET, 512))


def pair(layers: int, drafting: int, context: int = 512) -> AtContext:
    """A pair with times linear in its layers: a pass takes 2 ms and 3 a layer, half a ms for every further token."""
    passes = {n: [(2 + 3 * layers + 0.5 * (n - 1)) / 1000] for n in (1, 2, 5)}
    drafts = {n: [n * (0.5 + drafting) / 1000] for n in (1, 5)}
    step = 2.5 + 3 * layers
    points = points_of("target", context, passes), points_of("draft", context, drafts)
    return AtContext(context, step, 0.7 / step, *points)


def test_times_that_are_linear_in_layers_are_extrapolated_exactly() -> None:
    whole = pair(22, 6)
    found = extrapolated(pair(1, 1), pair(4, 2), (22 - 1) / (4 - 1), (6 - 1) / (2 - 1))
    assert found.context == whole.context
    assert (found.step, found.overhead) == pytest.approx((whole.step, whole.overhead))
    for one, other in zip((*found.target, *found.draft), (*whole.target, *whole.draft), strict=True):
        assert (one.width, one.milliseconds, one.v) == pytest.approx((other.width, other.milliseconds, other.v))
    assert found.rounds() == pytest.approx(whole.rounds())


@pytest.mark.parametrize(
    ("shallow", "deep", "way", "found"),
    [((1, 2), (4, 2), 1.0, (4, 2)), ((4, 2), (1, 1), 20.0, (1, 1))],
    ids=["a pair that was measured whole", "the deep one was measured faster"],
)
def test_a_whole_pair_stays_as_it_was_and_noise_does_not_make_more_layers_faster(
    shallow: tuple[int, int], deep: tuple[int, int], way: float, found: tuple[int, int]
) -> None:
    assert extrapolated(pair(*shallow), pair(*deep), way, way).rounds() == pytest.approx(pair(*found).rounds())
