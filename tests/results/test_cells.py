"""The numbers of a cell: exact on phase costs made by hand, consistent on a real decode, absent where it failed."""

import math
from dataclasses import astuple, replace
from functools import cache
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from specbench import metrics
from specbench.decoding.decode import decode
from specbench.decoding.methods import build
from specbench.decoding.randomness import seeded
from specbench.metrics import Trace
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from specbench.results.cells import Losslessness
from specbench.results.latency import WITHIN
from specbench.results.machine import PEAKS
from specbench.results.numbers import NUMBERS, numbers, output_columns, timing
from specbench.results.samples import Sample, by_prompt, speedup_of, without_updates
from specbench.spec import SCHEMA_VERSION, RunSpec
from specbench.theory import formulas
from tests.support.checkpoints import CPU, llama
from tests.support.measured import STEP, K, baseline_trace, cell, method_trace, one_round, sample

DESIGN = (
    "alpha", "alpha_tested", "accepted_per_drafted", "tokens_per_round", "acceptance_at_1", "acceptance_at_2",
    "acceptance_at_3", "acceptance_at_4", "c", "v", "overhead", "speedup", "speedup_low", "speedup_high",
    "speedup_end_to_end", "speedup_predicted", "speedup_calibrated", "lossless",
)  # fmt: skip
TWO = (sample("p1", (4, 2)), sample("p2", (0, 2)))  # 12 tokens in 4 rounds: 120 ms without, 78 ms with a draft
SHORT = 12 / (3.07745361328125 + 1.828125)  # texts of 8 and 4 tokens, rounds of 1, 3 or 5: a quarter, half, a quarter
LOSSLESS = Losslessness("identical", 2, 2)


def exactly(value: Any) -> Any:
    return pytest.approx(value, rel=1e-9, abs=1e-12)


# --- phase costs that are known ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "expected",
    [
        {"c": 0.1, "v": 1.5, "overhead": 0.05, "baseline_step_ms": 10, "round_ms": 19.5, "draft_token_ms": 1},
        {"speedup": 120 / 78, "speedup_end_to_end": (120 + 200) / (78 + 400)},
        {"speedup_predicted": formulas.speedup(0.5, K, 0.1), "tokens_per_second": 12 / 0.078},
        {"speedup_calibrated": SHORT / 1.95, "term_rest": (3 - SHORT) / 1.95},
        {"baseline_tokens_per_second": 100, "rounds": 4, "drafted": 16, "tested": 11, "accepted": 8, "tokens": 4 + 8},
        {"alpha": 0.5, "alpha_tested": 8 / 11, "accepted_per_drafted": 8 / 16, "tokens_per_round": 3},
        {f"acceptance_at_{i}": share for i, share in enumerate((3 / 4, 1, 1 / 3, 1), 1)},
    ],
    ids=["costs", "speedups", "predicted", "ends", "counts", "alpha", "places"],
)
def test_numbers_come_out_as_they_were_put_in(expected: dict[str, float]) -> None:
    found = numbers(TWO, K)
    assert {name: found[name] for name in expected} == exactly(expected)


def test_the_parts_of_a_round_add_up_to_it() -> None:
    found = numbers(TWO, K)
    parts = K * found["draft_token_ms"] + found["v"] * 10 + found["overhead"] * 10
    assert parts == exactly(found["round_ms"])


def test_the_cost_of_learning_is_counted_and_shown() -> None:
    def learning(seconds: float) -> Sample:
        trace = method_trace((4, 2, 0, 2))
        spans = {**trace.spans, "update": seconds}
        return sample(method=replace(trace, seconds=trace.seconds + seconds, spans=spans))

    plain, slow = sample(), learning(0.5)
    assert without_updates(slow).method.seconds == exactly(plain.method.seconds)
    row = cell(slow, learning(0.25)).row()
    assert row["speedup_elsewhere"] == exactly(cell(plain).row()["speedup"])
    assert row["update_share"] == exactly(0.75 / (0.75 + 2 * plain.method.seconds))
    assert row["round_update_ms"] == exactly(1000 * 0.75 / 8)
    assert row["round_host_ms"] == exactly(cell(plain).row()["round_host_ms"])
    assert row["term_host"] == exactly(cell(plain).row()["term_host"])
    assert row["speedup_calibrated"] - row["term_truncated"] == exactly(3 / (1.95 + 0.75 / 8 / STEP))
    assert row["term_update"] == exactly(3 / (1.95 + 0.75 / 8 / STEP) - 3 / 1.95)
    assert row["speedup_calibrated"] + row["term_rest"] == exactly(row["speedup"])
    of_others = cell(plain).row()
    assert [of_others[name] for name in ("speedup_elsewhere", "update_share")] == [None, None]
    assert of_others["round_update_ms"] is None
    assert of_others["term_update"] == 0.0, "so that the terms of a row add up"


