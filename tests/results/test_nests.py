"""Rounds inside rounds, trees and lossy rules in the numbers, from the loop to the columns; beliefs of acceptance."""

import json
import math
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from specbench.decoding.decode import decode
from specbench.decoding.drafters.chain import ModelDrafter
from specbench.decoding.loop import Speculate, distance
from specbench.decoding.randomness import seeded
from specbench.decoding.timing import WallClock
from specbench.decoding.types import Verdict
from specbench.decoding.verifiers.rejection import Rejection
from specbench.metrics import LevelCounts, RoundCounts, Trace, acceptance, branched, drafting, overlap_by_level
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from specbench.results import nests
from specbench.results.folder import RunFolder
from specbench.results.journal import samples_of, turn_line
from specbench.results.nests import BELIEF, BINS, belief_columns, belief_rows, calibration_error, curve, error_if_exact
from specbench.results.numbers import numbers
from specbench.results.reading import read_run
from specbench.spec import SCHEMA_VERSION
from specbench.theory.formulas import expected_tokens_by_position, nested_costs
from specbench.theory.waterfall import TERMS
from tests.support import tiny
from tests.support.measured import STEP, K, cell, one_round, sample
from tests.support.nested_samples import ROUNDS, SPANS, believing, nested_sample, round_of, tree_sample
from tests.theory.oracles import chain_costs

PROMPTS = ([0, 1], [2], [1, 1, 0])
NEW = 17
NETWORKS = ("llama", "mistral", "gpt2", "qwen3")


def nest(depth: int, clock: WallClock, lengths: tuple[int, ...] = (4, 3), k: int = 2) -> Speculate:
    """A nest of so many levels over tiny networks; every part reports to the clock as `build` has it."""
    models = [Causal(tiny.network(name, 3, seed), Sampling(1.0), 3) for seed, name in enumerate(NETWORKS[: depth + 1])]
    views: list[Any] = [clock]
    for _ in range(depth):
        views.append(views[-1].under("draft"))
    method: Any = ModelDrafter(models[depth], k, clock=views[depth])
    for level in range(depth, 0, -1):
        method = Speculate(method, models[level - 1], Rejection(), (0, *lengths)[level - 1] or 1, views[level - 1])
    return method


def decoded(depth: int) -> list[Trace]:
    clock = WallClock()
    return decode(
        nest(depth, clock), PROMPTS, new=NEW, eos=[], rng=seeded(range(3), tiny.CPU), device=tiny.CPU, clock=clock
    )


# --- counts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_rounds_inside_a_round_are_counted_level_by_level_and_every_level_has_its_costs(depth: int) -> None:
    traces = decoded(depth)
    for trace in traces:
        assert all(len(r.inner) == depth - 1 for r in trace.rounds if r.drafted)
        for done in trace.rounds:
            drafted = done.drafted
            for level in done.inner:
                assert level.emitted == drafted, "what a level drafts is what the level below emits"
                assert level.rounds <= level.emitted <= level.rounds + level.accepted
                assert level.accepted <= level.tested <= level.drafted
                assert 0 <= level.overlap <= level.tested + 1e-6
                assert level.longest <= level.drafted
                drafted = level.drafted
        assert sum(r.emitted for r in trace.rounds) == NEW
    if depth == 1:
        return
    inner = nests.inner_levels(traces, 1e-3)
    assert len(inner) == depth - 1
    assert all(0 < one.v < math.inf and 0 < one.c < math.inf for one in inner)
    costs = nests.draft_costs(inner, traces, 1e-3)
    assert costs is not None
    assert all(before < after for before, after in pairwise(costs))


def test_a_row_that_has_ended_does_not_count_in_inner_rounds() -> None:
    alone, *_ = decoded(2)
    assert {level.longest for r in alone.rounds for level in r.inner} <= {0, 1, 2}
    assert any(level.rounds > 1 for r in alone.rounds for level in r.inner)


def test_the_distance_of_a_round_is_that_of_its_emitted_tokens() -> None:
    none = torch.zeros(2, dtype=torch.long)
    far = torch.tensor([[0.1, 0.2, 0.4], [0.3, 0.0, 0.5]])
    judged = Verdict(none.view(2, 1), none, none, far, far)
    assert distance(judged, torch.tensor([2, 0])).tolist() == [pytest.approx(0.3), 0.0]
    assert distance(replace(judged, distance=None), torch.tensor([2, 0])).tolist() == [0.0, 0.0]


