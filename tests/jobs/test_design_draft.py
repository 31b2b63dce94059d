"""A design without a network: shapes within budgets, who is trained on, what is said of it, and its folder."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from specbench.errors import UsageError
from specbench.jobs.design_findings import findings
from specbench.jobs.design_folder import LATENCIES, Learned, Workplace
from specbench.jobs.design_shapes import candidates, in_layers, short
from specbench.jobs.design_training import halved, to_be_trained
from specbench.theory.design import rising
from specbench.theory.halving import amounts
from tests.support.designs import (  # fmt: skip
    BUDGETS,
    CONFIG,
    DEPTHS,
    K_MAX,
    STEP,
    School,
    alpha,
    decoded,
    found,
    seconds,
    shapes,
    speed,
)

WIDE = LlamaConfig(vocab_size=50_000, hidden_size=128)


# --- shapes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", ["all", "layers"])
def test_every_budget_and_depth_has_its_widest_shape(count: Any) -> None:
    some, impossible = candidates(BUDGETS, DEPTHS, CONFIG, count)
    assert [(one.budget, one.shape.layers) for one in some] == [(b, d) for b in BUDGETS for d in DEPTHS]
    assert impossible == []
    assert len({one.name for one in some}) == len(some)
    for one in some:
        size = one.parameters if count == "all" else in_layers(one.shape)
        assert 0.5 * one.budget < size <= one.budget
    widths = [one.shape.hidden for one in some if one.budget == BUDGETS[-1]]
    assert widths == sorted(widths, reverse=True)


def test_layers_alone_are_wider_than_all_of_the_same_budget() -> None:
    both = (candidates(BUDGETS, DEPTHS, CONFIG, count)[0] for count in ("all", "layers"))
    for one, other in zip(*both, strict=True):
        assert in_layers(one.shape) < in_layers(other.shape)
        assert other.shape.hidden >= one.shape.hidden


def test_a_budget_smaller_than_the_embedding_is_named_with_the_least_that_works() -> None:
    some, impossible = candidates([1_000_000, 4_000_000], [1, 2], WIDE, "all")
    assert {one.budget for one in some} == {4_000_000}
    assert [line.partition(":")[0] for line in impossible] == ["--budget 1M", "--budget 1M"]
    least = int(impossible[0].partition("narrowest has ")[2].partition(";")[0].replace(",", ""))
    assert candidates([least], [1], WIDE, "all")[0]
    with pytest.raises(UsageError, match="--budget 1M: no draft of 1 layer"):
        candidates([1_000_000], [1], WIDE, "all")
    with pytest.raises(UsageError, match=r"--budget 1k: 1 layer .* at least"):
        candidates([1000], [1], WIDE, "layers")


@pytest.mark.parametrize(
    ("number", "text"), [(1_000_000, "1M"), (1_500_000, "1.5M"), (68_000, "68k"), (7 * 10**9, "7B")]
)
def test_numbers_of_parameters_are_short(number: int, text: str) -> None:
    assert short(number) == text


# --- who is trained ---------------------------------------------------------------------------------------------------


def test_who_cannot_pay_is_not_trained_but_for_the_deepest_of_a_budget() -> None:
    some = shapes()
    times = speed(some)
    for one in some:
        share = seconds(one) / STEP
        assert times.promising(one.name) == (times.break_even(one.name) is not None)
        assert times.break_even(one.name) == pytest.approx(share + 0.07)  # K = 1: 1 + α = c + 1.02 + 0.05
    chosen = to_be_trained(some, times)
    assert [one.shape.layers for one in chosen] == [1, 2, 4, 1, 2, 4]
    slow = speed(some, STEP / 4)  # c four times as great: only one layer pays
    assert [one.shape.layers for one in to_be_trained(some, slow)] == [1, 4, 1, 4]
    assert to_be_trained(some, speed(some, STEP / 40)) == some  # none pays


def test_the_better_half_goes_on_with_the_deepest_of_its_budgets() -> None:
    some, school = shapes(), School()
    times, steps = speed(some), amounts(80_000, 3)
    rungs, learned = halved(some, steps, school, times, lambda *one: None)  # type: ignore[arg-type]
    assert [rung.amount for rung in rungs] == [20_000, 40_000, 80_000]
    best = rungs[-1].order[0]
    assert best == max(some, key=lambda one: times.predicted(one.name, alpha(one, 80_000)))
    for before, rung in itertools.pairwise(rungs):
        half = before.order[: {20_000: 3, 40_000: 2}[before.amount]]
        deep = {one for one in before.scores if one.shape.layers == 4 and one.budget in {o.budget for o in half}}
        assert set(rung.scores) == {*half, *deep}
    assert sum(len(known) for known in learned.values()) == len(school.asked) == sum(len(r.scores) for r in rungs)


# --- what is said -----------------------------------------------------------------------------------------------------


def test_rows_have_every_number_and_the_formulas_that_they_were_made_with() -> None:
    design = found()
    assert len(design.rows) == 6
    by_name = {one.name: one for one in design.candidates}
    for row in design.rows:
        one = by_name[row["name"]]
        assert row["latency_ms"] == pytest.approx(1000 * seconds(one))
        assert row["c"] == pytest.approx(seconds(one) / STEP)
        assert row["alpha"] == pytest.approx(alpha(one, row["trained_tokens"]))
        assert 1 <= row["k"] <= K_MAX
        rounds = row["k"] * row["c"] + 1 + 0.02 * row["k"] + 0.05
        assert row["speedup_predicted"] == pytest.approx(row["tokens_per_round"] / rounds)
        assert row["tokens_per_second_predicted"] == pytest.approx(row["speedup_predicted"] / STEP)
    assert design.best is design.rows[0]
    fit, gain = design.latency_fit, design.acceptance_fit
    assert fit is not None
    assert gain is not None
    assert (fit.fixed, fit.per_layer, fit.per_parameter) == pytest.approx((0.0005, 0.001, 5e-10))
    assert (gain.by_parameters, gain.by_layers, gain.by_tokens) == pytest.approx((0.5, 0.1, 0.2))
    json.dumps(design.document)


def test_fits_that_are_exact_agree_with_the_best_shape() -> None:
    said = "\n".join(findings(found()))
    assert "400k parameters: the latency rises with depth: 1.6" in said
    assert said.count("the latency rises with depth") == 2
    assert "1 ms per layer + 0.5 ms per million parameters; error 0.0%" in said
    assert "a step of the target takes 10 ms [10, 10]; its pass over K + 1 tokens" in said
    assert "1.03× at K 1, 1.06× at K 2, 1.12× at K 4" in said
    assert "they agree" in said
    assert "DISAGREE" not in said
    assert "× predicted at K" in said


def test_a_measurement_overrules_a_prediction_and_the_disagreement_is_said() -> None:
    """The deepest shape is measured to be the fastest, whatever times and training promised."""
    plain = found()
    finals = plain.rungs[-1].order
    deep = max(finals, key=lambda one: one.shape.layers)
    cells = {one.name: decoded(one.name, (4, 4, 4) if one is deep else (0, 1, 0)) for one in finals}
    design = found(cells)
    best = design.best
    assert best is not None
    assert best["name"] == deep.name
    said = "\n".join(findings(design))
    assert f"best measured: {deep.name}" in said
    assert "they DISAGREE" in said
    assert f"{deep.name} is the deepest of its budget that was measured" in said
    assert f"train on {deep.name}: {best['speedup']:.2f}× measured" in said


def test_the_gain_over_the_deep_draft_is_paired_by_prompt() -> None:
    plain = found()
    finals = plain.rungs[-1].order
    deep = max(finals, key=lambda one: one.shape.layers)
    cells = {one.name: decoded(one.name, (0, 1, 0) if one is deep else (4, 4, 4)) for one in finals}
    design = found(cells)
    best = design.best
    assert best is not None
    gain = design.gain(best["name"], deep.name)
    other = next(row for row in design.rows if row["name"] == deep.name)
    assert gain.value == pytest.approx(best["tokens_per_second"] / other["tokens_per_second"])
    assert math.isfinite(gain.low)
    assert f"× [{gain.low:.3f}, {gain.high:.3f}] those of {deep.name}" in "\n".join(findings(design))


def test_on_the_front_are_shapes_that_learned_as_much() -> None:
    design = found()
    on = design.on_front
    first = {name: known[design.steps[0]].alpha for name, known in design.learned.items()}
    c = {row["name"]: row["c"] for row in design.rows}
    for name, kept in on.items():
        beaten = any(c[o] <= c[name] and first[o] >= first[name] and o != name for o in on)
        assert kept != beaten
    assert any(on.values())


def test_latencies_that_fall_with_depth_are_said_to_do_so() -> None:
    design = found()
    drafts: Any = design.speed.latencies.drafts
    shallow, _, deep = (one.name for one in design.candidates[:3])
    drafts[shallow], drafts[deep] = drafts[deep], drafts[shallow]
    assert rising([drafts[one.name].token for one in design.candidates[:3]]) == "does not rise"
    assert "400k parameters: the latency does NOT rise with depth" in findings(design)[1]


# --- the folder -------------------------------------------------------------------------------------------------------

ASKED = {"kind": "draft design", "design": {"depths": [1], "spec": "0123"}, "environment": {"fingerprint": "a"}}


def test_the_same_design_is_gone_on_with_and_finished_drafts_are_known(tmp_path: Path) -> None:
    place = Workplace.open(tmp_path / "mine", ASKED)
    place.write(LATENCIES, [{"k": 1}])
    place.keep("1M-1x32", Learned(500, 0.25, 1.5, 4))
    again = Workplace.open(tmp_path / "mine", ASKED)
    assert again.read(LATENCIES) == [{"k": 1}]
    assert again.learned("1M-1x32", 500) == Learned(500, 0.25, 1.5, 4)
    assert again.learned("1M-1x32", 1000) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "calibration"}, "something else than a draft design"),
        ({"design": {"depths": [2]}}, "with other settings"),
        ({"environment": {"fingerprint": "b"}}, "another machine or with other versions"),
        ({"environment": None}, "another machine or with other versions"),
    ],
    ids=str,
)
def test_another_design_is_refused(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    Workplace(tmp_path).write("run.json", {**ASKED, **change})
    with pytest.raises(UsageError, match=said):
        Workplace.open(tmp_path, ASKED)


def test_a_folder_with_links_is_not_gone_on_with(tmp_path: Path) -> None:
    place, outside = Workplace.open(tmp_path / "mine", ASKED), tmp_path / "outside"
    outside.mkdir()
    (place.path / "drafts").symlink_to(outside)
    with pytest.raises(UsageError, match="mine/drafts is a link"):
        Workplace.open(place.path, ASKED)
    (tmp_path / "own").symlink_to("mine")
    (place.path / "drafts").unlink()
    assert Workplace.open(tmp_path / "own", ASKED).path == tmp_path / "own"


def test_a_folder_of_something_else_and_a_damaged_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("")
    with pytest.raises(UsageError, match="holds no draft design"):
        Workplace.open(tmp_path, ASKED)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(UsageError, match="is damaged"):
        Workplace.open(tmp_path, ASKED)
