"""A design without a network: times from turns, shapes within budgets, who is trained on, and what is said of it."""

import itertools
import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from transformers import LlamaConfig

from specbench.errors import UsageError
from specbench.jobs.training.design import findings, speed_of, to_be_trained
from specbench.jobs.training.design_results import rising, short
from specbench.metrics import RoundCounts, Trace
from specbench.results.samples import Sample
from specbench.training.recipe import Recipe
from tests.support.designs import (  # fmt: skip
    BUDGETS,
    CONFIG,
    DEPTHS,
    K_MAX,
    STEP,
    alpha,
    asked,
    decoded,
    found,
    seconds,
    shapes,
    speed,
    trained,
)
from tests.support.measured import sample

WIDE = LlamaConfig(vocab_size=50_000, hidden_size=128)


# --- times ------------------------------------------------------------------------------------------------------------

TOKEN = {"shallow": 0.001, "deep": 0.004}  # seconds; the first of a round takes a half more


def exactly(value: Any) -> Any:
    return pytest.approx(value, rel=1e-9)


def turn(name: str, k: int) -> Sample:
    """A step takes 10 ms, 8 of them in its pass, and every further token of a pass half of one."""
    alone = Trace((1,) * 4, (RoundCounts(0, 0, 0, 1, ()),) * 4, 0.040, 0.1,
                  {"draft": 0.0, "verify": 0.032, "accept": 0.004})  # fmt: skip
    token, rounds = TOKEN[name], 2
    draft, passes = rounds * token * (k + 0.5), rounds * (0.008 + 0.0005 * k)
    spans = {"draft": draft, "draft/first": rounds * 1.5 * token, "verify": passes, "accept": 0.004}
    chain = Trace((1, 1), (RoundCounts(k, 1, 0, 1, (0.1,)),) * rounds, draft + passes + 0.006, 0.1, spans)
    return sample(baseline=alone, method=chain)


def test_costs_come_out_as_they_were_put_in() -> None:
    arms = (("shallow", 4), ("deep", 4), ("shallow", 1), ("shallow", 2), ("shallow", 6))
    times = speed_of({arm: [turn(*arm)] * 3 for arm in arms}, 6)
    assert (times.step.value, times.step.low, times.step.high) == (exactly(0.010),) * 3
    for name, token in TOKEN.items():
        one = times.drafts[name]
        assert (one.first, one.later) == (exactly(1.5 * token), exactly(token))
        assert one.token.value == exactly(token * 4.5 / 4)
        assert one.c.value == exactly(token * 4.5 / 4 / 0.010)
    # a pass over K + 1 tokens takes K / 2 ms longer; acceptance and host of a round 1 ms longer than in a step
    assert times.verify == exactly(tuple(1 + k / 20 for k in range(7)))
    assert times.overhead == exactly(0.1)
    assert times.v == {k: exactly(1 + k / 16) for k in (1, 2, 4, 6)}
    assert times.rounds(0.001, 0.002)[:2] == exactly((0.1 + 1.05 + 0.1, 0.1 + 0.2 + 1.10 + 0.1))


def test_one_turn_and_one_token_are_enough() -> None:
    times = speed_of({("deep", 1): [turn("deep", 1)]}, 1)
    assert times.drafts["deep"].token.low == times.drafts["deep"].token.high
    assert times.drafts["deep"].later == exactly(1.5 * TOKEN["deep"])  # there is no later one to be seen
    assert len(times.verify) == 2


# --- shapes -----------------------------------------------------------------------------------------------------------


def test_every_budget_and_depth_has_its_widest_shape() -> None:
    for count in ("all", "layers"):
        some, impossible = asked(count=count).candidates(CONFIG)
        assert [(one.budget, one.shape.layers) for one in some] == [(b, d) for b in BUDGETS for d in DEPTHS]
        assert (impossible, len({one.name for one in some})) == ([], len(some))
        for one in some:
            size = one.parameters if count == "all" else one.shape.parameters(0)
            assert 0.5 * one.budget < size <= one.budget
        widths = [one.shape.hidden for one in some if one.budget == BUDGETS[-1]]
        assert widths == sorted(widths, reverse=True)
    for whole, layers in zip(shapes(), some, strict=True):
        assert whole.shape.parameters(0) < layers.shape.parameters(0)
        assert whole.shape.hidden <= layers.shape.hidden


def test_a_budget_smaller_than_the_embedding_is_named_with_the_least_that_works() -> None:
    some, impossible = asked([1_000_000, 4_000_000], [1, 2]).candidates(WIDE)
    assert {one.budget for one in some} == {4_000_000}
    assert [line.partition(":")[0] for line in impossible] == ["--budget 1M", "--budget 1M"]
    for budget, count, message in (
        (1_000_000, "all", r"--budget 1M: no draft of 1 layer"),
        (1000, "layers", r"--budget 1k: .* in its layers"),
    ):
        with pytest.raises(UsageError, match=message) as refused:
            asked([budget], [1], count).candidates(WIDE)
        least = int(str(refused.value).partition("narrowest has ")[2].partition(";")[0].replace(",", ""))
        assert asked([least], [1], count).candidates(WIDE)[0]


