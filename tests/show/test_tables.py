"""The tables of a run: which cells share one, what is best, the order of lines, formats that parse back, hostile text.

How they look is in golden/.
"""

import csv
import io
import json
import math
from dataclasses import asdict, replace
from typing import Any

import pytest
from rich.console import Console

from specbench.judge.candidates import best_ks, vllm_schedule
from specbench.judge.verdict import recommend
from specbench.results.cells import Cell, Losslessness
from specbench.results.documents import About
from specbench.results.samples import Sample
from specbench.show.details import (
    OF_SOME,
    STAGES,
    cell_categories,
    k_by_batch_tables,
    level_lines,
    levels_tables,
    method_categories,
    reliability_tables,
    why_tables,
)
from specbench.show.engines import engines_table, served_tables, turning_said
from specbench.show.run_output import Shown, category_tables, notes, notes_below, print_run, rendered
from specbench.show.tables import best, cells_table, conclusions, context_table, methods_table, sweep_tables
from specbench.show.text import (
    FEW,
    arranged,
    by_batch,
    by_context,
    by_engine,
    by_method,
    cell_text,
    lookahead,
    series,
    shared_settings,
)
from specbench.show.verdict import details
from specbench.spec import SCHEMA_VERSION
from tests.show.scenes import MIXED, NEST, PAIR, RUNS, requests
from tests.support.measured import baseline_trace, cell, sample

Row = dict[str, Any]


def rows_of(*cells: Cell) -> list[Row]:
    return [one.row() for one in cells]


def printed(*cells: Cell, style: str = "table", width: int = 160, **shown: Any) -> str:
    file = io.StringIO()
    print_run(rows_of(*cells), style, Console(file=file, width=width), Shown(**shown))
    return file.getvalue()


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_numbers_have_the_digits_that_mean_something() -> None:
    row = {"speedup": 1.23456, "tokens_per_second": 1234.56, "alpha": 0.7, "alpha_low": 0.6, "alpha_high": 0.8}
    shown = [cell_text(row, c) for c in ("speedup", "tokens_per_second", "alpha", "alpha_interval", "c", "v")]
    assert shown == ["1.235×", "1234.6", "0.700", "0.600 – 0.800", "–", "–"]
    assert cell_text({"speedup_low": math.nan, "speedup_high": 2.0}, "speedup_interval") == "–"
    whole = [cell_text({"break_even_batch": at}, "break_even_batch") for at in (math.inf, 0.3, 7.2, 1200.5)]
    assert whole == ["never", "1", "8", "1,201"]
    assert cell_text({**row, "c": None}, "c") == "–"
    (row,) = rows_of(cell(*PAIR))
    assert cell_text(row, "c_round") == f"{row['c'] * row['drafted_per_round']:.3f}" == "0.400"
    assert cell_text({**row, "c": None}, "c_round") == "–"


def test_a_run_without_a_draft_says_so_and_a_schedule_its_ceiling() -> None:
    assert shared_settings(rows_of(cell(*PAIR, draft=None)), []).startswith("big ← no draft")
    assert [lookahead(one.row()) for one in (cell(schedule="auto", k=12), cell(k=3))] == ["auto ≤ 12", "3"]


# --- which cells share a table ----------------------------------------------------------------------------------------


def test_every_row_is_shown_once_and_data_sets_and_temperatures_stay_apart() -> None:
    names = ("chain", "block", "tree-top", "merge", "jacobi")
    many = [cell(*PAIR, method=name, temperature=t).row() for t in (0.0, 1.0) for name in names]
    swept = [cell(*PAIR, k=k, dataset="swept").row() for k in (1, 2)]
    few = [cell(*PAIR, method=name, dataset="few").row() for name in names[:2]]
    sweeps, lists, alone = arranged([*many, *swept, *few])
    assert ([len(g) for g in sweeps], [len(g) for g in lists], alone) == ([2], [5, 5], few)
    shown = [id(row) for group in (*sweeps, *lists, alone) for row in group]
    assert sorted(shown) == sorted(map(id, [*many, *swept, *few]))
    assert by_method(many[:FEW]) == []
    assert [len(group) for group in series([*swept, *few])] == [2, 1, 1]


def test_series_are_in_their_order_and_one_value_is_none() -> None:
    rows = rows_of(*RUNS["contexts"]()[:4])
    (group,) = by_context(rows)
    assert [(row["context"], row["k"]) for row in group] == [(1000, 1), (1000, 4), (4096, 1), (4096, 4)]
    assert by_context([row for row in rows if row["context"] == 1000]) == []
    assert by_context([rows[0], rows[2] | {"temperature": 1.0}]) == []
    assert by_engine(rows_of(RUNS["engines"]()[0]) * 2) == []


