"""A sweep over lengths of prompts: the best lookahead of every length, as a table, on the page and as figures."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specbench.judge.verdict import recommend
from specbench.results.cells import Cell
from specbench.show.context_table import context_table
from specbench.show.grouping import by_context
from specbench.show.report import plots_context
from specbench.show.run_output import Shown, rendered
from specbench.show.verdict_figures import details
from tests.show.test_plots import heights
from tests.show.test_report_page import page_of
from tests.support.simulated_sweeps import sweep, write_run

LENGTHS = (4096, 1000)


def cells(*lengths: int) -> list[Cell]:
    return [cell for length in lengths for cell in sweep("code", prompts=6, ks=(1, 4), context=length)]


ROWS = [cell.row() for cell in cells(*LENGTHS)]


def with_speedups(*found: tuple[int, int, float]) -> list[dict[str, Any]]:
    """Rows of a length, a lookahead and a speedup each."""
    return [ROWS[0] | {"context": length, "k": k, "speedup": value} for length, k, value in found]


def test_every_length_is_a_line_with_its_best_lookahead() -> None:
    rows = with_speedups((1024, 1, 1.2), (1024, 4, 1.5), (4096, 1, 1.3), (4096, 4, 1.1), (8192, 1, 0.9), (8192, 4, 0.8))
    table = context_table(rows)
    assert table.header[:5] == ["context", "K 1", "K 4", "best K", "speedup"]
    assert [line[:5] for line in table.lines] == [
        ["1k", "1.200×", "1.500×", "4", "1.500×"],
        ["4k", "1.300×", "1.100×", "1", "1.300×"],
        ["8k", "0.900×", "0.800×", "0", "0.900×"],
    ]


def test_a_cell_without_numbers_leaves_a_gap_and_a_length_without_any_a_line_of_them() -> None:
    failed = [row | {"status": "oom"} for row in with_speedups((4096, 1, 1.3), (4096, 4, 1.1))]
    lines = context_table([*with_speedups((1024, 1, 1.2)), *failed]).lines
    assert [line[:4] for line in lines] == [["1k", "1.200×", "–", "1"], ["4k", "–", "–", "–"]]


def test_lengths_of_one_series_are_together_in_their_order_and_others_are_not() -> None:
    (group,) = by_context(ROWS)
    assert [(row["context"], row["k"]) for row in group] == [(1000, 1), (1000, 4), (4096, 1), (4096, 4)]
    assert by_context([row for row in ROWS if row["context"] == 1000]) == []
    assert by_context([ROWS[0], ROWS[2] | {"temperature": 1.0}]) == []


def test_run_tables_and_verdicts_name_the_length() -> None:
    text = rendered(ROWS, "md", Shown(explain=True))
    assert text.count("speedup by context") == 1
    assert "code, 4k tokens · " in text
    assert "code, 1000 tokens · " in text
    assert [details(one)[0].split("   ")[-1].split(", T")[0] for one in recommend(ROWS)] == [
        "code, 4k tokens", "code, 1000 tokens",
    ]  # fmt: skip


def test_the_figures_show_the_speedup_of_every_cell() -> None:
    tiles, lines = plots_context.figures(ROWS)
    assert {text.get_text() for text in tiles.figure.axes[0].texts} == {f"{row['speedup']:.2f}" for row in ROWS}
    for k in (1, 4):
        assert heights(lines, f"K = {k}") == [row["speedup"] for row in by_context(ROWS)[0] if row["k"] == k]
    assert len(plots_context.figures([row for row in ROWS if row["k"] == 1])) == 1
    assert plots_context.figures([row for row in ROWS if row["context"] == 1000]) == []


@pytest.mark.slow
def test_the_page_has_the_series_once(tmp_path: Path) -> None:
    failed = replace(cells(8192)[0], samples=(), status="oom", error="too much")
    page = page_of(write_run(tmp_path, [*cells(*LENGTHS), failed]))
    assert page.text.count("<h3>Speedup by context</h3>") == 1
    assert "<tr><td>8k</td><td>–</td><td>–</td><td>–</td>" in page.text