def test_inner_spans_are_part_of_the_outer_one_and_not_counted_twice() -> None:
    trace = method_trace((4,))
    assert trace.spans["draft/verify"] == 99.0
    assert timing([trace]).draft == exactly(0.004)


def test_drafting_nothing_is_the_baseline() -> None:
    nothing = sample(method=baseline_trace(range(12)), baseline=baseline_trace(range(12)))
    found = numbers([nothing], K)
    assert (found["c"], found["v"], found["overhead"]) == (0.0, exactly(1.0), exactly(0.0))
    assert (found["speedup"], found["speedup_predicted"]) == (exactly(1.0), 1.0)
    assert found["speedup_calibrated"] == exactly(1.0)
    assert math.isnan(found["alpha"])


def test_a_clock_that_saw_no_time_pass_gives_no_number_and_no_crash() -> None:
    frozen = Trace((1, 2), (one_round(1),), 0.0, 0.0, {})
    assert math.isnan(sample(method=frozen).row()["speedup"])
    assert math.isnan(sample(method=frozen, baseline=frozen).row()["speedup"])


def test_an_engine_that_tells_no_phases_gets_no_predictions() -> None:
    dark = [replace(trace, spans={}) for trace in (TWO[0].baseline, TWO[0].method)]
    found = numbers([sample(baseline=dark[0], method=dark[1])], K)
    assert found["speedup"] == exactly(80 / 39)
    assert math.isnan(found["speedup_predicted"])
    assert math.isnan(found["speedup_calibrated"])


# --- repetitions and intervals ----------------------------------------------------------------------------------------


def test_repetitions_of_a_prompt_are_one_draw() -> None:
    repeated = [sample(p, a, repeat=r) for r in range(5) for p, a in (("p1", (4, 2)), ("p2", (0, 2)))]
    assert [len(group) for group in by_prompt(repeated)] == [5, 5]
    assert numbers(repeated, K)["prompts"] == 2
    assert astuple(speedup_of(repeated)) == pytest.approx(astuple(speedup_of(TWO)))


def test_the_interval_stands_around_the_speedup_and_one_prompt_has_none() -> None:
    found, one = numbers(TWO, K), numbers(TWO[:1], K)
    assert found["speedup_low"] < found["speedup"] < found["speedup_high"]
    assert one["speedup"] > 1
    assert all(math.isnan(one[name]) for name in ("speedup_low", "speedup_high"))


def test_alpha_weighs_prompts_by_what_they_tested() -> None:
    sure = sample("sure", method=Trace(tuple(range(5)), (one_round(4, overlap=1.0),), 0.02, 0.1, {"verify": 0.012}))
    unsure = sample("unsure", method=Trace((1,), (one_round(0, overlap=0.25),), 0.02, 0.1, {"verify": 0.012}))
    assert numbers([sure, unsure], K)["alpha"] == exactly((4 * 1.0 + 0.25) / 5)


# --- rows -------------------------------------------------------------------------------------------------------------


def test_an_ok_row_has_every_column_of_the_design_filled_with_its_spec_and_what_it_resolved_to() -> None:
    row = cell(*TWO, lossless=LOSSLESS).row()
    assert {name: row[name] for name in DESIGN if row[name] is None or row[name] != row[name]} == {}
    assert (row["status"], row["lossless"], row["schema_version"]) == ("ok", "identical", SCHEMA_VERSION)
    row = cell(*TWO, temperature=0.5, k=3, resolved={"target_commit": "abc"}).row()
    assert (row["temperature"], row["k"], row["target_commit"], row["device_name"]) == (0.5, 3, "abc", "abacus")
    assert set(RunSpec.model_fields) <= set(row)


def test_the_list_of_numbers_is_what_is_computed() -> None:
    computed = [name for name in numbers(TWO, K) if not name.startswith("acceptance_at_")]
    ready = ("baseline_ready_seconds", "ready_seconds")
    assert sorted(NUMBERS) == sorted([*computed, *output_columns(TWO, 128), *LOSSLESS.row(), *ready, *PEAKS, *WITHIN])