def test_many_cells_are_columns_a_few_at_a_time() -> None:
    text = printed(*(cell(*PAIR, dataset=f"d{n}") for n in range(6)), explain=True)
    heads = [line for line in text.splitlines() if line.startswith("┃")]
    assert [line.count("┃") - 3 for line in heads] == [4, 2]


# --- the one table ----------------------------------------------------------------------------------------------------


def test_methods_are_ordered_by_speedup_the_lossy_marked_and_those_without_numbers_last() -> None:
    speeds = {"chain": 1.1, "block": 1.4, "tree-top": None, "merge": 0.9, "jacobi": 1.2}
    found = [
        cell(*PAIR, method=name).row() | {"speedup": speed, "status": "ok" if speed else "oom"}
        for name, speed in speeds.items()
    ]
    found[1]["lossless"] = "lossy"
    table = cells_table(found)
    assert [line[0] for line in table.lines] == ["block (lossy)", "jacobi", "chain", "merge", "tree-top"]
    assert table.lines[-1][1] == "oom"
    assert list(table.bold_lines) == [1], "the fastest lossless one"


def test_no_number_is_cut_however_narrow_the_console_is() -> None:
    cells = [cell(*PAIR, method=name) for name in ("chain", "block")]
    (line,) = [line for line in printed(*cells, width=40).splitlines() if line.strip().startswith("chain ")]
    assert cell_text(cells[0].row(), "speedup_interval") in line


# --- sweeps -----------------------------------------------------------------------------------------------------------


def measured(**speedups: float) -> list[Row]:
    """Rows with K from the names k1, k2 … and nothing else that matters."""
    return [{"k": int(name[1:]), "status": "ok", "speedup": value} for name, value in speedups.items()]


@pytest.mark.parametrize(
    ("speedups", "name", "value", "near"),
    [
        ({"k1": 1.2, "k2": 1.5, "k3": 1.49, "k4": 1.4}, "2", 1.5, ("2", "3")),
        ({"k1": 0.9, "k2": 0.995}, "0", 1.0, ("2", "0")),
    ],
)
def test_the_best_has_all_within_one_percent_and_is_no_draft_where_nothing_pays(
    speedups: dict[str, float], name: str, value: float, near: tuple[str, ...]
) -> None:
    found = best(measured(**speedups), "speedup")
    assert found is not None
    assert (found.name, found.value, found.near) == (name, value, near)


@pytest.mark.parametrize("nothing", [None, math.nan])
def test_without_numbers_nothing_is_best_and_two_thresholds_are_two_lookaheads(nothing: float | None) -> None:
    for status in ("oom", "ok"):
        assert best([{"k": 1, "status": status, "speedup": nothing}], "speedup") is None
    assert conclusions([{"k": 1, "status": "oom"}]) == []
    both = {"k": 4, "schedule": "confidence", "status": "ok"}
    found = best([both | {"confidence": c, "speedup": s} for c, s in ((0.9, 1.5), (0.05, 1.1))], "speedup")
    assert found is not None
    assert (found.name, found.value) == ("confidence 0.9 ≤ 4", 1.5)


def test_every_lookahead_is_a_line_with_its_numbers_and_a_failed_one_is_never_best() -> None:
    failed = cell(sample("p1", (8, 8)), k=8, status="mismatch", error="greedy output differs")
    swept = [cell(sample("p1", (k, 0)), sample("p2", (k, 0)), k=k).row() for k in (1, 2, 4)]
    table, accepted = sweep_tables([*swept, failed.row()])
    columns = ("speedup", "speedup_interval", "speedup_predicted", "speedup_calibrated", "tokens_per_round", "alpha")
    assert [line[1:7] for line in table.lines[:3]] == [[cell_text(row, name) for name in columns] for row in swept]
    assert table.lines[3][:3] == ["8", "mismatch", "–"]
    assert accepted.lines[2][1:5] == [cell_text(swept[2], f"acceptance_at_{i}") for i in range(1, 5)]
    assert not any("best K, measured: 8" in line for line in table.findings)
    assert "code, chain, K 8: mismatch: greedy output differs" in notes_below([failed.row()], [], Shown())


