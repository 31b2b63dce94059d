"""Intervals over prompts: what is drawn again, what is paired, and whether they cover."""

import math

import numpy as np
import pytest

from specbench.bench.statistics import Interval, ratio_of_totals, speedup
from specbench.metrics import speedup as plain_speedup

ONES = [1] * 6
BASELINE = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
METHOD = [0.6, 0.9, 1.7, 2.1, 2.2, 3.5]


def test_the_value_is_a_ratio_of_totals_and_not_a_mean_of_ratios() -> None:
    assert ratio_of_totals([1, 9], [2, 10]).value == 10 / 12
    assert speedup([1, 9], [1, 1], [2, 3], [1, 1]).value == 2.0


def test_the_speedup_is_per_token_where_the_arms_decoded_different_lengths() -> None:
    assert speedup([10.0, 10.0], [100, 100], [10.0, 10.0], [100, 300]).value == pytest.approx(2.0, rel=1e-12)


def test_the_value_is_that_of_the_pure_formula() -> None:
    tokens = [3, 5, 7, 9, 11, 13]
    assert speedup(BASELINE, tokens, METHOD, ONES).value == plain_speedup(BASELINE, tokens, METHOD, ONES)


def test_the_interval_holds_its_value_and_is_the_same_every_time() -> None:
    first = speedup(BASELINE, ONES, METHOD, ONES)
    assert first.low < first.value < first.high
    assert first == speedup(BASELINE, ONES, METHOD, ONES)


def test_prompts_are_paired_so_that_a_constant_speedup_has_no_width() -> None:
    found = speedup(BASELINE, ONES, [s / 2 for s in BASELINE], ONES)
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0), rel=1e-12)


def test_unpaired_columns_would_have_given_a_wide_interval() -> None:
    """The control of the test above: the same seconds in another order of prompts do vary."""
    found = speedup(BASELINE, ONES, [s / 2 for s in reversed(BASELINE)], ONES)
    assert found.high - found.low > 0.5


def test_one_prompt_leaves_nothing_to_draw_again() -> None:
    found = ratio_of_totals([3.0], [4.0])
    assert found.value == 0.75
    assert math.isnan(found.low)
    assert math.isnan(found.high)


@pytest.mark.parametrize(("parts", "wholes"), [([0.0, 0.0], [0.0, 0.0]), ([1.0, 1.0], [0.0, 0.0])])
def test_nothing_to_divide_by_is_no_interval(parts: list[float], wholes: list[float]) -> None:
    found = ratio_of_totals(parts, wholes)
    assert not math.isfinite(found.value)
    assert math.isnan(found.low)


def test_more_prompts_make_the_interval_narrower() -> None:
    rng = np.random.default_rng(1)
    few, many = (width(draw(rng, prompts)) for prompts in (10, 160))
    assert many < few / 2


def test_intervals_cover_the_truth_where_prompts_differ() -> None:
    """Nominal 95 %; at 30 prompts a percentile bootstrap covers about 92 %, a binomial interval only 60 %."""
    rng = np.random.default_rng(2)
    found = [draw(rng, 30) for _ in range(120)]
    assert sum(i.low <= 0.7 <= i.high for i in found) / len(found) > 0.86
    assert sum(narrowed(i) for i in found) / len(found) < 0.75


def draw(rng: np.random.Generator, prompts: int) -> Interval:
    """Accepted ÷ tested of prompts whose own rates vary around 0.7, forty tests each."""
    rates = rng.uniform(0.5, 0.9, prompts)
    return ratio_of_totals(rng.binomial(40, rates).tolist(), [40] * prompts)


def narrowed(found: Interval) -> bool:
    """Whether a binomial interval over tokens, which takes them for independent, would have covered."""
    half = 1.96 * math.sqrt(found.value * (1 - found.value) / (30 * 40))
    return abs(found.value - 0.7) <= half


def width(found: Interval) -> float:
    return found.high - found.low