@pytest.mark.parametrize("status", ["nan", "oom", "error"])
def test_a_failed_cell_is_a_row_of_the_same_columns_with_a_status_and_never_a_number(status: str) -> None:
    row = cell(*TWO, status=status, error="why").row()
    assert (row["status"], row["error"], row["dataset"]) == (status, "why", "code")
    assert {row[name] for name in NUMBERS} == {None}
    assert [name for name in cell(*TWO).row() if not name.startswith("acceptance_at_")] == list(row)


def test_an_interrupted_cell_keeps_the_numbers_of_its_finished_prompts() -> None:
    assert cell(TWO[0], status="partial").row()["prompts"] == 1
    assert cell(status="partial").row()["prompts"] is None


def test_a_sample_has_a_row_for_itself_and_one_for_each_round() -> None:
    row, rounds = TWO[0].row(), TWO[0].round_rows()
    assert (row["prompt"], row["tokens"], row["baseline_tokens"], row["rounds"]) == ("p1", 8, 8, 2)
    assert row["speedup"] == exactly(80 / 39)
    assert row["identical"] is True
    assert [(r["round"], r["accepted"], r["emitted"]) for r in rounds] == [(0, 4, 5), (1, 2, 3)]
    assert [len(r["overlap"]) for r in rounds] == [4, 3]


# --- a real decode ----------------------------------------------------------------------------------------------------


@cache
def decoded(method: str, eos: int | None = None) -> tuple[Trace, ...]:
    """32 prompts of random models at temperature 1, all rows together."""
    models = {name: Causal(net, Sampling(1.0), 64) for name, net in zip(("target", "draft"), pair(), strict=True)}
    prompts = [[2 + n % 60, 3 + n % 50] for n in range(32)]
    speculate, ends = build(method, models, K), [] if eos is None else [eos]
    rng = seeded(range(2000, 2032), CPU)
    return tuple(decode(speculate, prompts, new=40, eos=ends, rng=rng, device=CPU))


def pair() -> tuple[LlamaForCausalLM, LlamaForCausalLM]:
    """A target whose laws are far from uniform, and its embedding, first layer and head as the draft."""
    torch.manual_seed(0)
    target = LlamaForCausalLM(llama()).eval()
    for weight in (w for w in target.parameters() if w.ndim > 1):
        weight.data *= 15
    target.lm_head.weight.data *= 4
    draft = LlamaForCausalLM(llama(num_hidden_layers=1)).eval()
    draft.load_state_dict(target.state_dict(), strict=False)
    return target, draft


@pytest.mark.parametrize("method", ["chain", "token-match"])
def test_both_estimators_of_alpha_agree_within_their_error(method: str) -> None:
    """Given that a position is tested, it is accepted with chance `overlap`: the differences add up to noise."""
    rounds = [r for trace in decoded(method) for r in trace.rounds]
    found = metrics.acceptance(rounds)
    variance = math.fsum(o * (1 - o) for r in rounds for o in r.overlap)
    z = (found.alpha_tested - found.alpha) * found.tested / math.sqrt(variance)
    assert abs(z) < 4
    assert found.tested > 1000
    assert math.sqrt(variance) / found.tested < 0.015, "an error of 0.06 in α would be seen"
    assert 0.1 < found.alpha < 0.9


def test_token_match_accepts_less_than_rejection() -> None:
    alphas = [metrics.acceptance([r for t in decoded(m) for r in t.rounds]).alpha for m in ("chain", "token-match")]
    assert alphas[0] > alphas[1]


@pytest.mark.parametrize("eos", [None, 13])
def test_tokens_of_a_decode_are_rounds_and_accepted_less_the_token_cut_at_its_end(eos: int | None) -> None:
    for trace in decoded("chain", eos):
        together = len(trace.rounds) + sum(r.accepted for r in trace.rounds)
        assert len(trace.tokens) == sum(r.emitted for r in trace.rounds)
        assert together - len(trace.tokens) in {0, 1}
        assert len(trace.tokens) == 40 or trace.tokens[-1] == eos


def test_some_sequences_were_cut() -> None:
    """The control of the test above: an EOS among accepted tokens does occur."""
    cut = [len(t.rounds) + sum(r.accepted for r in t.rounds) - len(t.tokens) for t in decoded("chain", 13)]
    assert 0 < sum(cut) < len(cut)