def test_the_terms_add_up_from_the_prediction_to_the_measurement() -> None:
    row = cell(*PAIR).row()
    (table,) = why_tables([row], ["a"])
    numbers = [float(text.replace("−", "-")) for text in table.lines[0][1:]]
    shown = [column for _, column, _ in STAGES if column not in OF_SOME]
    assert numbers == [pytest.approx(row[column], abs=0.0005) for column in shown]
    assert numbers[0] + sum(numbers[i] for i in (1, 3, 4, 5, 6, 7, 9)) == pytest.approx(numbers[-1], abs=0.004)
    dark = sample("p1", baseline=replace(baseline_trace(range(8)), spans={}))
    assert why_tables([cell(dark).row(), cell(status="oom").row()], ["a", "b"]) == []


def test_a_nest_is_shown_level_by_level_and_lossy_methods_with_their_distance() -> None:
    nested, chain = cell(*NEST, method="cascade").row(), cell(*PAIR).row()
    lossy = {**cell(*PAIR, lossless=Losslessness("lossy")).row(), "law_distance": 0.25}
    assert [line[:3] for line in level_lines([nested], ["a"])] == [["a", "1", "0.500"], ["a", "2", "0.500"]]
    assert levels_tables([chain], ["a"]) == []
    lines = methods_table([nested, lossy, {**nested, "status": "oom"}]).lines
    assert (lines[0][2], lines[0][-1], lines[1][-1], lines[2][1:3]) == ("0.500/0.500", "", "0.250", ["oom", "–"])
    assert len(methods_table([chain]).header) == len(methods_table([lossy]).header) - 1


# --- contexts, batches, engines ---------------------------------------------------------------------------------------


def test_every_prompt_length_has_its_best_lookahead_and_gaps_where_cells_failed() -> None:
    first = RUNS["contexts"]()[0].row()
    speeds = {(1024, 1): 1.2, (1024, 4): 1.5, (4096, 1): 1.3, (4096, 4): 1.1, (8192, 1): 0.9, (8192, 4): 0.8}
    rows = [first | {"context": length, "k": k, "speedup": value} for (length, k), value in speeds.items()]
    table = context_table(rows)
    assert list(table.header[:5]) == ["context", "K 1", "K 4", "best K", "speedup"]
    assert [line[:5] for line in table.lines] == [
        ["1k", "1.200×", "1.500×", "4", "1.500×"],
        ["4k", "1.300×", "1.100×", "1", "1.300×"],
        ["8k", "0.900×", "0.800×", "0", "0.900×"],
    ]
    gaps = context_table([rows[0], rows[2] | {"status": "oom"}, rows[3] | {"status": "oom"}]).lines
    assert [line[:4] for line in gaps] == [["1k", "1.200×", "–", "1"], ["4k", "–", "–", "–"]]


def test_verdicts_name_the_prompt_length() -> None:
    found = recommend(rows_of(*RUNS["contexts"]()[:4]))
    assert [details(one)[0].split("   ")[-1].split(", T")[0] for one in found] == [
        "code, 4k tokens", "code, 1000 tokens",
    ]  # fmt: skip


def test_the_best_k_by_batch_needs_several_batches_and_lookaheads() -> None:
    rows = rows_of(*RUNS["batches"]()[:6])
    (table,) = k_by_batch_tables(by_batch(rows))
    assert [line[0] for line in table.lines] == ["1", "2", "8"]
    text = table.findings[0].partition("--speculative-config: ")[2]
    assert json.loads("{" + text + "}") == vllm_schedule(best_ks(rows))
    for some in ([row for row in rows if row["k"] == 4], [row for row in rows if row["batch"] == 2]):
        assert list(k_by_batch_tables(by_batch(some))) == []


def test_engines_that_differ_in_nothing_have_equal_counts_and_what_differs_is_named() -> None:
    native, other, failed = rows_of(*RUNS["engines"]())
    table = engines_table([native, {**native, "engine": "transformers"}, failed])
    assert table.findings == [
        "K 4: native decodes 1.000 times as fast as transformers without a draft and 1.000 times with it "
        "(ratios of totals)",
        "K 4: accepted tokens are equal: native 24 of 33 in 12 rounds, transformers 24 of 33 in 12 rounds",
    ]
    assert (table.lines[2][0], table.lines[2][5]) == ("vllm", "error")
    assert "tier differs: native eager, transformers compile" in engines_table([native, other]).findings


