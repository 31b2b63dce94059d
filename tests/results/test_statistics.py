"""Intervals over prompts, and tests of text against distributions: against numbers worked out by hand, or by scipy."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, multinomial, norm, t

from specbench.metrics import speedup_of_totals as plain_speedup
from specbench.results.statistics import (
    Interval,
    Tally,
    all_together,
    difference_of_shares,
    geomean,
    half_width,
    length_interval,
    log_error,
    ratio_of_totals,
    share_of,
    speedup_interval,
    to_settle,
    two_sided,
    widened,
)

ONES = [1] * 6
BASELINE = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
METHOD = [0.6, 0.9, 1.7, 2.1, 2.2, 3.5]


def test_the_value_is_a_ratio_of_totals_per_token_and_not_a_mean_of_ratios() -> None:
    assert ratio_of_totals([1, 9], [2, 10]).value == 10 / 12
    assert speedup_interval([1, 9], [1, 1], [2, 3], [1, 1]).value == 2.0
    assert speedup_interval([10.0, 10.0], [100, 100], [10.0, 10.0], [100, 300]).value == pytest.approx(2.0, rel=1e-12)
    tokens = [3, 5, 7, 9, 11, 13]
    assert speedup_interval(BASELINE, tokens, METHOD, ONES).value == plain_speedup(BASELINE, tokens, METHOD, ONES)


def test_the_interval_holds_its_value_and_is_the_same_every_time() -> None:
    first = speedup_interval(BASELINE, ONES, METHOD, ONES)
    assert first.low < first.value < first.high
    assert first == speedup_interval(BASELINE, ONES, METHOD, ONES)


def test_prompts_are_paired_so_that_a_constant_speedup_has_no_width() -> None:
    """The control: the same seconds in another order of prompts do vary."""
    halved = [s / 2 for s in BASELINE]
    found, unpaired = (speedup_interval(BASELINE, ONES, method, ONES) for method in (halved, halved[::-1]))
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0), rel=1e-12)
    assert unpaired.high - unpaired.low > 0.5


def test_the_interval_is_the_one_computed_by_hand() -> None:
    """Three prompts, 6 of 12; without each of them 5 of 9, 4 of 8, 3 of 7."""
    found = ratio_of_totals([1, 2, 3], [3, 4, 5])
    left_out = [math.log(Fraction(5, 9)), math.log(Fraction(4, 8)), math.log(Fraction(3, 7))]
    mean = sum(left_out) / 3
    error = math.sqrt(2 / 3 * sum((x - mean) ** 2 for x in left_out))
    assert found.value == 0.5
    assert found.low == pytest.approx(0.5 * math.exp(-t.ppf(0.975, 2) * error), rel=1e-12)
    assert found.high == pytest.approx(0.5 * math.exp(t.ppf(0.975, 2) * error), rel=1e-12)
    assert log_error(found, 3) == pytest.approx(error, rel=1e-12)


def test_an_acceptance_length_follows_positions_and_its_interval_the_prompts() -> None:
    """Two positions: 9 of 12 and 4 of 8; a jackknife by hand, and the ends of the possible."""
    counts = [[(2, 4), (1, 2)], [(3, 4), (1, 2)], [(4, 4), (2, 4)]]
    found = length_interval(counts)
    assert found.value == 1 + 9 / 12 + 9 / 12 * 4 / 8
    left_out = [math.log(1 + a * (1 + b)) for a, b in ((7 / 8, 3 / 6), (6 / 8, 3 / 6), (5 / 8, 2 / 4))]
    mean = sum(left_out) / 3
    half = t.ppf(0.975, 2) * math.sqrt(2 / 3 * sum((one - mean) ** 2 for one in left_out))
    assert found.low == pytest.approx(max(found.value * math.exp(-half), 1))
    assert found.high == pytest.approx(min(found.value * math.exp(half), 3))
    assert length_interval([[(0, 4), (0, 0)]] * 5) == Interval(1, 1, 1), "a position that nothing reached"
    assert math.isnan(length_interval(counts[:1]).low)


def test_a_share_never_leaves_its_range() -> None:
    wide = ratio_of_totals([0, 9, 10], [10, 10, 10])
    assert wide.high > 1
    assert ratio_of_totals([0, 9, 10], [10, 10, 10], at_most=1) == Interval(wide.value, wide.low, 1.0)
    assert ratio_of_totals([4.0000001, 4], [4, 4], at_most=1).value == 1.0  # float32 rows sum to 1 ± 1e-7


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=30))
def test_a_share_holds_its_value_whatever_was_counted(counts: list[tuple[int, int]]) -> None:
    found = ratio_of_totals([a for a, _ in counts], [a + b for a, b in counts], at_most=1)
    if math.isnan(found.low):
        assert math.isnan(found.high)
    else:
        assert 0 < found.low <= found.value * (1 + 1e-9)
        assert found.value <= found.high * (1 + 1e-9)
        assert found.high <= 1


@pytest.mark.parametrize(
    ("found", "value"),
    [
        (ratio_of_totals([0, 0, 3], [10, 10, 10]), 0.1),
        (ratio_of_totals([3.0], [4.0]), 0.75),
        (ratio_of_totals([0.0, 0.0], [0.0, 0.0]), math.nan),
        (ratio_of_totals([1.0, 1.0], [0.0, 0.0]), math.nan),
        (speedup_interval([1.0, math.nan], [1, 1], [1.0, 2.0], [1, 1]), math.nan),
    ],
    ids=["one prompt carries everything", "one prompt", "nothing", "nothing to divide by", "no number"],
)
def test_what_says_nothing_of_other_prompts_has_no_interval(found: Interval, value: float) -> None:
    assert found.value == value or (math.isnan(value) and not math.isfinite(found.value))
    assert math.isnan(found.low)
    assert math.isnan(found.high)


def test_more_prompts_make_the_interval_narrower() -> None:
    rng = np.random.default_rng(1)
    few, many = (draw(rng, prompts) for prompts in (10, 160))
    assert many.high - many.low < (few.high - few.low) / 2


def test_intervals_cover_the_truth_where_prompts_differ() -> None:
    """Nominal 95 %, of twenty prompts; a binomial interval over tokens holds it about six times in ten."""
    rng = np.random.default_rng(2)
    found = [draw(rng, 20) for _ in range(1000)]
    assert 0.93 < sum(i.low <= 0.7 <= i.high for i in found) / len(found) < 0.97
    assert sum(narrowed(i) for i in found) / len(found) < 0.75


def draw(rng: np.random.Generator, prompts: int) -> Interval:
    """Accepted ÷ tested of prompts whose own rates vary around 0.7, forty tests each."""
    rates = rng.uniform(0.5, 0.9, prompts)
    return ratio_of_totals(rng.binomial(40, rates).tolist(), [40] * prompts)


def narrowed(found: Interval) -> bool:
    """Whether a binomial interval over tokens, which takes them for independent, would have covered."""
    half = 1.96 * math.sqrt(found.value * (1 - found.value) / (20 * 40))
    return abs(found.value - 0.7) <= half


def of(value: float, half: float) -> Interval:
    """An interval as the module makes them: symmetric on the scale of logarithms."""
    return Interval(value, value * math.exp(-half), value * math.exp(half))


def test_the_geometric_mean_and_half_the_width_relative_to_the_value() -> None:
    assert geomean([1.0, 4.0]) == pytest.approx(2.0, rel=1e-12)
    assert all(math.isnan(geomean(ratios)) for ratios in ([], [1.0, 0.0], [1.0, math.nan], [-1.0]))
    assert half_width(Interval(2.0, 1.9, 2.1)) == pytest.approx(0.05, rel=1e-12)
    assert math.isnan(half_width(Interval(0.0, 0.0, 0.0)))
    assert math.isnan(half_width(Interval(1.5, math.nan, math.nan)))


def test_the_numbers_asked_for_are_the_least_that_do() -> None:
    """Four times the prompts halve the width. Few pay twice: their mean is worse known, and so is their spread."""
    assert to_settle(of(math.exp(0.05), 0.10), 400) == pytest.approx(1600, rel=0.01)
    now = of(1.1, 0.30)
    spread = log_error(now, 6) * math.sqrt(6)
    enough = to_settle(now, 6)
    assert enough is not None
    halves = [t.ppf(0.975, n - 1) * spread / math.sqrt(n) for n in (enough - 1, enough)]
    assert halves[0] > math.log(1.1) >= halves[1]


@pytest.mark.parametrize(
    ("now", "prompts"),
    [
        (Interval(1.5, math.nan, math.nan), 5),
        (Interval(math.nan, math.nan, math.nan), 5),
        (Interval(0.0, math.nan, math.nan), 20),
        (of(1.0, 0.1), 20),
        (of(1.5, 0.1), 1),  # one prompt has no interval, whatever it says
    ],
)
def test_a_value_of_one_or_without_an_interval_is_never_settled(now: Interval, prompts: int) -> None:
    assert to_settle(now, prompts) is None


def test_the_best_of_several_is_judged_more_strictly() -> None:
    best = widened(of(1.5, 1.96), 8)
    assert widened(of(1.5, 1.96), 1).high == pytest.approx(of(1.5, 1.96).high, rel=1e-12)
    assert math.log(best.high / 1.5) == pytest.approx(1.96 * norm.ppf(1 - 0.025 / 8) / norm.ppf(0.975), rel=1e-9)
    assert math.log(1.5 / best.low) == pytest.approx(math.log(best.high / 1.5), rel=1e-9)
    unknown = widened(Interval(1.5, math.nan, math.nan), 8)
    assert unknown.value == 1.5
    assert math.isnan(unknown.low)


# --- tallies ----------------------------------------------------------------------------------------------------------


def test_z_is_the_excess_in_standard_deviations_and_infinite_for_what_cannot_be() -> None:
    tally = Tally(tokens=4, observed=5.0, expected=3.0, variance=4.0)
    assert tally.z == pytest.approx(1.0)
    assert tally.excess == pytest.approx(0.5)
    assert two_sided(tally.z) == pytest.approx(0.3173105)
    assert two_sided(-tally.z) == two_sided(tally.z)
    assert [Tally(3, *parts).z for parts in ((0.0, 0.0, 0.0), (1.0, 0.0, 0.0), (math.inf, 1.0, 1.0))] == [
        0, math.inf, math.inf,
    ]  # fmt: skip
    assert two_sided(math.inf) == two_sided(math.nan) == 0
    assert math.isnan(Tally(0, 0.0, 0.0, 0.0).excess)


def test_texts_add_up() -> None:
    whole = all_together([Tally(2, 1.0, 0.5, 0.25), Tally(3, 2.0, 2.5, 0.75)])
    assert whole == Tally(5, 3.0, 3.0, 1.0)
    assert all_together([]) == Tally(0, 0.0, 0.0, 0.0)


def test_z_of_tokens_that_depend_on_each_other_is_standard_normal() -> None:
    """A chain of two states, each of which decides how surprising the next token can be: 2000 texts of 200 tokens."""
    rng, rows = np.random.default_rng(0), np.array([[0.9, 0.1], [0.4, 0.6]])
    surprise = -np.log(rows)
    mean = (rows * surprise).sum(1)
    variance = (rows * surprise**2).sum(1) - mean**2
    state, sums = np.zeros(2000, dtype=int), np.zeros((3, 2000))
    for _ in range(200):
        token = (rng.random(2000) > rows[state, 0]).astype(int)
        sums += surprise[state, token], mean[state], variance[state]
        state = token
    z = np.array([Tally(200, *parts).z for parts in sums.T])
    assert abs(z.mean()) < 4 / math.sqrt(2000)
    assert z.std() == pytest.approx(1, abs=0.06)
    assert (np.abs(z) > 1.96).mean() == pytest.approx(0.05, abs=0.015)


# --- shares -----------------------------------------------------------------------------------------------------------


def test_the_interval_of_a_share_is_wilsons() -> None:
    """Against scipy, and Newcombe 1998, "Two-sided confidence intervals for the single proportion", table I."""
    for good, of in ((81, 263), (15, 148), (0, 20), (1, 29), (20, 20)):
        found, theirs = share_of(good, of, of), binomtest(good, of).proportion_ci(method="wilson")
        assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)
    assert (share_of(81, 263, 263).low, share_of(81, 263, 263).high) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert math.isnan(share_of(0, 0, 0).value)


def test_fewer_draws_than_requests_widen_the_interval_of_a_share() -> None:
    alone, together_ = share_of(30, 40, 40), share_of(30, 40, 10)
    assert together_.low < alone.low < alone.value < alone.high < together_.high


def pairs_of(both: int, first: int, second: int, neither: int) -> list[tuple[bool, bool]]:
    cells = [(True, True)] * both, [(True, False)] * first, [(False, True)] * second, [(False, False)] * neither
    return [pair for cell in cells for pair in cell]


def test_the_difference_of_paired_shares_covers_it_at_every_true_value() -> None:
    """All tables of ten pairs, by their multinomial chance: the interval covers the truth in 95 of 100, roughly."""
    n = 10
    tables = [(a, b, c, n - a - b - c) for a in range(n + 1) for b in range(n + 1 - a) for c in range(n + 1 - a - b)]
    intervals = [difference_of_shares(pairs_of(*table), n) for table in tables]
    covered = []
    for chances in ((0.4, 0.1, 0.3, 0.2), (0.7, 0.05, 0.15, 0.1), (0.25, 0.25, 0.25, 0.25), (0.1, 0.05, 0.8, 0.05)):
        weights = multinomial(n, chances).pmf(tables)
        truth = chances[2] - chances[1]
        inside = [one.low <= truth <= one.high for one in intervals]
        covered.append(float(np.dot(weights, inside)))
    assert min(covered) > 0.92
    assert np.mean(covered) < 0.995


def test_the_difference_of_paired_shares_changes_its_sign_with_the_order() -> None:
    found, turned = difference_of_shares(pairs_of(36, 12, 2, 0), 50), difference_of_shares(pairs_of(36, 2, 12, 0), 50)
    assert (found.value, found.low, found.high) == pytest.approx((-turned.value, -turned.high, -turned.low))
    assert (turned.low, turned.high) == pytest.approx((0.0569, 0.3404), abs=5e-5)  # Newcombe 1998, table II
    assert difference_of_shares(pairs_of(5, 0, 0, 0), 5).low < 0 < difference_of_shares(pairs_of(5, 0, 0, 0), 5).high