def test_drafting_by_hand() -> None:
    rounds = [
        RoundCounts(2, 2, 1, 2, (0.5, 0.3), 6, 0.4),
        RoundCounts(0, 0, 0, 1, (), 6),
        RoundCounts(1, 1, 1, 2, (0.9,)),
    ]
    found = drafting(rounds)
    assert (found["draft_hit_rate"], found["drafted_per_round"], found["nodes_per_round"]) == (2 / 3, 1.0, 13 / 3)
    assert found["law_distance"] == pytest.approx(0.4 / 5)
    assert overlap_by_level(rounds) == (pytest.approx(0.7), pytest.approx(0.3))
    assert branched(rounds)
    assert not branched([one_round(1), replace(one_round(1), drafted=0, tested=0, accepted=0, overlap=(), nodes=K)])


def test_the_journal_keeps_what_is_inside() -> None:
    inner = (LevelCounts(2, 3, 2, 1, 4, 0.75, 2), LevelCounts(4, 0, 0, 0, 4, 0.0, 0))
    done = RoundCounts(4, 2, 1, 2, (0.5, 0.25), 9, 0.125, inner, surplus=1)
    one = sample("p1", method=Trace((1, 2), (done,), 0.1, 0.1, {"draft": 0.01}))
    line = turn_line({cell().spec: [one]})
    assert samples_of(line) == {cell().spec.key: [one]}
    assert {"rounds_2", "drafted_3", "nodes", "distance", "surplus"} <= set(one.round_rows()[0])


# --- columns ----------------------------------------------------------------------------------------------------------


def test_every_level_has_columns_of_its_own() -> None:
    found = numbers([nested_sample()], K)
    expected = {"alpha_2": 0.5, "tokens_per_round_2": 4 / 3, "c_2": 0.008 / 8 / STEP, "v_2": 0.012 / 6 / STEP}
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert found["rounds_2"] == 6
    assert "alpha_3" not in found
    assert not [name for name in numbers([sample()], K) if name.endswith("_2") and not name.startswith("acceptance")]


def check_terms(found: dict[str, Any]) -> None:
    """The terms lead from the ideal speedup to the measured one."""
    total = found["speedup_ideal"] + math.fsum(found[f"term_{name}"] or 0 for name in TERMS)
    assert total == pytest.approx(found["speedup"], rel=1e-12)


def test_a_nest_is_predicted_by_its_levels_and_the_terms_add_up() -> None:
    found = numbers([nested_sample()], K)
    draft = nested_costs(0.5, 2, found["v_2"], chain_costs(found["c_2"], K))[K]
    assert found["speedup_predicted"] == pytest.approx(1.9375 / (1 + draft))
    assert found["term_first_draft"] == 0
    assert found["term_levels"] == pytest.approx(1.9375 / (1 + K * found["c"]) - 1.9375 / (1 + draft))
    check_terms(found)


@pytest.mark.parametrize("lookahead", [1, 16, None])
def test_a_nest_is_predicted_whatever_was_asked_for(lookahead: int | None) -> None:
    """Also where the text was too short for one whole draft."""
    found = numbers([nested_sample(accepted=(4,))], lookahead)
    assert math.isfinite(found["speedup_predicted"])
    check_terms(found)


def test_a_nest_without_phases_of_its_own_is_predicted_by_its_mean_c() -> None:
    one = nested_sample()
    dark = replace(one, method=replace(one.method, spans={k: v for k, v in SPANS.items() if "/" not in k}))
    found = numbers([dark], K)
    assert math.isnan(found["c_2"])
    assert found["speedup_predicted"] == pytest.approx(1.9375 / (1 + K * found["c"]))
    assert found["term_levels"] == 0


def test_a_path_that_ends_before_the_tree_does_is_not_accepted_further() -> None:
    ended, on = RoundCounts(3, 1, 1, 2, (0.8,), 5), RoundCounts(3, 3, 2, 3, (0.8, 0.6, 0.4), 5)
    cut = RoundCounts(3, 1, 1, 1, (0.8,), 5)  # by the end of the sequence: nobody knows what would have followed
    assert (ended.reached, on.reached, cut.reached) == (2, 3, 1)
    found = acceptance([ended, on])
    assert found.by_position == (1.0, 0.5, 0.0)
    assert expected_tokens_by_position(found.by_position) == found.tokens_per_round == 2.5
    assert overlap_by_level([ended, on, cut]) == (pytest.approx(0.8), pytest.approx(0.3), pytest.approx(0.4))


