"""The test behind `compare`, against numbers worked out by hand or by scipy; and the gates of --fail-on."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student
from scipy.stats import ttest_rel

from specbench.errors import UsageError
from specbench.jobs.reading import gate_of
from specbench.judge.significance import (
    FALSE_ALARM,
    METRICS,
    TOTALLED,
    Criterion,
    Estimate,
    Trial,
    decide,
    estimate,
    holm,
    noiseless,
    z_tests,
)
from specbench.results.statistics import Tally
from tests.support.compared_runs import cell, decoded, folder
from tests.support.frontdoor import Command

pytestmark = pytest.mark.usefixtures("made_runs")
SLOWER = Criterion("speedup", -1, 0.025)


def totals(**columns: list[float]) -> dict[str, np.ndarray]:
    length = len(next(iter(columns.values())))
    return {name: np.asarray(columns.get(name, [1.0] * length), dtype=float) for name in TOTALLED}


def trial(*logs: float, error: float = 0.001, df: float = 20, criterion: Criterion = SLOWER) -> Trial:
    runs = tuple(Estimate(1.0, math.exp(log), log, error, df) for log in logs)
    mean = sum(logs) / len(logs)
    return Trial(criterion, Estimate(1.0, math.exp(mean), mean, error, df), runs)


# --- Holm -------------------------------------------------------------------------------------------------------------


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_lies_between_no_correction_and_bonferroni_and_keeps_the_order(p: list[float]) -> None:
    found = holm(p)
    assert all(one <= a <= min(1, len(p) * one) + 1e-15 for one, a in zip(p, found, strict=True))
    order = sorted(range(len(p)), key=p.__getitem__)
    assert [found[i] for i in order] == sorted(found)


# --- the error --------------------------------------------------------------------------------------------------------


def test_the_error_of_a_plain_mean_is_the_textbooks() -> None:
    """With equal denominators and small spread, the jackknife of a log ratio is the t-test of the mean."""
    values = np.array([1.0, 1.001, 0.998, 1.002, 1.0005, 0.9992])
    new = totals(overlap=values.tolist())
    found = estimate(METRICS["alpha"], totals(overlap=[1.0] * 6), new, paired=True)
    assert found.log == pytest.approx(math.log(values.mean()))
    assert found.error == pytest.approx(values.std(ddof=1) / math.sqrt(6) / values.mean(), rel=2e-3)
    assert found.df == 5
    p = float(student.sf(found.log / found.error, found.df))
    assert p == pytest.approx(ttest_rel(values, np.ones(6), alternative="greater").pvalue, abs=0.01)


def test_pairing_removes_what_prompts_have_in_common() -> None:
    base = totals(overlap=[1.0, 2.0, 3.0, 9.0])
    new = totals(overlap=[1.1, 2.2, 3.3, 9.9])
    paired = estimate(METRICS["alpha"], base, new, paired=True)
    assert paired.error == pytest.approx(0, abs=1e-12)
    assert estimate(METRICS["alpha"], base, new, paired=False).error > 0.3


def test_independent_samples_may_differ_in_size_and_one_prompt_has_no_error() -> None:
    found = estimate(METRICS["alpha"], totals(overlap=[1.0, 1.2, 0.8]), totals(overlap=[1.0, 1.1] * 4), paired=False)
    assert found.new == pytest.approx(1.05)
    assert 2 <= found.df <= 9
    assert math.isnan(estimate(METRICS["alpha"], totals(overlap=[1.0]), totals(overlap=[1.0]), True).error)
    assert not math.isfinite(estimate(METRICS["c"], *[totals(drafted=[0.0, 0.0])] * 2, True).log), "nothing drafted"


# --- the verdict ------------------------------------------------------------------------------------------------------


def verdict(one: Trial, level: float = 0.01) -> str:
    return decide([one], level)[0].outcome


@pytest.mark.whole
@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (trial(-0.04), "REGRESSION"),
        (trial(-0.02), "ok"),
        (trial(-0.04, error=0.02), "inconclusive"),
        (trial(-0.04, -0.04), "REGRESSION"),
        (trial(-0.02, -0.04), "REGRESSION"),  # together beyond the margin, each beyond half of it
        (trial(-0.01, -0.08), "inconclusive"),
        (trial(0.04), "better"),
        (trial(0.0, error=0.02), "inconclusive"),
        (trial(0.04, criterion=Criterion("c", 1, 0.025)), "REGRESSION"),
        *((trial(log, error=0.0), said) for log, said in ((-0.04, "REGRESSION"), (-0.02, "ok"), (0.0, "ok"))),
    ],
)
def test_a_regression_needs_the_margin_and_with_noise_the_certainty_and_every_run(one: Trial, expected: str) -> None:
    assert verdict(one) == expected


def test_many_trials_ask_for_more_certainty() -> None:
    one = trial(-0.04, error=0.013)  # p 0.003
    assert decide([one], 0.01)[0].outcome == "REGRESSION"
    quiet = [trial(0.0) for _ in range(9)]
    assert decide([one, *quiet], 0.01)[0].outcome == "inconclusive"
    assert decide([one, *quiet], 0.01)[0].smallest > decide([one], 0.01)[0].smallest


def test_the_smallest_visible_effect_is_seen_nineteen_times_in_twenty() -> None:
    rng = np.random.default_rng(0)
    smallest = decide([trial(0.0, error=0.01, df=1e9)], 0.01)[0].smallest
    drawn = math.log(1 - smallest) + 0.01 * rng.standard_normal(4000)
    seen = np.mean([verdict(trial(log, error=0.01, df=1e9)) == "REGRESSION" for log in drawn])
    assert 0.94 < seen < 0.96


def test_bounds_are_one_sided_at_the_level() -> None:
    found = decide([trial(-0.04, error=0.01, df=7)], 0.01)[0]
    reach = float(student.ppf(0.99, 7)) * 0.01
    assert (found.low, found.high) == pytest.approx((math.expm1(-0.04 - reach), math.expm1(-0.04 + reach)))


@pytest.mark.parametrize(
    ("base", "new", "change"), [(2, 1, -0.5), (-2, -1, 0.5), (0, 0, 0), (1, -1, -1), (0, 3, math.inf)]
)
def test_plain_numbers_change_relative_to_what_they_were(base: float, new: float, change: float) -> None:
    found = noiseless(base, new).log
    assert (math.expm1(found) if math.isfinite(found) else found) == (change if change > -1 else -math.inf)


# --- --fail-on --------------------------------------------------------------------------------------------------------


def test_the_grammar_of_gates() -> None:
    assert gate_of("speedup<-5%") == Criterion("speedup", -1, 0.05)
    assert gate_of(" c > +10 % ") == Criterion("c", 1, 0.1)
    assert gate_of("round_ms>2.5%") == Criterion("round_ms", 1, 0.025)
    assert gate_of("alpha<0%").limit == 0
    for text in ("", "speedup", "speedup<5%", "c>-1%", "speedup<-5", "speedup<=-5%", "a\nb<-5%", "x<-1e9%"):
        with pytest.raises(UsageError, match=r"^[^\n]*cannot read --fail-on[^\n]*$"):
            gate_of(text)


def test_gates_alone_decide(command: Command, tmp_path: Path) -> None:
    changed = decoded(slower=1.1, seed=1)
    changed[0]["rounds"] += 1
    base, new = folder(tmp_path / "a", cell()), folder(tmp_path / "b", cell(changed, speedup_predicted=1.2))
    run = ("compare", "--format", "json", base, new, "--fail-on")
    assert command(*run, "speedup<-15%").code == 0
    found = command(*run, "speedup<-15%", "--fail-on", "round_ms>+5%")
    assert found.code == 3
    assert [(row["metric"], row["outcome"]) for row in json.loads(found.out)["rows"]] == [
        ("speedup", "ok"), ("round_ms", "REGRESSION"),
    ]  # fmt: skip
    assert command(*run, "speedup_predicted<-10%").code == 3, "a number without samples is compared as it stands"
    command(*run, "sppedup<-10%").refused("did you mean speedup")
    command(*run, "dataset<-10%").refused("not a number")
    command(*run, "c>1%", "--checks", "ratios").refused("leave out --checks")
    failed = folder(tmp_path / "failed", cell(status="oom"))
    assert command("compare", folder(tmp_path / "whole", cell()), failed, "--fail-on", "speedup<-5%").code == 7


# --- text of several methods ------------------------------------------------------------------------------------------


def differing(*z: float, **level: float) -> list[bool]:
    found = z_tests({str(n): Tally(100, one, 0.0, 1.0) for n, one in enumerate(z)}, **level)
    return [test.differs for test in found.values()]


def test_limits_fall_from_the_farthest_on_and_a_z_beyond_its_own_differs_only_if_all_farther_ones_do() -> None:
    found = z_tests(
        {name: Tally(100, z, 0.0, 1.0) for name, z in zip("abc", (0.5, -2.0, 1.0), strict=True)}, level=0.05
    )
    assert [found[name].limit for name in "bca"] == pytest.approx([2.394, 2.241, 1.960], abs=1e-3)
    assert differing(0.5, -2.0, 1.0, level=0.05) == [False] * 3
    assert differing(2.1, 2.3, 0.0, level=0.05) == [False] * 3  # 2.1 is beyond 1.96, 2.3 within 2.394
    assert differing(2.3, -2.5, 0.0, level=0.05) == [True, True, False]
    assert differing(math.nan, math.inf, 1.0) == [True, True, False], "no number is no excuse"
    assert FALSE_ALARM == 0.001
    assert z_tests({}) == {}
