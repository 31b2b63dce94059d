"""Notes on text in circles and on drafts that are never accepted: said where it matters, silent elsewhere."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from specbench.judge.advice import circles, rejected_drafts, worst_circle
from specbench.show.run_output import notes
from tests.support.frontdoor import Command
from tests.support.measured import baseline_trace, cell, method_trace, one_round, sample

Row = dict[str, Any]
LOOP: Row = {"prompts": 3, "prompts_looping": 2, "looping_share": 0.5, "longest_cycle": 12, "repeated_4grams": 0.6}
LOOP |= {"alpha": 0.59, "alpha_outside_loops": 0.21, "dataset": "humaneval", "method": "prompt-lookup", "k": 4}
NONE: Row = {"alpha": 0.01, "rounds": 200, "draft_hit_rate": 1.0, "tokens_per_round": 1.02, "drafted_by": "draft"}
NONE |= {"dataset": "code", "method": "chain", "k": 4, "dtype_resolved": "bfloat16", "acceptance_mode": "real"}
NONE |= {"draft_dtype_resolved": "bfloat16"}


# --- text in circles --------------------------------------------------------------------------------------------------


def test_a_loop_is_told_with_alpha_outside_of_it_and_repetition_without_one_at_the_end_is_no_loop() -> None:
    (line,) = circles([LOOP])
    assert line.startswith(
        "humaneval, prompt-lookup, K 4: 2 of 3 outputs end in a loop (50% of the tokens, cycles up to 12"
    )
    assert "which is easy to draft: alpha is 0.590, outside the loops 0.210" in line
    (line,) = circles([{**LOOP, "alpha_outside_loops": 0.7}])
    assert "tokens): alpha is 0.590, outside the loops 0.700" in line
    (line,) = circles([{**LOOP, "looping_share": 0.0, "prompts_looping": 0}])
    assert "60% of the 4-grams of an output were in it before" in line
    assert "end in a loop" not in line


def test_one_line_is_said_of_a_question_about_the_cell_that_gains_most_and_in_brief_of_the_worst() -> None:
    mild = {**LOOP, "method": "chain", "alpha": 0.6, "alpha_outside_loops": 0.55}
    (line,) = circles([mild, LOOP, mild])
    assert "prompt-lookup" in line
    assert len(circles([mild, {**LOOP, "dataset": "xsum"}])) == 2
    (line,) = worst_circle([{**LOOP, "dataset": "xsum", "alpha_outside_loops": 0.5}, LOOP])
    assert line.startswith("humaneval, prompt-lookup, K 4, the worst of 2: 2 of 3 outputs end in a loop")
    assert worst_circle([LOOP]) == circles([LOOP])
    assert worst_circle([{**LOOP, "looping_share": 0.0, "repeated_4grams": 0.0}]) == []


@pytest.mark.parametrize(("share", "repeated", "said"), [(0.09, 0.4, 0), (0.1, 0.0, 1), (0.0, 0.5, 1), (None, None, 0)])
def test_it_is_said_from_a_tenth_of_the_tokens_or_half_of_the_4_grams(share: Any, repeated: Any, said: int) -> None:
    assert len(circles([{**LOOP, "looping_share": share, "repeated_4grams": repeated}])) == said


def test_the_notes_of_a_run_have_it_and_those_of_a_sound_one_do_not() -> None:
    looping = sample(method=method_trace([4] * 8, [1, 2] * 20), baseline=baseline_trace([1, 2] * 20))
    trace, rounds = method_trace([0] * 64), (one_round(0, 0.01),) * 64
    poor = sample(method=type(trace)(tuple(range(64)), rounds, trace.seconds, 0.1, trace.spans))
    assert [line for line in notes([cell(looping).row()]) if "in a loop" in line]
    assert not [line for line in notes([cell(sample()).row()]) if "loop" in line]
    assert not [line for line in notes([cell(status="oom").row()]) if "loop" in line]
    found = cell(poor, resolved={"drafted_by": "draft"})
    assert [line for line in notes([found.row()]) if "almost none of the draft" in line]


# --- drafts that are never accepted -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "said", "unsaid"),
    [
        (
            {},
            ["another family", "almost none of the draft is accepted (alpha 0.010, 1.02 tokens"],
            ["dtype", "float16,"],
        ),
        (
            {"draft_dtype_resolved": "float16"},
            ["two dtypes (bfloat16 target, float16 draft; --draft-dtype); float16,"],
            [],
        ),
        (
            {"drafted_by": "target[:25%]", "draft_dtype_resolved": "float16"},
            ["too little of the target (target[:25%])"],
            ["family"],
        ),
        (
            {"draft_head": "EAGLE-3 (speculators format)", "dtype_resolved": "bfloat16"},
            ["reads other layers than it was trained on (--aux-layers)", "another target", "trained in (bfloat16"],
            ["family"],
        ),
    ],
    ids=["draft", "dtypes", "the target itself", "head"],
)
def test_a_draft_that_is_never_accepted_is_told_with_likely_causes(
    row: Row, said: list[str], unsaid: list[str]
) -> None:
    (line,) = rejected_drafts({**NONE, **row})
    assert line.startswith("code, chain, K 4: ")
    assert [part for part in said if part not in line] == [part for part in unsaid if part in line] == []


def test_it_is_not_said_on_little_nor_of_lookups_nor_of_synthetic_acceptance() -> None:
    sound = {"alpha": 0.05, "rounds": 63, "draft_hit_rate": 0.3, "drafted_by": "", "acceptance_mode": "synthetic"}
    for name, value in (*sound.items(), ("alpha", None)):
        assert rejected_drafts({**NONE, name: value}) == [], name


def test_a_template_that_is_not_applied_is_the_first_cause_and_a_way_out_of_circles() -> None:
    plain = {"chat_template_resolved": "not applied"}
    assert "Likely causes: no chat template, which" in rejected_drafts({**NONE, **plain})[0]
    assert "production: the chat template, fewer" in circles([{**LOOP, **plain}])[0]
    assert not [line for line in (*rejected_drafts(NONE), *circles([LOOP])) if "chat template" in line]


# --- the real thing ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_real_model_in_circles_is_caught(command: Command, tmp_path: Path) -> None:
    if "SPECBENCH_SMOLLM2" not in os.environ:
        pytest.skip("SPECBENCH_SMOLLM2 names no folder with smollm2-135m")
    (tmp_path / "circles.jsonl").write_text(json.dumps({"prompt": "1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3,"}) + "\n")
    asked = ("--method", "prompt-lookup", "--dataset", "jsonl:circles.jsonl", "--dtype", "float32", "--warmup", 0)
    found = command("run", "-t", Path(os.environ["SPECBENCH_SMOLLM2"], "smollm2-135m"), *asked, "--max-new-tokens", 40)
    (row,) = found.table()
    assert (row["prompts_looping"], row["baseline_prompts_looping"], row["drafted_by"]) == ("1", "1", "")
    assert float(row["looping_share"]) > 0.5
    assert "circles.jsonl, prompt-lookup, K 4: 1 of 1 output ends in a loop" in found.out
