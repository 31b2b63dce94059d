"""The report on many methods and on two runs: every number is that of its cell, sorted, marked and named."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from specbench.presets import preset
from specbench.results.cells import Cell
from specbench.show.report.differences import Difference, Side, difference
from specbench.show.report.questions import ranked
from tests.show.scenes import RUNS
from tests.show.test_report_page import Page, check_harmless, page_of
from tests.support.many_methods import GB, LOSSY, METHODS, methods
from tests.support.measured import cell, sample
from tests.support.simulated_sweeps import sweep, write_run

CELLS = methods(7, prompts=3)
ROWS = [one.row() for one in CELLS]
FASTEST = sorted(ROWS, key=lambda row: -row["speedup"])


def said(row: dict[str, Any]) -> str:
    return row["method"] + " (lossy)" * (row["method"] in LOSSY)


# --- tables -----------------------------------------------------------------------------------------------------------


def test_many_cells_are_lines_by_speedup_lossy_ones_are_marked_and_one_method_keeps_the_order_of_k() -> None:
    found, by_k = ranked(ROWS), ranked([one.row() for one in sweep("code", prompts=2, ks=range(1, 7))])
    assert found is not None
    assert by_k is not None
    assert [line.row["method"] for line in found.lines] == [row["method"] for row in FASTEST]
    assert [line.names for line in found.lines] == [[said(row)] for row in FASTEST]
    assert {line.unit for line in found.lines if line.lossy} == {name for name in LOSSY if name in METHODS[:7]}
    assert ranked(ROWS[:4]) is None
    assert [line.unit for line in by_k.lines] == [f"K {k}" for k in range(1, 7)], "it hides by K"


def test_a_mark_stands_where_its_numbers_say() -> None:
    found = ranked([*ROWS, {**ROWS[0], "cell": "failed", "status": "oom", "speedup": None, "method": "last"}])
    assert found is not None
    ends = [dict(part[2:].split(":") for part in line.mark.split(";")) for line in found.lines[:-1]]
    places = [float(one["at"].rstrip("%")) for one in ends]
    assert places == sorted(places, reverse=True)
    assert all(0 <= float(one[end].rstrip("%")) <= 100 for one in ends for end in ("low", "at", "high", "one"))
    assert found.lines[-1].mark == ""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("many"), CELLS)


@pytest.fixture(scope="module")
def page(run: Path) -> Page:
    return page_of(run)


def test_every_number_of_the_lines_is_that_of_the_csv(run: Path, page: Page) -> None:
    with (run / "results.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["cell"]: row for row in csv.DictReader(file)}
    table = Page(page.text[page.text.index('<table class="ranked">') :].split("</table>")[0])
    assert len(table.numbers) > 12 * len(CELLS)
    for number in table.numbers:
        assert number["value"] == rows[number["data-cell"]][number["data-column"]], number
    bytes_shown = {n["shown"] for n in table.numbers if n["data-column"] == "peak_memory_host"}
    assert bytes_shown == {f"{row['peak_memory_host'] / GB:.2f}" for row in ROWS}
    owners = [found["data-of"] for tag, found in table.tags if tag == "tr" and "data-of" in found]
    assert owners == [row["cell"] for row in FASTEST]
    check_harmless(page)


def test_tables_figures_and_lists_say_whose_each_part_is(page: Page) -> None:
    keys = {row["cell"] for row in ROWS}
    owned = [(tag, found["data-of"]) for tag, found in page.tags if "data-of" in found]
    for kind in ("tr", "td", "th", "g", "li"):
        assert keys <= {owner for tag, owner in owned if tag == kind}, kind


# --- series over a setting --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("undrawn")
def test_the_page_has_every_series_once_with_its_cells_and_how_they_ended(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path, RUNS["batches"]()), png=True)
    assert page.text.count("<h3>Throughput by batch</h3>") == 1
    assert "<td>64</td><td>1</td><td>oom</td>" in page.text
    table = page.text[page.text.index("<h3>Throughput") :].split("</table>")[0]
    assert table.count("<tr>") == 1 + 7
    assert all(table.count(f'data-column="{name}"') == 6 for name in ("tokens_per_second", "speedup_low"))
    assert (tmp_path / "run" / "plots" / "batches-1-throughput-against-batch.png").is_file()
    contexts = page_of(write_run(tmp_path, RUNS["contexts"](), "contexts"))
    assert contexts.text.count("<h3>Speedup by context</h3>") == 1
    assert "<tr><td>8k</td><td>–</td><td>–</td><td>–</td>" in contexts.text
    assert "Throughput by batch" not in contexts.text


@pytest.mark.usefixtures("undrawn")
def test_the_page_has_what_schedules_believed_with_its_numbers(tmp_path: Path) -> None:
    static, sure, _ = RUNS["schedules"]()
    page = page_of(write_run(tmp_path, [static, sure]))
    assert page.text.count('aria-label="Predicted and observed acceptance') == 1
    assert "0.6–0.7: 0.675 predicted, 0.500 accepted, 4 tokens</li>" in page.text


# --- two runs ---------------------------------------------------------------------------------------------------------


def side(name: str, cells: Sequence[Cell]) -> Side:
    return Side(name, {"versions": f"of {name}"}, cells, [one.row() for one in cells])


def line_of(found: Difference, cell_part: str, number: str) -> list[str]:
    return next([*line] for line in found.lines if cell_part in line[0] and line[1] == number)


def test_two_runs_stand_beside_each_other_with_every_change_and_its_test() -> None:
    old, new = (side(name, methods(3, 6, seed=seed)) for seed, name in enumerate(("old", "new")))
    found = difference(old, new)
    before, after = (next(r["speedup"] for r in s.rows if r["method"] == "block") for s in (old, new))
    line = line_of(found, " block ", "speedup")
    assert line[2:5] == [f"{before:.3f}×", f"{after:.3f}×", f"{100 * (after / before - 1):+.1f} %"]
    assert line[5].split(" (")[0] in {"ok", "better", "REGRESSION", "inconclusive"}
    assert {test[1] for test in found.findings} >= {"speedup", "alpha", "c", "v", "tokens_per_second"}
    assert (found.untested, list(found.missing)) == ("", [])
    assert list(found.apart) == [("versions", "of old", "of new")]
    assert found.picture is not None
    assert len(found.picture.tips) == 2 * 3


def test_runs_beside_themselves_that_asked_something_else_or_lack_cells() -> None:
    same = difference(side("same", CELLS), side("same", CELLS))
    assert list(same.names) == ["same (first)", "same (second)"]
    assert {line[4] for line in same.lines} == {"+0.0 %"}, "it has changed in nothing"
    found = difference(*(side(name, sweep("code", 3, (1, 3), draft=name)) for name in ("first", "second")))
    assert found.untested
    assert not found.findings
    assert ("draft", "first", "second") in found.apart
    assert line_of(found, "K 3", "alpha")[4] == "+0.0 %"
    lacking = difference(side("old", sweep("code", 3, (1, 3))), side("new", sweep("code", 3, (3,))))
    assert [text.split(": only in ")[1] for text in lacking.missing] == ["BASE"]


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_the_page_on_two_runs_begins_with_what_changed(tmp_path: Path) -> None:
    runs = [write_run(tmp_path, methods(2, prompts=4, seed=seed), name) for seed, name in enumerate(("old", "new"))]
    page = page_of(*runs)
    check_harmless(page)
    heads = ["<h2>In short", "<h2>old and new", "<h2>old", "<h2>new"]
    assert [page.text.index(head) for head in heads] == sorted(page.text.index(head) for head in heads)
    assert "Speedup in both runs" in page.text


# --- presets ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("undrawn")
def test_the_numbers_of_a_paper_stand_beside_the_measured_ones(tmp_path: Path) -> None:
    cells = [cell(sample("p1"), sample("p2"), dataset="humaneval", temperature=0.8, top_p=0.95)]
    page = page_of(write_run(tmp_path, cells, preset="chen2023-humaneval"))
    section = page.visible.split("Published and measured")[1]
    assert preset("chen2023-humaneval").paper in section
    assert "2.46" in section
    assert f"{cells[0].row()['speedup']:.3f}×" in section
    assert "Published and measured" not in page_of(write_run(tmp_path / "b", cells, preset="nobody's")).visible