def test_requests_have_their_waits_below_those_of_the_baseline_and_engines_without_a_server_none() -> None:
    rates, limited, waits = served_tables(rows_of(*RUNS["servers"]()))
    new = len(sample().method.tokens)
    assert rates.lines[0] == ["0.5", "baseline", f"{new - 1}", f"{2 * new}", "2"]
    assert rates.lines[3][:4] == ["2.0", "chain K4", f"{new - 1}", f"{2 * new}"]
    assert rates.findings == ["chain K4: by requests a second, speculation pays at 0.5, 2"]
    assert waits.lines[0] == ["0.5", "baseline", *["250"] * 3, *[f"{1000 / (new - 1):.3g}"] * 3, *["500"] * 3,
                              *["1,250"] * 3]  # fmt: skip
    assert limited.title == "requests · within ttft ≤ 300 ms, e2e ≤ 1000 ms"
    assert [line[2] for line in limited.lines] == ["0.0 %", "100.0 %", "0.0 %", "0.0 %"]
    assert limited.findings[0].startswith("0.5: +100.0 percentage points with the draft")
    assert list(served_tables(rows_of(cell(sample()), cell(status="error", backend="openai")))) == []

    alone = rows_of(requests(2.0))
    said = "requests within limits: +0.0 percentage points with the draft, -56.1 – +56.1"
    assert [[*table.findings] for table in served_tables(alone)] == [[], [said], []]


@pytest.mark.parametrize(
    ("loads", "said"),
    [
        ([(1, "YES")], []),
        ([(1, "YES"), (8, "YES")], ["by requests in flight, speculation pays at 1, 8"]),
        ([(1, "YES"), (8, "UNCLEAR"), (32, "NO")], ["by requests in flight, speculation pays at 1, is unclear at 8, "
          "does not pay at 32: from 8 on it is not certain that it pays"]),
        ([(1, "NO"), (8, "YES"), (32, "NO")], ["by requests in flight, speculation pays at 8, does not pay at 1, 32: "
          "from 32 on it is not certain that it pays"]),
        ([(1, "UNCLEAR"), (8, "NO")], ["by requests in flight, speculation is unclear at 1, does not pay at 8: from 1 "
          "on it is not certain that it pays"]),
    ],
)  # fmt: skip
def test_it_is_said_at_which_loads_speculation_pays(loads: list[tuple[float, str]], said: list[str]) -> None:
    assert turning_said(loads) == said


# --- categories, beliefs ----------------------------------------------------------------------------------------------


def kinds(*names: str) -> tuple[Sample, ...]:
    return tuple(sample(f"p{n}", category=name) for n, name in enumerate(names))


def categories(*cells: Cell) -> tuple[list[Row], list[Row]]:
    return rows_of(*cells), [row for one in cells for row in one.category_rows()]


@pytest.mark.parametrize("names", [("a", "b", "c"), ("a", "a")])
def test_one_prompt_is_no_category_and_one_category_none(names: tuple[str, ...]) -> None:
    assert cell_categories(*categories(cell(*kinds(*names)))) == []


def test_a_category_has_a_line_with_its_numbers_methods_a_column_and_a_sweep_its_fastest_lookahead() -> None:
    rows, found = categories(cell(*MIXED), cell(*kinds("qa", "qa", "code"), method="block"))
    table = cell_categories(rows[:1], found)[0]
    qa = next(row for row in found if row["category"] == "qa")
    assert [line[0] for line in table.lines] == ["math", "qa"]
    assert table.lines[1][1:4] == ["2", f"{qa['speedup']:.3f}×", f"{qa['speedup_low']:.3f} – {qa['speedup_high']:.3f}"]
    speedup, tokens = method_categories(rows, ["chain", "block"], found)
    assert list(speedup.header) == ["method", "math", "qa"]
    assert (speedup.lines[0][2], speedup.lines[1][1]) == (f"{qa['speedup']:.3f}×", "–")
    assert tokens.lines[1][2] == f"{found[-1]['tokens_per_round']:.3f}"
    (swept,) = category_tables(*categories(cell(*MIXED, k=2), cell(*MIXED[::-1], k=4)))
    assert "· K " in swept.title


def test_beliefs_have_their_error_and_curve_the_fastest_cell_first() -> None:
    static, sure, slow = RUNS["schedules"]()
    errors, curve = reliability_tables([sure.row()], {sure.spec.key: sure.belief_rows()})
    twelve = ["12", "0.700", "0.667", "0.183", "0.187"]
    assert errors.lines == [["code", *twelve, cell_text(sure.row(), "belief_brier")]]
    assert curve.lines == [
        ["0.2 – 0.3", "2", "0.300", "0.000"],
        ["0.6 – 0.7", "4", "0.675", "0.500"],
        ["0.7 – 0.8", "2", "0.800", "1.000"],
        ["0.8 – 0.9", "4", "0.875", "1.000"],
    ]
    cells = [slow, static, sure]
    _, both = reliability_tables(rows_of(*cells), {one.spec.key: one.belief_rows() for one in cells})
    assert ("confidence" in both.header[1], "auto" in both.header[4]) == (True, True)
    assert both.lines[0] == ["0.2 – 0.3", "2", "0.300", "0.000", "–", "–", "–"]
    assert "belie" not in rendered(rows_of(static), "md", Shown.of([static], "", "", explain=True)).lower()