def test_a_relay_is_predicted_by_the_acceptance_of_every_token_and_the_costs_of_its_legs() -> None:
    one = sample("p1", (4, 1, 0, 2))
    overlaps = (0.9, 0.5, 0.3, 0.2)
    rounds = tuple(replace(r, overlap=overlaps[: r.tested]) for r in one.method.rounds)
    relay = replace(one, method=replace(one.method, rounds=rounds, spans={**one.method.spans, "draft/leg": 0.01}))
    found = numbers([relay], K)
    assert found["speedup_predicted"] == pytest.approx(expected_tokens_by_position(overlaps) / (1 + K * found["c"]))
    assert found["term_levels"] == 0


def test_a_nest_as_a_leg_of_a_relay_costs_its_rounds_and_the_other_legs_their_mean() -> None:
    one = nested_sample()
    rounds = tuple(replace(r, drafted=K + 2) for r in one.method.rounds)  # two tokens behind the four of the nest
    trace = replace(one.method, rounds=rounds, spans={**SPANS, "draft/leg": 0.004})
    (inner,) = nests.inner_levels([trace], STEP)
    costs = nests.draft_costs([inner], [trace], STEP)
    assert costs is not None
    assert costs[: K + 1] == nested_costs(0.5, 2, inner.v, chain_costs(inner.c, K - 1))
    assert costs[K + 2] - costs[K] == pytest.approx(2 * 0.004 / 4 / STEP)


def test_a_tree_is_predicted_by_the_acceptance_of_its_levels_and_pays_for_its_nodes() -> None:
    found = numbers([tree_sample(4, 1, 0, 2)], K)
    assert found["speedup_predicted"] == pytest.approx((1 + 0.8 + 0.4 + 0.2 + 0.1) / (1 + K * 0.1))
    assert (found["nodes_per_round"], found["drafted_per_round"]) == (21, 4)
    assert found["v"] == pytest.approx(2.1)
    check_terms(found)
    chain = numbers([sample("p", (4, 1, 0, 2))], K)
    assert chain["nodes_per_round"] == chain["drafted_per_round"] == K


@pytest.mark.parametrize(
    ("drafts", "lookahead", "expected"),
    [
        (((4, 4, 4), (4, 3)), 4, 4),  # the last rounds have no room for more
        (((4, 0, 4),), 4, None),  # a lookup that found nothing
        (((7, 5, 0),), 16, 16),  # never drafted whole: there was no room
        (((3, 3),), 16, 3),  # a tree of a depth of its own
        (((8, 8, 2),), 4, 8),  # a draft of a length of its own
        (((4, 4),), None, None),
        (((),), 4, 4),
    ],
)
def test_how_many_levels_every_round_drafts(
    drafts: tuple[tuple[int, ...], ...], lookahead: int | None, expected: int | None
) -> None:
    traces = [Trace((), tuple(one_round(0, drafted=d) for d in some)) for some in drafts]
    assert nests.steady(traces, lookahead) == expected


# --- beliefs ----------------------------------------------------------------------------------------------------------


HELD = [round_of(*one) for one in ROUNDS]


def test_the_errors_are_their_arithmetic() -> None:
    found = belief_columns(HELD)
    assert list(found) == list(BELIEF)
    assert found["belief_tests"] == 6
    assert found["belief_mean"] == pytest.approx(4.2 / 6)
    assert found["belief_accepted"] == pytest.approx(4 / 6)
    # believed and accepted, bin by bin: 1.75 and 2, 0.8 and 1, 1.35 and 1, 0.3 and 0
    assert found["belief_ece"] == pytest.approx((0.25 + 0.2 + 0.35 + 0.3) / 6)
    assert found["belief_brier"] == pytest.approx((0.01 + 0.0225 + 0.04 + 0.4225 + 0.09 + 0.09) / 6)
    variances = (0.09 + 0.1275, 0.16, 0.2275 + 0.21, 0.21)
    assert found["belief_ece_if_exact"] == pytest.approx(math.sqrt(2 / math.pi) * sum(map(math.sqrt, variances)) / 6)


