"""YES, NO, PROVISIONAL, UNCLEAR: which rows lead to which, what is never recommended, and how the answer reads."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbench.judge.verdict import Recommendation, recommend
from specbench.results.statistics import Interval, to_settle, widened
from specbench.show.verdict import reason, sentences, together
from specbench.wording import verbatim
from tests.support.frontdoor import Command
from tests.support.made_runs import made_run

pytestmark = pytest.mark.usefixtures("made_runs")


def row(k: int = 3, speedup: float = 1.62, half: float = 0.05, **changes: Any) -> dict[str, Any]:
    """A row of results.csv with an interval of ± half on the log scale; a round at K = 3 costs 1.34 steps."""
    found = {
        "schema_version": 2, "status": "ok", "error": "", "target": "big", "draft": "small", "method": "chain", "k": k,
        "schedule": "constant", "dataset": "xsum", "temperature": 0.0, "dtype_resolved": "bfloat16", "repeat": 3,
        "device_name": "H100", "prompts": 164, "speedup": speedup, "speedup_low": speedup * math.exp(-half),
        "speedup_high": speedup * math.exp(half), "speedup_predicted": 1.77, "speedup_calibrated": 1.6, "alpha": 0.61,
        "alpha_low": 0.59, "alpha_high": 0.63, "c": 0.08, "v": 1.04, "overhead": 0.06, "lossless": "identical",
    }  # fmt: skip
    return {"limit": changes.get("prompts", 164)} | found | changes


def only(*rows: dict[str, Any]) -> Recommendation:
    (found,) = recommend(rows)
    return found


# --- answers ----------------------------------------------------------------------------------------------------------


FEW, TURNS, BUSY = {"prompts": 3}, {"batch": 8, "prompts": 32, "draws": 4}, {"load_average": 9.5, "threads": 2}
ON_FEW, OVER_TURNS = "only 3 prompts (20 needed)", "the interval is over 4 turns (5 needed)"
UNDER_LOAD = "the machine was busy with other programs (load 10)"
BARE = {"status": "ok", "method": "chain", "k": 2, "speedup": 1.5}
PART = {"prompts": 3, "limit": 164, "status": "partial"}
GIVEN = {"run": "abc", "command": "specbench run --target t --k 3"}
QUIET = "measure again on a quiet machine: the same run with --limit 20"
SPEEDS = ((1, 1.5), (2, 1.61), (3, 1.62), (4, 1.605), (8, 1.61))
ANSWERS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "the lower bound is above one": (
        [row()], {"answer": "YES", "best": "K = 3", "k": 3, "candidates": 1, "speedup": 1.62, "more_prompts": None,
                  "low": pytest.approx(1.62 * math.exp(-0.05))}),
    "all upper bounds are below one": ([row(1, 0.9), row(2, 0.8)], {"answer": "NO", "best": "K = 1"}),
    "one upper bound above one is enough to doubt a no": ([row(1, 0.97), row(2, 0.5)], {"answer": "UNCLEAR"}),
    "one that is sure to pay goes before a faster one": (
        [row(3, 1.3, half=0.05), row(4, 1.4, half=0.9)], {"answer": "YES", "best": "K = 3"}),
    "one that pays for sure goes before a faster one on little": (
        [row(2, 1.7, **PART), row(3, 1.5)], {"answer": "YES", "best": "K = 3"}),
    "while one is open a slower one that is settled is not named": (
        [row(2, 0.95, half=0.01), row(8, 0.8, half=0.5)], {"answer": "UNCLEAR", "k": 8}),
    "a threshold is part of what is recommended": (
        [row(4, 1.62, schedule="confidence", confidence=0.9)],
        {"confidence": 0.9, "best": "--schedule confidence:0.9 with K up to 4"}),
    "those as good as the best": ([row(k, s) for k, s in SPEEDS], {"best": "K = 3", "near_best": "2-4,8"}),
    "of a tie the first": ([row(3, 1.62), row(4, 1.62)], {"k": 3, "near_best": "3-4"}),
    "a schedule has no one K": (
        [row(8, 1.7, schedule="auto"), row(3, 1.69), row(4, 1.2), row(3, 1.6, method="token-match")],
        {"best": "--schedule auto with K up to 8", "schedule": "auto", "near_best": "3",
         "break_even_alpha_measured": None}),
    "a method is named": ([row(3, 1.6, method="token-match")], {"best": "token-match (K = 3)"}),
    "drafting nothing is no candidate and the baseline no question": (
        [row(0, 1.2), row(1, 0.9), row(4, 1.4, method="baseline")],
        {"answer": "NO", "best": "K = 1", "left_out": ("K = 0: drafts nothing",)}),
    "a partial cell counts": ([row(status="partial")], {"answer": "YES"}),
    "columns may be missing": ([BARE], {"answer": "UNCLEAR", "best": "K = 2", "alpha": None}),
    "synthetic acceptance stays what it is": (
        [row(acceptance="0.8", **FEW, **BUSY)], {"answer": "UNCLEAR", "leaning": None, "reasons": (), "settle": ""}),
    "unclear stays unclear with the reasons and a way out": (
        [row(1, 1.03, **FEW, **BUSY)],
        {"answer": "UNCLEAR", "leaning": None, "reasons": (ON_FEW, UNDER_LOAD), "settle": QUIET}),
    "one K of a run is followed by more": ([row(3, **GIVEN)], {"further": "specbench sweep-k --target t"}),
    "several are followed by a report": ([row(3, **GIVEN), row(4, **GIVEN)], {"further": "specbench report abc"}),
    "nothing follows without a run": ([row(3)], {"further": ""}),
}  # fmt: skip


@pytest.mark.whole
@pytest.mark.parametrize(("rows", "expected"), ANSWERS.values(), ids=ANSWERS)
def test_which_rows_lead_to_which_answer(rows: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    found = only(*rows)
    assert {name: getattr(found, name) for name in expected} == expected
    assert all(sentences(found))


def test_without_drafts_there_is_no_question_and_unclear_is_an_interval_that_holds_one() -> None:
    assert recommend([row(method="baseline", k=0)]) == recommend([]) == []
    found = only(row(1, 1.03, half=0.05))
    assert found.answer == "UNCLEAR"
    assert found.more_prompts == to_settle(Interval(1.03, 1.03 * math.exp(-0.05), 1.03 * math.exp(0.05)), 164) - 164


def test_the_best_of_several_has_a_wider_interval() -> None:
    # ± 0.05 at 95 % are ± 0.0698 for the best of eight: 1.06 pays if it was the only look, not if it was one of eight
    assert only(row(3, 1.06)).answer == "YES"
    found = only(row(3, 1.06), *(row(k, 1.0) for k in (1, 2, 4, 5, 6, 7, 8)))
    assert (found.answer, found.best, found.candidates) == ("UNCLEAR", "K = 3", 8)
    plain = row(3, 1.06)
    wide = widened(Interval(1.06, plain["speedup_low"], plain["speedup_high"]), 8)
    assert (found.low, found.high) == (wide.low, wide.high)
    assert found.low < 1 < plain["speedup_low"]


# --- little to go by --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("speedup", "leaning"), [(1.62, "YES"), (0.8, "NO")])
@pytest.mark.parametrize(
    ("changes", "reasons"),
    [
        (FEW, [ON_FEW]),
        (TURNS, [OVER_TURNS]),
        (BUSY, [UNDER_LOAD]),
        (FEW | BUSY, [ON_FEW, UNDER_LOAD]),
        (TURNS | BUSY, [OVER_TURNS, UNDER_LOAD]),
        (TURNS | FEW | {"draws": 1}, [ON_FEW, "the interval is over 1 turn (5 needed)"]),
        ({"prompts": None}, ["the number of prompts is unknown"]),
    ],
)
def test_what_makes_an_answer_provisional(
    speedup: float, leaning: str, changes: dict[str, Any], reasons: list[str]
) -> None:
    found = only(row(3, speedup, **changes))
    assert (found.answer, found.leaning, found.reasons) == ("PROVISIONAL", leaning, tuple(reasons))
    lead, *rest = sentences(found)
    assert lead.startswith(f"PROVISIONAL, leaning {leaning}. With K = 3, decoding is {speedup:.2f}× as fast (")
    assert f"Not certain yet: {'; '.join(reasons)}" in rest


@pytest.mark.parametrize(
    ("enough", "little"),
    [
        ({"prompts": 20, "draws": 20}, {"prompts": 19, "draws": 19}),
        ({"prompts": 40, "draws": 5, "batch": 8}, {"prompts": 40, "draws": 4, "batch": 8}),
        ({"load_average": 2.5, "threads": 2}, {"load_average": 2.51, "threads": 2}),  # its own threads are part of it
        ({"load_average": None, "threads": 2}, {"load_average": 2.5, "threads": 1}),
        ({"load_average": 9.5, "threads": None}, {"load_average": 9.5, "threads": 8}),
    ],
)
def test_where_an_answer_begins_to_be_provisional(enough: dict[str, Any], little: dict[str, Any]) -> None:
    assert (only(row(**enough)).answer, only(row(**little)).answer) == ("YES", "PROVISIONAL")
    assert (only(row(**enough)).leaning, only(row(**enough)).settle) == (None, "")


def test_a_no_is_carried_by_every_cell() -> None:
    found = only(row(1, 0.9), row(2, 0.8, prompts=3, limit=164, status="partial"))
    assert (found.answer, found.leaning) == ("PROVISIONAL", "NO")
    assert sentences(found)[0].startswith(
        "PROVISIONAL, leaning NO. With K = 1, the least slow of 2, decoding is 0.90× as fast ("
    )
    assert "Not certain yet: only 3 prompts for K = 2 (20 needed)" in sentences(found)
    assert found.settle == "settle it: the same run with --limit 164"


@pytest.mark.parametrize(("prompts", "half", "more"), [(20, 0.0296, 1), (20, 0.031, 2), (30, 0.0296, 2)])
def test_more_prompts_are_promised_from_enough_of_them(prompts: int, half: float, more: int) -> None:
    found = only(row(1, 1.03, half, prompts=prompts))
    assert (found.answer, found.more_prompts) == ("UNCLEAR", more)
    settle = "1 more prompt settles it" if more == 1 else f"{more} more prompts settle it"
    assert sentences(found)[0].endswith(f"; about {settle} if that stays")


@pytest.mark.parametrize(
    ("changes", "reason", "limit"),
    [
        ({"prompts": 4}, "only 4 prompts (20 needed)", 20),
        ({"prompts": 19}, "only 19 prompts (20 needed)", 20),
        (TURNS, OVER_TURNS, 40),
        (TURNS | {"prompts": 50}, OVER_TURNS, None),
    ],
)
def test_an_interval_over_few_draws_promises_nothing(changes: dict[str, Any], reason: str, limit: int | None) -> None:
    found = only(row(1, 1.03, **changes))
    assert (found.more_prompts, found.reasons) == (None, (reason,))
    assert re.fullmatch(
        r"UNCLEAR\. With K = 1, decoding may be faster or slower: 1\.03× as fast \(.*\).*", sentences(found)[0]
    )
    assert found.settle == "measure again: the same run" + f" with --limit {limit}" * bool(limit)


ROWS = st.builds(
    row,
    st.integers(1, 9),
    st.floats(0.3, 3),
    st.floats(0.001, 0.5),
    prompts=st.integers(15, 60),
    draws=st.integers(3, 60),
    threads=st.sampled_from([None, 1, 2, 8]),
    load_average=st.sampled_from([None, 0.5, 2.0, 2.1, 3.5, 12.0]),
    status=st.sampled_from(["ok", "partial", "oom"]),
    limit=st.sampled_from([None, 3, 100]),
    dataset=st.just("xsum"),
    prompts_sha256=st.just("0"),
)


@given(st.lists(ROWS, min_size=1, max_size=4, unique_by=lambda r: r["k"]))
def test_a_plain_answer_never_stands_on_little(rows: list[dict[str, Any]]) -> None:
    found = only(*rows)
    assert all(sentences(found))
    assert (found.answer == "PROVISIONAL") == (found.leaning is not None)
    if found.answer in ("YES", "NO"):
        assert (found.reasons, found.settle, found.command, found.more_prompts) == ((), "", "", None)
        carrying = [r for r in rows if r["status"] != "oom" and (found.answer == "NO" or r["k"] == found.k)]
        assert all(r["prompts"] >= 20 and r["draws"] >= 5 for r in carrying)
        assert not [r for r in carrying if r["threads"] and (r["load_average"] or 0) > r["threads"] + 0.5]


# --- questions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [{"dataset": "code"}, {"temperature": 1.0}, {"draft": "tiny"}, {"dtype_resolved": "float32"}, {"top_p": 0.9},
     {"device_name": "abacus"}, {"schema_version": 1}, {"prompts_sha256": "f" * 64}],
)  # fmt: skip
def test_what_is_another_question_gets_its_own_answer(other: dict[str, Any]) -> None:
    found = recommend([row(), row(**other, speedup=0.5)])
    assert [v.answer for v in found] == ["YES", "NO"]


def test_what_was_not_measured_is_said() -> None:
    found = recommend([row(), row(dataset="code", temperature=1.0), row(target="other", dataset="c4")])
    assert found[0].not_measured == (
        "batch > 1", "temperatures other than 0, 1", "data sets other than xsum, code", "devices other than H100",
    )  # fmt: skip
    assert found[2].not_measured[2] == "data sets other than c4"


def test_break_even_by_the_formula_and_with_measured_costs_also_where_one_pass_drafts_all_tokens() -> None:
    """A pass of 0.25 steps for two tokens: 1 + α + α² = 1.25 by the formula, 1.65 with 0.4 steps more."""
    found = only(row(k=2, c=0.1, v=1.2, overhead=0.25))
    measured = pytest.approx((math.sqrt(3.6) - 1) / 2)  # 1 + α + α² = 1.65
    assert (found.break_even_alpha, found.break_even_alpha_measured) == (0.1, measured)
    assert only(row(k=1, c=0.9, v=1.2, overhead=0.0)).break_even_alpha_measured is None  # two tokens for 2.1 steps
    assert only(row(v=None)).break_even_alpha_measured is None
    assert only(row(k=1, c=0.1, v=0.8, overhead=0.0)).break_even_alpha_measured == 0.0
    found = only(row(k=2, c=0.125, drafted_per_round=2.0, v=1.2, overhead=0.2, draft_cost_per="round"))
    assert (found.at_once, found.c_round, found.break_even_alpha_measured) == (True, 0.25, measured)
    assert found.break_even_alpha == pytest.approx((math.sqrt(2) - 1) / 2)
    text = "\n".join(sentences(found))
    assert "c 0.125 (0.250 a round, with any K)" in text
    assert "by the formula alpha above 0.207 with K = 2; with the costs measured for K = 2: alpha above 0.449" in text
    assert "alpha above c (0.125)" in "\n".join(sentences(only(row(k=2, c=0.125, draft_cost_per="token"))))


# --- what is never recommended ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"lossless": "MISMATCH"}, "K = 8: not lossless"),
        ({"status": "oom", "error": "out of memory"}, "K = 8: oom: out of memory"),
        ({"status": "skipped"}, "K = 8: skipped"),
        ({"speedup": math.nan}, "K = 8: no speedup was measured"),
        ({"speedup": None}, "K = 8: no speedup was measured"),
        ({"speedup": "x"}, "K = 8: no speedup was measured"),
    ],
)
def test_a_cell_that_failed_is_named_and_not_recommended(changes: dict[str, Any], reason: str) -> None:
    bad = row(8, 9.0) | changes
    found = only(row(3), bad)
    assert (found.answer, found.k, found.candidates, found.left_out) == ("YES", 3, 1, (reason,))
    alone = only(bad)
    assert (alone.answer, alone.best, alone.speedup, alone.left_out) == ("UNCLEAR", "", None, (reason,))
    assert sentences(alone)[0] == "UNCLEAR. No cell was measured that could be recommended"


def test_without_an_interval_nothing_is_clear() -> None:
    found = only(row(prompts=1, speedup_low=math.nan, speedup_high=math.nan))
    assert (found.answer, found.best, found.low, found.more_prompts) == ("UNCLEAR", "K = 3", None, None)
    assert sentences(found)[0] == (
        "UNCLEAR. With K = 3, decoding is 1.62× as fast on 1 prompt, which gives no interval: measure more prompts"
    )
    assert any("[no interval]" in line for line in sentences(found))


def test_rows_of_a_csv_file_give_the_same_verdict() -> None:
    rows = [row(), row(8, status="oom", speedup=math.nan)]
    as_text = [{k: "" if v is None or v != v else str(v) for k, v in r.items()} for r in rows]
    assert recommend(as_text) == recommend(rows)


# --- how it reads -----------------------------------------------------------------------------------------------------


def test_the_lines_of_a_yes() -> None:
    rates = {"tokens_per_second": 162.0, "baseline_tokens_per_second": 100.0, "tokens_per_round": 2.4}
    costs = {"drafted_per_round": 3.0, "v": 1.2, "overhead": 0.01, "c": 0.08}
    assert sentences(only(row(3, **rates, **costs), row(4, 1.61), row(8, status="oom", error="no memory"))) == [
        "YES. With K = 3, the best of 2, decoding is 1.62× as fast (95 % interval 1.53–1.72): 100 → 162 tokens/s",
        "Why: a round emits 2.40 tokens and takes 1.45 baseline steps (draft 0.24, verify 1.20)",
        "speedup 1.620× [1.530, 1.715] 95 %, wider than each one's own: the best of 2 (paired by prompt, "
        "164 prompts × 3)   100.0 → 162.0 tokens/s   xsum, T = 0, batch 1, bfloat16, H100",
        "predicted 1.770×   calibrated (with measured costs) 1.600×   alpha 0.610 [0.590, 0.630]   c 0.080   "
        "optimum flat: K = 3-4 within 1 %",
        "break-even: by the formula alpha above c (0.080); with the costs measured for K = 3: alpha above 0.317",
        "left out: K = 8: oom: no memory",
        "not measured: batch > 1; temperatures other than 0; data sets other than xsum; devices other than H100",
    ]


def test_the_first_line_says_what_to_do_and_the_reason_needs_all_costs() -> None:
    no = sentences(only(row(1, 0.9)))[0]
    assert no.startswith("NO. With K = 1, decoding is 0.90× as fast (95 % interval ")
    assert no.endswith(")")
    assert sentences(only(row(1, 1.03)))[0].endswith("settle it if that stays")
    assert sentences(only(row(1, 1.0)))[0].endswith("; it is 1 within what was measured")
    costs = {"tokens_per_round": 2.4, "drafted_per_round": 3.0, "v": 1.2, "c": 0.08, "overhead": 0.5}
    assert reason(only(row(3, **costs))) == (
        "Why: a round emits 2.40 tokens and takes 1.94 baseline steps (draft 0.24, verify 1.20, overhead 0.50)"
    )
    assert reason(only(row(3, **costs | {"v": None}))) == ""


def test_of_several_answers_the_open_questions_and_the_next_step_are_said_once() -> None:
    some = [row(1, 1.03, prompts=3, dataset=name) for name in ("code", "articles")]
    lines = together(recommend(some))
    assert [re.split("[:.]", line)[0] for line in lines] == [
        "UNCLEAR (code)",
        "UNCLEAR (articles)",
        "Not certain yet",
        "next",
    ]
    one_open = together(recommend([some[0], row(dataset="articles")]))
    assert "Not certain yet (code): only 3 prompts (20 needed)" in one_open
    slow = only(row(1, 0.9), row(2, 0.8), row(4, 1.5, lossless="lossy"))
    assert sentences(slow)[0].startswith("NO. With K = 1, the least slow of 2, decoding is 0.90×")


def test_a_faster_cell_that_was_not_chosen_is_named_with_the_reason() -> None:
    wide = row(2, 3.08, half=3.0)
    found = only(row(4, 1.86), wide)
    assert (found.answer, found.best) == ("YES", "K = 4")
    assert ", the best of" not in sentences(found)[0]
    (line,) = (line for line in sentences(found) if line.startswith("K = 2 is faster on average"))
    assert re.fullmatch(
        r"K = 2 is faster on average, 3\.08×, but not certainly: its 95 % interval .*–.* includes 1", line
    )
    doubted = only(row(4, 1.86), row(2, 3.08, **BUSY))
    assert "K = 2 is faster on average, 3.08×, only provisionally: the machine was busy" in doubted.faster
    assert only(row(4, 1.86), row(2, 1.5)).faster == ""


def test_text_that_repeats_itself_makes_an_answer_provisional_and_shorter_answers_settle_it() -> None:
    given = {"run": "abc", "command": "specbench run --max-tokens 128 --k 3", "max_new_tokens": 128}
    found = only(row(3, looping_share=0.77, **given))
    assert (found.answer, found.reasons) == (
        "PROVISIONAL", ("77% of the tokens are in loops, which are easy to draft",)
    )  # fmt: skip
    assert found.settle == "settle it with shorter answers"
    assert found.command == "specbench run --k 3 --max-new-tokens 64"
    assert only(row(3, looping_share=0.5, **given)).answer == "YES"


def test_a_run_can_grow_or_go_on_and_one_that_was_disturbed_is_measured_anew() -> None:
    given = {"run": "abc", "command": "specbench run --k 1 --limit 3", "limit": 3, "prompts": 3, "repeat": 1}
    grown = only(row(1, 1.03, **given))
    assert (grown.settle, grown.command) == ("measure again", "specbench run --resume abc --limit 20")
    assert "next, to measure again: specbench run --resume abc --limit 20" in sentences(grown)
    for other in (BUSY, {"repeat": 3}, {"batch": 2}, {"until_ci": 0.1}, {"carries": "draft"}, {"run": ""}):
        assert "--resume" not in only(row(1, 1.03, **given | other)).command
    cut = {"run": "abc", "status": "partial", "limit": 50, "prompts": 3, "repeat": 1}
    found = only(row(1, 1.03, **cut))
    assert (found.settle, found.command) == ("measure again", "specbench run --resume abc")
    both = recommend([row(1, 1.03, **cut), row(1, 1.03, **cut | {"dataset": "code", "limit": 3, "status": "ok"})])
    assert together(both)[-1] == "next, to measure again: specbench run --resume abc --limit 20"


def test_every_kind_of_reason_is_told_and_each_once() -> None:
    throttled = {"gpu_throttled": 0.5, "gpu_throttle_reasons": "heat", "gpu_clock_fall": 0.4, "gpu_mhz": 1000}
    found = only(row(3, **throttled))
    assert len(found.reasons) == 2
    assert f"Not certain yet: {'; '.join(found.reasons)}" in sentences(found)
    loads = [row(3, dataset=name, **BUSY | {"load_average": load}) for name, load in (("a", 9.0), ("b", 12.0))]
    assert sum("busy with" in line for line in together(recommend(loads))) == 1


def test_hostile_names_do_not_reach_the_terminal() -> None:
    bad = "\x1b]8;;http://x\x07evil\u202e\x00\n"
    found = only(
        row(dataset=bad, device_name=bad), row(8, status="error", error=bad * 1000, dataset=bad, device_name=bad)
    )
    assert all(line.isprintable() and len(line) <= 1000 for line in sentences(found))


@pytest.mark.parametrize(
    ("text", "shown"), [("a b", "`a b`"), ("a`b", "``a`b``"), ("``a``b", "``` ``a``b ```"), ("a`", "`` a` ``")]
)
def test_a_command_is_copied_from_markdown_as_it_is(text: str, shown: str) -> None:
    assert verbatim(text) == shown


# --- the command ------------------------------------------------------------------------------------------------------


def write(path: Path, *rows: dict[str, Any], command: Any = "") -> Path:
    return made_run(path, rows, command=command)


def test_the_command_prints_the_lines_of_all_runs(command: Command, tmp_path: Path) -> None:
    one, two = write(tmp_path / "one", row()), write(tmp_path / "two", row(dataset="code", speedup=0.9))
    found = command("verdict", one, two / "results.csv").ok()
    answers = [line for line in found.out.splitlines() if " is " in line and not line.startswith(" ")]
    assert [answer.split(" is ")[0] for answer in answers] == [
        "YES (xsum). With K = 3, decoding",
        "NO (code). With K = 3, decoding",
    ]
    markdown = command("verdict", one, "--format", "md").out.splitlines()
    assert markdown[0] == ("**YES. With K = 3, decoding is 1.62× as fast (95 % interval 1.54–1.70)**")
    assert all(line.startswith("- ") for line in markdown[2:] if line)


SURE, NO, OPEN, LITTLE = [row()], [row(1, 0.9)], [row(1, 1.03)], [row(prompts=3)]
LOST = [row(status="oom")]
SEVERAL = [*SURE, OPEN[0] | {"dataset": "a"}]
WORSE = [*SEVERAL, NO[0] | {"dataset": "b"}, NO[0] | {"dataset": "c"}]
ENDS: list[tuple[str, list[dict[str, Any]], int, str]] = [
    ("", NO, 0, ""),
    ("--exit-code", SURE, 0, ""),
    ("--exit-code", NO, 3, "speculative decoding does not pay on xsum: NO. With K = 1, decoding is 0.90×"),
    ("--exit-code", OPEN, 7, "it is not certain that speculative decoding pays on xsum: UNCLEAR. With K"),
    ("--exit-code", LITTLE, 7, "PROVISIONAL, leaning YES. With K = 3"),
    ("--exit-code", LOST, 7, "UNCLEAR. No cell was measured that could be recommended"),
    ("--exit-code", [row(method="baseline", k=0)], 7, "nothing to judge: no cell with a draft was measured"),
    ("--exit-code", WORSE, 3, "; and 1 more"),
    ("--exit-code", SEVERAL, 7, "on a: UNCLEAR"),
    ("--fail-under 1.5", SURE, 0, ""),
    ("--fail-under 0.9", OPEN, 0, ""),
    ("--fail-under 1.6", SURE, 7, "it is not certain that the speedup is at least 1.6× on xsum: YES. With"),
    ("--fail-under 1.8", SURE, 3, "the speedup is below 1.8× on xsum: YES. With K = 3, decoding is 1.62×"),
    ("--fail-under 1.1", NO, 3, "the speedup is below 1.1× on xsum: NO"),
    ("--fail-under 1.1", LITTLE, 7, "PROVISIONAL"),
    ("--fail-under 1.1", [row(acceptance="0.9")], 7, "Synthetic acceptance"),
    ("--fail-under 1.1 --exit-code", SURE, 2, "leave out --exit-code"),
    ("--fail-under nan", SURE, 2, "--fail-under takes a speedup such as 1.1"),
    ("--fail-under 0", SURE, 2, "--fail-under takes a speedup such as 1.1"),
]


@pytest.mark.parametrize(("options", "rows", "code", "line"), ENDS)
@pytest.mark.parametrize("style", ["table", "json"])
def test_the_exit_code_is_the_answer_where_that_is_wanted(
    command: Command, tmp_path: Path, options: str, rows: list[dict[str, Any]], code: int, line: str, style: str
) -> None:
    found = command("verdict", write(tmp_path / "one", *rows), *options.split(), "--format", style)
    assert (found.code, line in found.err) == (code, True), found.err
    assert bool(found.out) == (code != 2 and bool(style == "json" or "nothing to judge" not in line))


def test_the_command_prints_json_without_nan_and_of_a_run_without_a_draft_that_there_is_nothing_to_judge(
    command: Command, tmp_path: Path
) -> None:
    run = write(tmp_path / "one", row(1, 1.03), row(8, speedup=math.nan, status="nan"))
    found = command("verdict", run, "--format", "json")
    (document,) = json.loads(found.out, parse_constant=pytest.fail)
    assert (found.code, document["answer"], document["left_out"]) == (0, "UNCLEAR", ["K = 8: nan"])
    found = command("verdict", write(tmp_path / "two", row(0, method="baseline")))
    assert (found.code, found.out, "nothing to judge" in found.err) == (0, "", True)


def test_the_command_says_how_to_settle_it_and_without_that_of_the_run_there_is_a_hint(
    command: Command, tmp_path: Path
) -> None:
    run = write(tmp_path / "one", row(prompts=3), command="specbench run --limit 3 --template 'a `b`_$c'")
    again = "specbench run --template 'a `b`_$c' --limit 20"
    assert command("verdict", run).out.splitlines() == [
        "PROVISIONAL, leaning YES. With K = 3, decoding is 1.62× as fast (95 % interval 1.54–1.70)",
        "  Not certain yet: only 3 prompts (20 needed)",
        f"next, to settle it: {again}",
    ]
    assert f"- next, to settle it: ``{again}``" in command("verdict", run, "--format", "md").out.splitlines()
    (found,) = json.loads(command("verdict", run, "--format", "json").out)
    assert (found["answer"], found["leaning"], found["command"]) == ("PROVISIONAL", "YES", again)
    assert (found["reasons"], found["settle"]) == (["only 3 prompts (20 needed)"], "settle it")
    for n, content in enumerate((None, "", 3, "\x00")):
        run = write(tmp_path / f"hint{n}", row(prompts=3), command=content)
        told = command("verdict", run / "results.csv").out.splitlines()
        assert told[-1] == "next: settle it: the same run with --limit 20"


def test_each_of_several_runs_has_its_own_command(command: Command, tmp_path: Path) -> None:
    made = "specbench run --dataset {}".format
    runs = [write(tmp_path / name, row(prompts=3, dataset=name), command=made(name)) for name in ("one", "two")]
    told = [
        line
        for line in command("verdict", *(run / "results.csv" for run in runs)).out.splitlines()
        if "settle it" in line
    ]
    assert told == [f"next, to settle it: specbench run --dataset {name} --limit 20" for name in ("one", "two")]
    same = [write(tmp_path / n, row(k, 0.8, prompts=3), command=made(n)) for k, n in ((1, "three"), (2, "four"))]
    told = command("verdict", *(run / "results.csv" for run in same)).out.splitlines()
    assert told[-1] == "next: settle it: the same run with --limit 20", "neither alone settles a no"


@pytest.mark.parametrize(
    ("config", "best"),
    [
        ("ngram", "ngram (K = 4)"),
        ('{"method": "mtp", "num_speculative_tokens": 4}', "mtp (K = 4)"),
        ('{"model": "small", "num_speculative_tokens": 4}', "draft-model (K = 4)"),
        ("", "K = 4"),
    ],
)
def test_an_arm_of_a_server_is_named_as_it_drafts(config: str, best: str) -> None:
    (answer,) = recommend([row(spec_config=config, k=4, method="chain")])
    assert answer.best == best