# --- notes ------------------------------------------------------------------------------------------------------------


def test_notes_say_what_a_reader_must_know_besides() -> None:
    few = rows_of(cell(*PAIR, resolved={"rejected": "3 too long"}))
    assert notes(few)[0] == "code: left out 3 too long"
    assert "code: 2 prompts: below 20" in notes(few)[-1]
    numeric = cell(*PAIR, lossless=Losslessness("numeric", 1, 2, 5, 1e-6, 2e-6))
    assert any(
        "1 of 2 outputs differ from the baseline's where two tokens were nearly tied" in note
        for note in notes(rows_of(numeric))
    )


@pytest.mark.parametrize(("goal", "said"), [(0.9, "stopped after 3 prompts"), (0.001, "had no more prompts after 3")])
def test_a_run_until_an_interval_is_narrow_says_what_it_got(goal: float, said: str) -> None:
    samples = [sample(f"p{n}", accepted) for n, accepted in enumerate([(4, 2), (4, 1), (3, 2)])]
    (note,) = [line for line in notes(rows_of(cell(*samples, until_ci=goal))) if "requested" in line]
    assert note.startswith(f"code: {said}")
    assert f"requested ± {goal:.1%}" in note
    assert not [line for line in notes(rows_of(cell(*samples))) if "requested" in line]


def test_requests_that_had_to_wait_for_a_slot_are_a_note() -> None:
    (found,) = rows_of(RUNS["servers"]()[1])
    waited = notes([found | {"requests_held": 1}])
    assert any("requests that waited because 8 were in flight, the limit: 1 of the method" in one for one in waited)
    assert any("wait for each other: the interval is over 3 turns (--limit 80 gives 5)" in one for one in waited)
    assert not any("rows were idle" in one for one in waited)
    assert not any("waited" in one or "wait for each other" in one for one in notes([found | {"arrivals": None}]))


# --- formats ----------------------------------------------------------------------------------------------------------

THREE = (cell(*PAIR), cell(PAIR[0], dataset="articles", k=2), cell(dataset="third", status="nan", error="gave NaN"))


def test_every_format_for_programs_parses_back() -> None:
    found = list(csv.DictReader(io.StringIO(printed(*THREE, style="csv"))))
    assert [(r["dataset"], r["status"]) for r in found] == [("code", "ok"), ("articles", "ok"), ("third", "nan")]
    assert float(found[0]["speedup"]) == THREE[0].row()["speedup"]
    assert found[1]["speedup_low"] == found[2]["speedup"] == found[2]["acceptance_at_1"] == ""
    lines = printed(*THREE, style="jsonl").splitlines()
    objects = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert objects[0]["c"] == THREE[0].row()["c"]
    assert objects[1]["speedup_low"] is None
    assert list(objects[0]) == list(THREE[0].row())
    whole = json.loads(printed(*THREE, style="json", about=About()), parse_constant=pytest.fail)
    assert [{"schema_version": whole["schema"], **whole["environment"], **one} for one in whole["cells"]] == objects


def test_json_says_once_of_which_run_and_machine_the_cells_are() -> None:
    machine = {"threads": 2, "fingerprint": "f"}
    cells = cell(*PAIR, resolved=machine), cell(*PAIR, k=2, resolved={**machine, "threads": 4}), THREE[2]
    about = About("20260101T000000Z_a_b_c", "2026-01-01T00:00:00+00:00", "specbench run")
    found = json.loads(printed(*cells, style="json", about=about))
    assert list(found) == ["schema", "run", "environment", "cells"]
    assert found["schema"] == SCHEMA_VERSION
    assert found["run"] == asdict(about)
    assert found["environment"] == {"device_name": "abacus", "fingerprint": "f"}, "which a cell that failed lacks"
    assert [one.get("threads") for one in found["cells"]] == [2, 4, None]
    assert not any({"schema_version", "device_name", "fingerprint"} & one.keys() for one in found["cells"])


def test_a_bar_in_a_name_does_not_split_a_column_of_markdown_and_nothing_of_ours_needs_an_escape() -> None:
    assert "| a\\|b |" in rendered(rows_of(cell(*PAIR), cell(*PAIR, dataset="a|b")), "md")
    assert "\\" not in printed(*THREE, style="md")


# --- hostile text -----------------------------------------------------------------------------------------------------
