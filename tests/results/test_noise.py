"""What is said about the machine: outliers, drift, two groups of times, load."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbench.metrics import Trace
from specbench.results.noise import Diagnostics, bimodality, diagnose, drift, flags, outliers, paces, warned
from specbench.results.samples import Sample
from tests.support.measured import baseline_trace, method_trace, sample

NORMAL = np.random.default_rng(0).normal(size=200)
QUIET = Diagnostics(outliers=0, drift=0.0, drift_p=1.0, bimodality=0.4, load_average=1.0)


def timed(baseline: float = 1.0, method: float = 1.0, **changes: Any) -> Sample:
    """A sample whose arms took so many times the usual seconds."""
    plain, other = baseline_trace(range(12)), method_trace((4, 2, 0, 2))
    arms = {"baseline": stretched(plain, baseline), "method": stretched(other, method)}
    return sample(**{**arms, **changes})


def stretched(trace: Trace, factor: float) -> Trace:
    return Trace(trace.tokens, trace.rounds, trace.seconds * factor, trace.prefill_seconds, trace.spans)


def test_fences_lie_at_one_and_a_half_and_three_interquartile_ranges() -> None:
    """Logarithms 0 … 4 have the quartiles 1 and 3: the fences are −2 and 6 (mild), −5 and 9 (severe)."""
    inner = [0.0, 1.0, 2.0, 3.0, 4.0] * 20  # one more value does not move these quartiles
    for far, flag in ((5.9, ""), (6.1, "mild"), (8.9, "mild"), (9.1, "severe"), (-2.1, "mild"), (-5.1, "severe")):
        assert outliers([math.exp(x) for x in [*inner, far]])[-1] == flag


def test_what_is_no_time_is_no_outlier_and_hides_none() -> None:
    times = [1.0, 1.1, 0.9, 1.05, 0.95, 1.0, 9.0]
    assert outliers([*times, 0.0, math.nan, -1.0, math.inf]) == ["", "", "", "", "", "", "severe", "", "", "", ""]
    assert outliers([1.0, 1.0, 9.0]) == ["", "", ""]  # three values have no quartiles worth the name
    assert outliers([]) == []


def test_rounding_is_no_outlier() -> None:
    assert outliers([0.1 + 0.2, 0.3, 0.3, 0.3, 0.3, 0.3]) == [""] * 6


@given(st.floats(1e-6, 1e6))
def test_the_unit_of_time_does_not_matter(unit: float) -> None:
    times = np.exp(0.1 * NORMAL[:30])
    assert outliers((times * unit).tolist()) == outliers(times.tolist())
    assert bimodality((times * unit).tolist()) == pytest.approx(bimodality(times.tolist()), rel=1e-6)
    assert drift((times * unit).tolist()).share == pytest.approx(drift(times.tolist()).share, rel=1e-6, abs=1e-9)


def test_drift_is_the_share_from_the_first_to_the_last() -> None:
    found = drift([math.exp(0.01 * turn) for turn in range(11)])
    assert found.share == pytest.approx(math.expm1(0.1), rel=1e-9)
    assert found.p < 1e-6
    assert drift([math.exp(-0.01 * turn) for turn in range(11)]).share == pytest.approx(math.expm1(-0.1), rel=1e-9)


def test_one_slow_turn_at_the_end_is_no_drift() -> None:
    found = drift([1.0, 1.01, 0.99, 1.0, 1.01, 0.99, 1.0, 1.01, 0.99, 5.0])
    assert abs(found.share) < 0.02
    assert found.p > 0.1


def test_nothing_to_see_is_no_drift() -> None:
    assert drift([0.3, 0.1 + 0.2, 0.3, 0.3]) == drift([1.0] * 5)
    assert (drift([1.0] * 5).share, drift([1.0] * 5).p) == (0.0, 1.0)
    assert math.isnan(drift([1.0, 2.0]).share)
    assert math.isnan(drift([]).p)


def test_drift_of_many_values_is_that_of_evenly_spread_ones() -> None:
    many = drift([math.exp(1e-4 * turn) for turn in range(5001)])
    assert many.share == pytest.approx(math.expm1(0.5), rel=0.01)


def test_bimodality_of_known_laws() -> None:
    """A uniform law has 5/9, two equal points have 1, a normal law has a third: many values come close."""
    assert bimodality(np.exp(np.linspace(0, 1, 2001)).tolist()) == pytest.approx(5 / 9, abs=0.002)
    assert bimodality([1.0, 2.0] * 500) == pytest.approx(1.0, abs=0.01)
    assert bimodality(np.exp(np.random.default_rng(1).normal(size=20000)).tolist()) == pytest.approx(1 / 3, abs=0.01)


def test_bimodality_needs_ten_values_and_a_spread() -> None:
    assert math.isnan(bimodality([1.0, 2.0] * 4))
    assert not math.isnan(bimodality([1.0, 2.0] * 5))
    assert math.isnan(bimodality([1.0, 1.001] * 20))  # two groups that nobody needs to know of
    assert math.isnan(bimodality([1.0] * 20))


def test_one_severe_outlier_is_not_a_second_group() -> None:
    times = np.exp(0.05 * NORMAL[:20]).tolist()
    assert bimodality([*times, 50.0]) == pytest.approx(bimodality(times), rel=1e-12)


def test_long_contexts_are_slow_and_no_outliers() -> None:
    """Time grows with the context by a straight line on the log scale: what is left has no spread."""
    prompts = [10 * n for n in range(1, 12)]
    traces = [stretched(baseline_trace(range(8)), math.exp(0.004 * n)) for n in prompts]
    assert paces(traces, prompts) == pytest.approx([paces(traces, prompts)[0]] * 11, rel=1e-9)
    traces[3] = stretched(traces[3], 1.5)
    assert [pace / paces(traces, prompts)[0] > 1.4 for pace in paces(traces, prompts)].index(True) == 3


def test_a_pace_is_seconds_per_round_so_that_acceptance_is_no_noise() -> None:
    lucky, unlucky = method_trace((4, 4, 4)), method_trace((0, 0, 0))
    assert paces([lucky, lucky], [7, 7]) == pytest.approx([lucky.seconds / 3] * 2, rel=1e-12)
    assert unlucky.seconds == lucky.seconds
    assert math.isnan(paces([Trace((), ())], [7])[0])


def test_the_worse_arm_flags_a_sample() -> None:
    quiet = [timed(1 + x / 100, 1 + x / 100) for x in (-2, -1, 0, 1, 2, -1, 0, 1)]
    found = flags([*quiet, timed(baseline=1.06), timed(method=3.0), timed(baseline=1.06, method=3.0)])
    assert found == [""] * 8 + ["mild", "severe", "severe"]


def test_diagnostics_follow_the_turns_and_not_the_order_of_the_samples() -> None:
    samples = [timed(math.exp(0.02 * turn), turn=turn, load=float(turn)) for turn in range(12)]
    found = diagnose(samples[::-1])
    assert found == diagnose(samples)
    assert found.drift == pytest.approx(math.expm1(0.22), rel=1e-9)
    assert found.load_average == 11.0
    assert found.outliers == 0


def test_a_machine_that_counts_no_load() -> None:
    assert diagnose([timed(load=None), timed(load=None)]).load_average is None


def test_a_quiet_machine_is_warned_of_nothing() -> None:
    assert list(warned(QUIET, 20, 2)) == []
    unknown = Diagnostics(0, math.nan, math.nan, math.nan, None)
    assert list(warned(unknown, 3, None)) == []


@pytest.mark.parametrize(
    ("changes", "samples", "threads", "words"),
    [
        ({"drift": 0.07, "drift_p": 0.001}, 20, 2, "slowed down by 7% during the run (p 0.001)"),
        ({"drift": -0.07, "drift_p": 0.001}, 20, 2, "became faster by 7%"),
        ({"bimodality": 0.61}, 20, 2, "two groups (bimodality 0.61)"),
        ({"outliers": 6}, 20, 2, "6 of 20 samples are outliers"),
        ({"load_average": 3.1}, 20, 2, "load average 3.1 on 2 threads"),
        ({"load_average": 2.1}, 20, 1, "load average 2.1 on 1 thread:"),
    ],
)
def test_every_fault_has_its_sentence(changes: dict[str, Any], samples: int, threads: int, words: str) -> None:
    (said,) = warned(Diagnostics(**{**vars(QUIET), **changes}), samples, threads)
    assert words in said.note


@pytest.mark.parametrize(
    "changes",
    [
        {"drift": 0.029, "drift_p": 1e-9},  # sure, and too small to matter
        {"drift": 0.2, "drift_p": 0.02},  # large, and not sure
        {"bimodality": 0.59},
        {"outliers": 5},
        {"load_average": 2.5},
    ],
)
def test_what_lies_below_a_threshold_is_not_worth_a_sentence(changes: dict[str, Any]) -> None:
    assert list(warned(Diagnostics(**{**vars(QUIET), **changes}), 20, 2)) == []
