"""What is said about the machine: outliers, drift, two groups of times, load, clocks, throttling, steal."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbench.judge.verdict import recommend
from specbench.metrics import Trace
from specbench.results.journal import samples_of, turn_line
from specbench.results.machine import Reading, reading_of
from specbench.results.noise import (
    bimodality,
    diagnose,
    drift,
    fall,
    faults,
    flags,
    outliers,
    paces,
    steadiness,
    warned,
    worst,
)
from specbench.results.samples import Sample
from specbench.show.documents import noise_notes
from specbench.show.run_output import notes
from tests.judge.test_verdict import row
from tests.support.measured import baseline_trace, cell, method_trace, sample

NORMAL = np.random.default_rng(0).normal(size=200)
QUIET = {"outliers": 0, "drift": 0.0, "drift_p": 1.0, "bimodality": 0.4, "load_average": 1.0}


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


def test_what_is_no_time_is_no_outlier_and_hides_none_nor_is_rounding_one() -> None:
    times = [1.0, 1.1, 0.9, 1.05, 0.95, 1.0, 9.0]
    assert outliers([*times, 0.0, math.nan, -1.0, math.inf]) == ["", "", "", "", "", "", "severe", "", "", "", ""]
    assert outliers([1.0, 1.0, 9.0]) == ["", "", ""]  # three values have no quartiles worth the name
    assert outliers([]) == []
    assert outliers([0.1 + 0.2, 0.3, 0.3, 0.3, 0.3, 0.3]) == [""] * 6


@given(st.floats(1e-6, 1e6))
def test_the_unit_of_time_does_not_matter(unit: float) -> None:
    times = np.exp(0.1 * NORMAL[:30])
    assert outliers((times * unit).tolist()) == outliers(times.tolist())
    assert bimodality((times * unit).tolist()) == pytest.approx(bimodality(times.tolist()), rel=1e-6)
    assert drift((times * unit).tolist())[0] == pytest.approx(drift(times.tolist())[0], rel=1e-6, abs=1e-9)


def test_drift_is_the_share_from_the_first_to_the_last_of_few_or_many_values() -> None:
    share, p = drift([math.exp(0.01 * turn) for turn in range(11)])
    assert share == pytest.approx(math.expm1(0.1), rel=1e-9)
    assert p < 1e-6
    assert drift([math.exp(-0.01 * turn) for turn in range(11)])[0] == pytest.approx(math.expm1(-0.1), rel=1e-9)
    share, _ = drift([math.exp(1e-4 * turn) for turn in range(5001)])
    assert share == pytest.approx(math.expm1(0.5), rel=0.01)


def test_one_slow_turn_at_the_end_and_nothing_to_see_are_no_drift() -> None:
    share, p = drift([1.0, 1.01, 0.99, 1.0, 1.01, 0.99, 1.0, 1.01, 0.99, 5.0])
    assert abs(share) < 0.02
    assert p > 0.1
    assert drift([0.3, 0.1 + 0.2, 0.3, 0.3]) == drift([1.0] * 5)
    assert drift([1.0] * 5) == (0.0, 1.0)
    assert math.isnan(drift([1.0, 2.0])[0])
    assert math.isnan(drift([])[1])


def test_bimodality_of_known_laws() -> None:
    """A uniform law has 5/9, two equal points have 1, a normal law has a third: many values come close."""
    assert bimodality(np.exp(np.linspace(0, 1, 2001)).tolist()) == pytest.approx(5 / 9, abs=0.002)
    assert bimodality([1.0, 2.0] * 500) == pytest.approx(1.0, abs=0.01)
    assert bimodality(np.exp(np.random.default_rng(1).normal(size=20000)).tolist()) == pytest.approx(1 / 3, abs=0.01)


def test_bimodality_needs_ten_values_and_a_spread_and_one_severe_outlier_is_not_a_second_group() -> None:
    assert math.isnan(bimodality([1.0, 2.0] * 4))
    assert not math.isnan(bimodality([1.0, 2.0] * 5))
    assert math.isnan(bimodality([1.0, 1.001] * 20))  # two groups that nobody needs to know of
    assert math.isnan(bimodality([1.0] * 20))
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
    assert found["drift"] == pytest.approx(math.expm1(0.22), rel=1e-9)
    assert (found["load_average"], found["outliers"]) == (11.0, 0)
    assert diagnose([timed(load=None), timed(load=None)])["load_average"] is None


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
    (said,) = warned({**QUIET, **changes}, samples, threads)
    assert words in said.note


@pytest.mark.parametrize(
    "changes",
    [
        {},
        dict.fromkeys(("drift", "drift_p", "bimodality"), math.nan) | {"load_average": None},
        {"drift": 0.029, "drift_p": 1e-9},  # sure, and too small to matter
        {"drift": 0.2, "drift_p": 0.02},  # large, and not sure
        {"bimodality": 0.59},
        {"outliers": 5},
        {"load_average": 2.5},
    ],
)
def test_what_lies_below_a_threshold_or_is_unknown_is_not_worth_a_sentence(changes: dict[str, Any]) -> None:
    assert list(warned({**QUIET, **changes}, 20, 2)) == []
    assert list(warned({**QUIET, **changes}, 20, None)) == []


# --- clocks, throttling, steal ----------------------------------------------------------------------------------------


GPU = Reading(gpu_mhz=1980, gpu_memory_mhz=2619, gpu_celsius=54, gpu_watts=412.0, gpu_watts_limit=700.0, gpu_reasons=0)
CPU = Reading(cpu_mhz=3000.0, cpu_wanted=1.0, cpu_stolen=0.0)


def run_of(*changes: dict[str, Any], reading: Reading = GPU) -> list[Sample]:
    """Twenty prompts, both arms of each read alike; turn n has the changes number n, the last ones again at the end."""
    every = [replace(reading, **changes[min(n, len(changes) - 1)]) for n in range(20)]
    return [sample(f"p{n}", turn=n, readings=(one, one)) for n, one in enumerate(every)]


def said(*changes: dict[str, Any], reading: Reading = GPU) -> list[str]:
    """The notes of a run on the pace of the machine."""
    found = notes([cell(*run_of(*changes, reading=reading)).row()])
    return [note for note in found if "clock" in note or "throttled" in note or "steal" in note]


def test_the_columns_sum_up_the_readings_of_both_arms_and_are_empty_without_any() -> None:
    first, second = replace(GPU, gpu_watts=400.0, gpu_watts_limit=650.0), replace(GPU, gpu_reasons=0x4 | 0x1)
    third, fourth = replace(GPU, gpu_celsius=71, gpu_reasons=0x20), replace(GPU, gpu_mhz=990, gpu_reasons=0x1)
    found = steadiness([sample(readings=(first, second)), sample(readings=(third, fourth))])
    gpu = {"gpu_mhz": 1980.0, "gpu_clock_fall": 0.5, "gpu_memory_mhz": 2619.0, "gpu_memory_clock_fall": 0.0}
    heat = {"gpu_celsius": 71, "gpu_watts": 412.0, "gpu_watts_limit": 650.0}
    held = {"gpu_throttled": 0.5, "gpu_throttle_reasons": "power limit, temperature"}
    nothing = dict.fromkeys(("cpu_mhz", "cpu_clock_fall", "cpu_steal"))
    assert found == {**nothing, **gpu, **heat, **held}
    silent = steadiness([sample(), sample()])
    assert set(silent.values()) == {None}
    assert list(faults(silent)) == []


def test_one_odd_reading_in_ten_is_no_fall() -> None:
    assert fall([1980] * 19 + [345]) == 0.0
    assert fall([1980] * 17 + [990] * 3) == 0.5
    assert fall([1980]) is None


@pytest.mark.parametrize(
    ("reading", "below", "above", "words"),
    [
        (GPU, {"gpu_mhz": 1790}, {"gpu_mhz": 1770}, "the clock of the GPU fell by 11% between decodes (median 1,7"),
        (GPU, {"gpu_memory_mhz": 2360}, {"gpu_memory_mhz": 1300}, "the clock of the GPU's memory fell by 50%"),
        (CPU, {"cpu_mhz": 2560.0}, {"cpu_mhz": 2500.0}, "the clock of the processor fell by 17% between decodes"),
    ],
)  # fmt: skip
def test_a_clock_that_falls_during_a_run(
    reading: Reading, below: dict[str, float], above: dict[str, float], words: str
) -> None:
    cool = [{}] * 6  # six turns, and then it falls
    assert said(*cool, below, reading=reading) == []
    (note,) = said(*cool, above, reading=reading)
    assert note.startswith(f"code: {words}")


def test_a_gpu_that_is_throttled_now_and_then_and_stolen_time_as_a_share_of_what_was_asked_for() -> None:
    assert said({}) == said({}, reading=CPU) == [], "a steady machine"
    assert said({"gpu_reasons": 0x8}, {}) == []  # one turn of twenty
    (note,) = said({"gpu_reasons": 0x8}, {"gpu_reasons": 0x4}, {"gpu_reasons": 0x1})
    assert "the GPU was throttled in 10% of the decodes (power limit, hardware slowdown)" in note
    assert said({"cpu_stolen": 0.019}, reading=CPU) == []
    (note,) = said({"cpu_stolen": 0.03}, reading=CPU)
    assert "3.0% of the requested processor time went to other virtual machines (steal)" in note
    assert said({"cpu_stolen": 0.01, "cpu_wanted": 0.1}, reading=CPU) == [], "four seconds are too few to tell"


def test_of_several_cells_the_worst_is_told() -> None:
    rows = [cell(*run_of({}, {}, {}, {"gpu_mhz": mhz}), k=k).row() for k, mhz in ((1, 1600), (2, 1200), (4, 1500))]
    (told,) = [note for note in notes(rows) if "clock" in note]
    assert "the clock of the GPU fell by 39% between decodes" in told
    (fault,) = worst(fault for one in rows for fault in faults(one))
    assert fault.size == pytest.approx(1 - 1200 / 1980, rel=1e-12)


def test_the_noise_of_a_machine_is_told_with_its_pace() -> None:
    one = {"dataset": "code", "ratio_low": 0.9, "ratio_high": 1.1, "prompts": 20, "repeat": 1, "threads": 2}
    quiet = {"outliers": 0, "drift": 0.0, "drift_p": 1.0, "bimodality": 0.4, "load_average": None}
    assert not any("clock" in note for note in noise_notes([one | quiet]))
    found = noise_notes([one | quiet | {"cpu_clock_fall": 0.3, "cpu_mhz": 2100.0}])
    assert any("the clock of the processor fell by 30%" in note for note in found)


# --- verdicts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"gpu_clock_fall": 0.12, "gpu_mhz": 1700}, "while the clock of the GPU fell by 12% between decodes"),
        ({"gpu_throttled": 0.4, "gpu_throttle_reasons": "power limit"},
         "while the GPU was throttled in 40% of the decodes (power limit)"),
        ({"cpu_steal": "0.05"},
         "while 5.0% of the requested processor time went to other virtual machines (steal)"),
    ],
)  # fmt: skip
def test_a_verdict_on_a_machine_that_changed_its_pace_is_provisional(changes: dict[str, Any], reason: str) -> None:
    (found,) = recommend([row(3, 1.6, **changes)])
    assert (found.answer, found.leaning, found.reasons) == ("PROVISIONAL", "YES", (reason,))
    assert found.settle == "settle it on a steady machine: the same run"
    (busy,) = recommend([row(3, 1.6, **changes, load_average=9.5, threads=2)])
    assert busy.settle == "settle it on a quiet and steady machine: the same run"


def test_a_verdict_on_a_tier_that_failed_is_provisional_until_eager_is_asked_for() -> None:
    failed = {"tier": "auto", "tier_resolved": "eager", "tier_refused": "rounds of chain cannot be captured here (why)"}
    (found,) = recommend([row(3, 1.6, command="specbench run --tier auto --k 3", **failed)])
    reason = "all arms ran in tier eager, because the tier that auto chose failed"
    assert (found.answer, found.leaning, found.reasons) == ("PROVISIONAL", "YES", (reason,))
    assert (found.settle, found.command) == ("settle it", "specbench run --k 3 --tier eager")
    (unknown,) = recommend([row(3, 1.6, **failed, load_average=9.5, threads=2)])
    assert unknown.settle == "settle it on a quiet machine: the same run with --tier eager"
    (fault,) = faults(failed)
    assert fault.note.startswith(
        "rounds of chain cannot be captured here (why): all arms ran in tier eager, and Python"
    )
    (by_intention,) = recommend([row(3, 1.6, tier="eager", tier_resolved="eager", tier_refused="")])
    assert (by_intention.answer, by_intention.reasons) == ("YES", ())


def test_what_a_gpu_always_does_leaves_no_doubt() -> None:
    steady = {"gpu_throttled": 1.0, "gpu_throttle_reasons": "power limit", "gpu_clock_fall": 0.02, "gpu_mhz": 1500}
    (found,) = recommend([row(3, 1.6, **steady)])
    assert (found.answer, found.reasons) == ("YES", ())
    (fault,) = faults(steady)
    assert "throttled in 100%" in fault.note


# --- the journal ------------------------------------------------------------------------------------------------------


def test_readings_come_back_from_the_journal_by_arm_and_are_left_out_where_there_are_none() -> None:
    one = cell().spec
    for known in (sample(readings=(GPU, replace(CPU, cpu_stolen=0.25))), sample()):
        line = turn_line({one: [known]})
        assert samples_of(line) == {one.key: [known]}
    assert "machine" not in str(line)


@pytest.mark.parametrize(
    "written",
    [
        {"cpu_mhz": -1}, {"cpu_mhz": "fast"}, {"gpu_watts": float("nan")}, {"gpu_celsius": float("inf")}, ["cpu_mhz"],
        {"gpu_reasons": 1.5}, {"gpu_reasons": True}, {"cpu_wanted": 1.0, "cpu_stolen": 2.0}, {"smell": 1}, 7,
        {"gpu_mhz": 10**400}, {"cpu_mhz": None},
    ],
)  # fmt: skip
def test_what_no_machine_can_have_said_is_refused(written: Any) -> None:
    with pytest.raises((ValueError, TypeError, OverflowError)):
        reading_of(written)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"v": 0.93, "v_low": 0.9, "v_high": 0.96}, "a verify pass took less time than a baseline step (v 0.93"),
        ({"speedup": 2.65, "tokens_per_round": 2.29}, "the speedup is above the tokens per round (2.65 > 2.29)"),
    ],
)
def test_a_baseline_slower_than_a_round_without_its_draft_makes_an_answer_provisional(
    columns: dict[str, Any], said: str
) -> None:
    [found] = faults({"k": 4, **columns})
    assert said in found.note
    assert said in found.doubt
    [answer] = recommend([row(**{"k": 4, "speedup": 2.2, **columns})])
    assert (answer.answer, answer.leaning) == ("PROVISIONAL", "YES")
    assert any(said in reason for reason in answer.reasons)


@pytest.mark.parametrize(
    "columns",
    [
        {"v": 0.97, "v_low": 0.93, "v_high": 1.01},
        {"v": 0.97, "v_low": None, "v_high": None},
        {"speedup": 2.3, "tokens_per_round": 2.29},
        {"speedup": 2.65, "tokens_per_round": 2.29, "arrivals": 3.0},
        {"k": None, "speedup": 1.2, "tokens_per_round": 1.0},
    ],
)
def test_a_baseline_within_its_error_is_no_fault(columns: dict[str, Any]) -> None:
    assert list(faults({"k": 4, **columns})) == []