def test_amounts_double_and_end_at_the_whole_and_numbers_of_parameters_are_short() -> None:
    for tokens, rungs, expected in ((400, 3, [100, 200, 400]), (400, 1, [400]), (1, 3, [1, 1, 1])):
        assert replace(asked(), recipe=Recipe(tokens=tokens), rungs=rungs).steps == expected
    assert [short(number) for number in (1_000_000, 1_500_000, 68_000, 7 * 10**9)] == ["1M", "1.5M", "68k", "7B"]


# --- who is trained ---------------------------------------------------------------------------------------------------


def test_who_cannot_pay_is_not_trained_but_for_the_deepest_of_a_budget() -> None:
    some = shapes()
    times = speed(some)
    for one in some:
        share = seconds(one) / STEP
        assert times.promises(one.name) == (times.break_even(one.name) is not None)
        assert times.break_even(one.name) == pytest.approx(share + 0.07)  # K = 1: 1 + α = c + 1.02 + 0.05
    chosen = to_be_trained(some, times)
    assert [one.shape.layers for one in chosen] == [1, 2, 4, 1, 2, 4]
    slow = speed(some, STEP / 4)  # c four times as great: only one layer pays
    assert [one.shape.layers for one in to_be_trained(some, slow)] == [1, 4, 1, 4]
    assert to_be_trained(some, speed(some, STEP / 40)) == some  # none pays


def test_the_better_half_goes_on_with_the_deepest_of_its_budgets() -> None:
    some = shapes()
    times = speed(some)
    rungs, learned = trained(some, replace(asked(), rungs=3).steps, times)
    assert rungs[-1][0] == max(some, key=lambda one: times.best(one.name, alpha(one, 80_000)).speedup)
    for (before, rung), half in zip(itertools.pairwise(rungs), (3, 2), strict=True):
        better = before[:half]
        deep = {one for one in before if one.shape.layers == 4 and one.budget in {o.budget for o in better}}
        assert set(rung) == {*better, *deep}
    assert sum(len(known) for known in learned.values()) == sum(map(len, rungs))


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
    json.dumps(design.document, default=asdict)


def test_fits_that_are_exact_agree_with_the_best_shape_and_latencies_that_fall_with_depth_are_said_to() -> None:
    design = found()
    said = "\n".join(findings(design))
    assert "400k parameters: the latency rises with depth: 1.6" in said
    assert said.count("the latency rises with depth") == 2
    assert "1 ms per layer + 0.5 ms per million parameters; error 0.0%" in said
    assert "a step of the target takes 10 ms [10, 10]; its pass over K + 1 tokens" in said
    assert "1.03× at K 1, 1.06× at K 2, 1.12× at K 4" in said
    assert "they agree" in said
    assert "DISAGREE" not in said
    assert "× predicted at K" in said
    drafts: Any = design.speed.drafts
    shallow, _, deep = (one.name for one in design.candidates[:3])
    drafts[shallow], drafts[deep] = drafts[deep], drafts[shallow]
    assert rising([drafts[one.name].token for one in design.candidates[:3]]) == "does NOT rise with depth"
    assert "400k parameters: the latency does NOT rise with depth" in findings(design)[1]


@pytest.mark.parametrize("deep_wins", [True, False])
def test_a_measurement_overrules_a_prediction_and_gains_are_paired_by_prompt(deep_wins: bool) -> None:
    finals = found().rungs[-1]
    deep = max(finals, key=lambda one: one.shape.layers)
    fast, slow = (4, 4, 4), (0, 1, 0)
    design = found({one.name: decoded(one.name, fast if (one is deep) == deep_wins else slow) for one in finals})
    best, said = design.best, "\n".join(findings(design))
    assert (best["name"] == deep.name) == deep_wins
    assert f"best measured: {best['name']}" in said
    assert f"train on {best['name']}: {best['speedup']:.2f}× measured" in said
    if deep_wins:
        assert "they DISAGREE" in said
        assert f"{deep.name} is the deepest of its budget that was measured" in said
    else:
        gain = design.gain(best["name"], deep.name)
        other = next(row for row in design.rows if row["name"] == deep.name)
        assert gain.value == pytest.approx(best["tokens_per_second"] / other["tokens_per_second"])
        assert f"× [{gain.low:.3f}, {gain.high:.3f}] those of {deep.name}" in said


def test_on_the_front_are_shapes_that_learned_as_much() -> None:
    design = found()
    first = {name: known[design.steps[0]] for name, known in design.alphas.items()}
    c, on = ({row["name"]: row[column] for row in design.rows} for column in ("c", "on_front"))
    for name in first:
        beaten = any(c[o] <= c[name] and first[o] >= first[name] and o != name for o in first)
        assert on[name] != beaten
    assert any(on.values())
