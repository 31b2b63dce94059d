"""What schedules believed against what was accepted, as readers see it: tables behind --explain, and a figure."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from specbench.results.cells import Cell
from specbench.show.cell_text import cell_text
from specbench.show.reliability_table import LEGEND, TITLE, reliability_tables
from specbench.show.report.plots_reliability import Curve, reliability
from specbench.show.report.questions import curves
from specbench.show.run_output import Shown, print_run, rendered
from tests.show.test_report_page import page_of
from tests.support.beliefs import ROUNDS, believing
from tests.support.measured import cell, sample
from tests.support.simulated_sweeps import write_run

CONFIDENT = {"schedule": "confidence", "confidence": 0.5}
STATIC = cell(sample("p1"), sample("p2"), k=3)
SURE = cell(believing("p1"), believing("p2"), **CONFIDENT)
SLOW = cell(believing("p1", ROUNDS[:1]), believing("p2", ROUNDS[:1]), schedule="auto")
TWELVE = ["12", "0.700", "0.667", "0.183", "0.187"]


def printed(style: str, *cells: Cell, explain: bool = True) -> str:
    rows, shown = [one.row() for one in cells], Shown.of(cells, "", "", explain=explain)
    if style == "md":
        return rendered(rows, style, shown)
    file = io.StringIO()
    print_run(rows, style, Console(file=file, width=160), shown)
    return file.getvalue()


def test_a_line_says_how_far_beliefs_were_off_and_the_curve_where() -> None:
    errors, curve = reliability_tables([SURE.row()], {SURE.spec.key: SURE.belief_rows()})
    assert errors.lines == [["code", *TWELVE, cell_text(SURE.row(), "belief_brier")]]
    assert errors.legend == LEGEND
    assert list(curve.header) == ["belief", "tests", "believed", "accepted"]
    assert curve.lines == [
        ["0.2 – 0.3", "2", "0.300", "0.000"],
        ["0.6 – 0.7", "4", "0.675", "0.500"],
        ["0.7 – 0.8", "2", "0.800", "1.000"],
        ["0.8 – 0.9", "4", "0.875", "1.000"],
    ]


def test_cells_stand_side_by_side_the_fastest_first_and_dashes_where_one_has_no_test() -> None:
    cells = [SLOW, STATIC, SURE]
    errors, curve = reliability_tables([one.row() for one in cells], {one.spec.key: one.belief_rows() for one in cells})
    assert [line[1] for line in errors.lines] == ["6", "12"]
    assert all("schedule" in line[0] for line in errors.lines)
    faster = max((SLOW, SURE), key=lambda one: one.row()["speedup"])
    assert faster is SURE
    assert "confidence" in curve.header[1]
    assert "auto" in curve.header[4]
    assert curve.lines[0] == ["0.2 – 0.3", "2", "0.300", "0.000", "–", "–", "–"]
    assert curve.lines[-1][4:] == ["2", "0.900", "1.000"]


@pytest.mark.parametrize("style", ["table", "md"])
def test_it_stands_behind_explain_and_nothing_does_where_nothing_was_believed(style: str) -> None:
    assert printed(style, SURE).count(TITLE) == 2
    assert TITLE not in printed(style, SURE, explain=False)
    assert "belie" not in printed(style, STATIC).lower()


def test_the_figure_has_the_curve_its_error_and_the_number_of_tests() -> None:
    rows = [one.row() for one in (STATIC, SURE)]
    (found,) = curves([STATIC, SURE], rows)
    assert (found.cell, found.error) == (SURE.spec.key, rows[1]["belief_ece"])
    picture = reliability([found])
    assert picture is not None
    upper, lower = picture.figure.axes
    exact, curve = upper.get_lines()[:2]
    assert list(exact.get_xdata()) == list(exact.get_ydata()) == [0, 1]
    assert list(curve.get_xdata()) == [one["believed"] for one in found.rows]
    assert list(curve.get_ydata()) == [one["accepted"] for one in found.rows]
    assert list(lower.get_lines()[0].get_ydata()) == [2, 4, 2, 4]
    assert curve.get_label().endswith(": ECE 0.183 (0.187)")
    assert [text.partition(", ")[2] for text in picture.tips.values()][1] == (
        "0.6–0.7: 0.675 believed, 0.500 accepted, 4 tokens"
    )
    assert set(picture.owners.values()) == {SURE.spec.key}


def test_many_cells_are_as_many_as_can_be_told_apart() -> None:
    picture = reliability([Curve(f"cell {n}", str(n), 0.1, 0.1, SURE.belief_rows()) for n in range(9)])
    assert picture is not None
    assert len(set(picture.owners.values())) == 6
    assert reliability([]) is None


def test_the_report_shows_it_with_its_numbers_below(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path, [STATIC, SURE]))
    assert page.text.count('aria-label="What was believed, and what was accepted') == 1
    assert "0.6–0.7: 0.675 believed, 0.500 accepted, 4 tokens</li>" in page.text
    static = page_of(write_run(tmp_path, [STATIC], "static"))
    assert "What was believed" not in static.text


def test_every_row_has_the_columns_and_json_writes_none_for_nothing() -> None:
    sure, static = json.loads(rendered([SURE.row(), STATIC.row()], "json"))
    assert sure["belief_tests"] == 12
    assert (static["belief_tests"], static["belief_ece"]) == (None, None)