def test_the_curve_is_a_row_for_every_bin_with_tests() -> None:
    found = belief_rows(HELD)
    assert [(row["low"], row["high"], row["tests"]) for row in found] == [
        (0.2, 0.3, 1), (0.6, 0.7, 2), (0.7, 0.8, 1), (0.8, 0.9, 2),
    ]  # fmt: skip
    assert [row["believed"] for row in found] == pytest.approx([0.3, 0.675, 0.8, 0.875])
    assert [row["accepted"] for row in found] == [0.0, 0.5, 1.0, 1.0]


@pytest.mark.parametrize(("belief", "place"), [(0.0, 0), (0.1, 0), (0.1001, 1), (0.95, 9), (1.0, 9), (1.0000001, 9)])
def test_a_bin_holds_its_upper_end(belief: float, place: int) -> None:
    assert [one.tests for one in curve([round_of((belief,), 0)])] == [float(i == place) for i in range(BINS)]


def test_luck_makes_as_much_of_exact_beliefs_as_is_said() -> None:
    """The mean of many simulated runs, each of the same number of tokens that are accepted as they are believed."""
    chance, errors, said = random.Random(0), list[float](), list[float]()
    for _ in range(300):
        held = [chance.betavariate(3, 1) for _ in range(200)]
        bins = curve([round_of((one,), int(chance.random() < one)) for one in held])
        errors.append(calibration_error(bins))
        said.append(error_if_exact(bins))
    assert sum(errors) / sum(said) == pytest.approx(1, abs=0.05)
    wrong = curve([round_of((0.9,), int(chance.random() < 0.7)) for _ in range(2000)])
    assert calibration_error(wrong) > 10 * error_if_exact(wrong)


def test_what_believes_nothing_has_no_numbers() -> None:
    none = [one_round(2), RoundCounts(0, 0, 0, 1, ())]
    assert set(belief_columns(none).values()) == {None}
    assert belief_rows(none) == []
    static = cell(sample("p1"))
    assert {static.row()[name] for name in BELIEF} == {None}
    assert static.belief_rows() == []
    assert cell(believing(), status="error").belief_rows() == []


def test_the_journal_keeps_what_was_believed_and_nothing_where_nothing_was() -> None:
    both = [believing("p1"), sample("p1")]
    for one in both:
        line = json.loads(json.dumps(turn_line({cell().spec: [one]}), allow_nan=False))
        assert samples_of(line) == {cell().spec.key: [one]}
    of_rounds = [turn_line({cell().spec: [one]})["arms"][cell().spec.key]["trace"]["rounds"] for one in both]
    assert [len(line) for line in of_rounds[0]] == [10, 10]
    assert of_rounds[0][1][-1] == [0.85, None, 0.7, 0.3]
    assert {len(line) for line in of_rounds[1]} == {9}, "as in journals that were written before there were beliefs"


@pytest.mark.parametrize("held", [[0.5], [0.5, 0.5, 1.5], [0.5, 0.5, "x"], [0.5, 0.5, True], "abc", 7, [0.5] * 4])
def test_beliefs_that_nobody_can_hold_are_refused(held: object) -> None:
    line = turn_line({cell().spec: [believing("p1", ROUNDS[:1])]})
    line["arms"][cell().spec.key]["trace"]["rounds"][0][-1] = held
    with pytest.raises((ValueError, TypeError)):
        samples_of(line)


def test_a_run_that_is_gone_on_with_has_the_numbers_of_one_that_was_not(tmp_path: Path) -> None:
    spec = {"schedule": "confidence", "confidence": 0.5}
    whole = cell(believing("p1"), believing("p2", ROUNDS[:1], turn=1), **spec)
    specs = [whole.spec.model_dump(mode="json")]
    folder = RunFolder.create(tmp_path, "run", {"schema_version": SCHEMA_VERSION, "specs": specs})
    folder.begin([cell(**spec)], 2)
    folder.turn({whole.spec: whole.samples[:1]})
    folder.close()  # as if it had been killed
    again = RunFolder.resume(folder.path)
    (past,) = again.past.values()
    assert past.samples == [whole.samples[0]]
    again.turn({whole.spec: whole.samples[1:]})
    again.end(whole)
    again.close()
    (found,) = read_run(folder.path).cells
    assert {name: found.row()[name] for name in BELIEF} == {name: whole.row()[name] for name in BELIEF}
    assert found.belief_rows() == whole.belief_rows() != []
    kept = pd.read_parquet(folder.path / "rounds.parquet")["belief"]
    assert list(kept[0]) == [0.9, 0.8, 0.65]
