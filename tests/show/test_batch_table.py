"""The batches of a run in its report: one table and two figures, whose numbers are those of the rows."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from specbench.results.cells import Cell
from specbench.show.batch_table import COLUMNS
from specbench.show.report import plots_batch
from specbench.show.report.page import write_report
from specbench.show.report.plots import Picture
from tests.show.test_plots import heights
from tests.show.test_report_page import page_of
from tests.support.simulated_sweeps import sweep, write_run

BATCHES = (1, 2, 8)


def cells(*batches: int) -> list[Cell]:
    return [cell for batch in batches for cell in sweep("code", prompts=6, ks=(1, 4), batch=batch)]


ROWS = [cell.row() for cell in cells(*BATCHES)]


def upright(picture: Picture) -> list[float]:
    """Where vertical lines stand that are no marker."""
    (axes, *_) = picture.figure.axes
    found = [list(map(float, line.get_xdata())) for line in axes.get_lines() if line.get_linestyle() == ":"]
    return [x[0] for x in found if len(x) == 2 and x[0] == x[1]]


def test_the_figures_show_both_arms_and_the_speedup_over_the_batch() -> None:
    throughput, speedup = plots_batch.figures(ROWS)
    for k in (1, 4):
        rows = [row for row in ROWS if row["k"] == k]
        assert heights(throughput, f"K = {k}") == [row["tokens_per_second"] for row in rows]
        assert heights(speedup, f"K = {k}") == [row["speedup"] for row in rows]
    assert heights(throughput, "baseline") == [row["baseline_tokens_per_second"] for row in ROWS if row["k"] == 1]


def test_break_even_stands_where_the_largest_batch_says() -> None:
    even = [(2, 9.0), (8, 5.0), (1, math.inf)]
    rows = [row | {"break_even_batch": at} for batch, at in even for row in ROWS if row["batch"] == batch]
    assert upright(plots_batch.figures(rows)[1]) == [5.0, 5.0]
    assert not upright(plots_batch.figures([row | {"break_even_batch": math.nan} for row in rows])[1])


def test_one_batch_is_no_series() -> None:
    assert plots_batch.figures([row for row in ROWS if row["batch"] == 2]) == []
    assert plots_batch.figures([row | {"speedup": math.nan} for row in ROWS]) == []


@pytest.mark.slow
def test_the_page_has_the_series_once_with_every_cell(tmp_path: Path) -> None:
    run = write_run(tmp_path, cells(*BATCHES))
    page = page_of(run, png=True)
    assert page.text.count("<h3>Throughput by batch</h3>") == 1
    (table,) = [part for part in page.text.split("<table>") if f">{COLUMNS[-1][0].replace(chr(10), ' ')}</th>" in part]
    body = table.split("</table>")[0]
    assert body.count("<tr>") == 1 + len(ROWS)
    assert body.count('data-column="break_even_batch"') + body.count("<td>∞</td>") + body.count("<td>–</td>") >= 3
    assert all(body.count(f'data-column="{name}"') == len(ROWS) for name in ("tokens_per_second", "speedup_low"))
    names = {path.name for path in (run / "plots").iterdir()}
    assert {"batches-1-throughput-against-batch.png", "batches-1-speedup-against-batch.png"} <= names


@pytest.mark.slow
@pytest.mark.parametrize("status", ["error", "oom"])
def test_a_batch_without_numbers_says_how_it_ended(tmp_path: Path, status: str) -> None:
    failed = replace(cells(64)[0], samples=(), status=status, error="too much")
    run = write_run(tmp_path, [*cells(1, 2), failed])
    page = write_report([run], png=False).read_text(encoding="utf-8")
    assert f"<td>64</td><td>1</td><td>{status}</td>" in page


def test_a_run_of_one_batch_has_no_such_part(tmp_path: Path) -> None:
    assert "Throughput by batch" not in page_of(write_run(tmp_path, cells(1))).text
