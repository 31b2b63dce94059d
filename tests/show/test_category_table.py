"""Tables by category: the numbers of the rows, no line for one prompt, methods across categories."""

import io
from typing import Any

import pytest
from rich.console import Console

from specbench.results.cells import Cell
from specbench.results.samples import Sample
from specbench.show.category_table import cell_tables, method_tables
from specbench.show.run_output import Shown, category_tables, print_run
from tests.support.measured import cell, sample

Row = dict[str, Any]


def kinds(*names: str) -> tuple[Sample, ...]:
    """A prompt of each of these categories; those named twice have two."""
    return tuple(sample(f"p{n}", ((4, 2), (0, 2), (1, 3))[n % 3], category=name) for n, name in enumerate(names))


MIXED = kinds("qa", "math", "qa", "math", "math", "writing")


def measured(*cells: Cell) -> tuple[list[Row], list[Row]]:
    return [one.row() for one in cells], [row for one in cells for row in one.category_rows()]


def test_a_category_has_a_line_with_its_numbers() -> None:
    rows, categories = measured(cell(*MIXED))
    (table,) = cell_tables(rows, categories)
    assert [line[0] for line in table.lines] == ["math", "qa"]
    qa = next(row for row in categories if row["category"] == "qa")
    assert table.lines[1][1:3] == ["2", f"{qa['speedup']:.3f}×"]
    assert table.lines[1][3] == f"{qa['speedup_low']:.3f} – {qa['speedup_high']:.3f}"
    assert table.lines[1][5:7] == [f"{qa['alpha']:.3f}", f"{qa['alpha_mean']:.3f}"]
    assert table.title == "by category · code · chain · K 4 · 1 with one prompt not shown"


@pytest.mark.parametrize("names", [("a", "b", "c"), ("a", "a")])
def test_one_prompt_is_no_category_and_one_category_none(names: tuple[str, ...]) -> None:
    assert cell_tables(*measured(cell(*kinds(*names)))) == []


def test_several_cells_are_told_apart_and_explained_once() -> None:
    first, second = cell_tables(*measured(cell(*MIXED), cell(*MIXED, dataset="articles")))
    assert (first.title[:20], second.title[:24]) == ("by category · code ·", "by category · articles ·")
    assert (first.legend, bool(second.legend)) == ("", True)


def test_methods_stand_across_categories() -> None:
    rows, categories = measured(cell(*MIXED), cell(*kinds("qa", "qa", "code"), method="block"))
    speedup, tokens = method_tables(rows, ["chain", "block"], categories)
    assert list(speedup.header) == ["method", "math", "qa"]
    assert [line[0] for line in speedup.lines] == ["chain", "block"]
    assert speedup.lines[1][1] == "–"
    assert speedup.lines[0][2] == f"{next(r['speedup'] for r in categories if r['category'] == 'qa'):.3f}×"
    assert tokens.lines[1][2] == f"{categories[-1]['tokens_per_round']:.3f}"


def test_a_sweep_shows_its_fastest_lookahead_and_a_list_of_methods_all() -> None:
    (table,) = category_tables(*measured(cell(*MIXED, k=2), cell(*MIXED[::-1], k=4)))
    assert "· K " in table.title
    methods = [cell(*MIXED, method=name) for name in ("chain", "block", "token-match", "lookahead", "jacobi")]
    found = list(category_tables(*measured(*methods)))
    assert [table.title for table in found] == ["speedup by category", "tokens per round by category"]
    assert len(found[0].lines) == 5


def printed(style: str) -> str:
    file = io.StringIO()
    rows, categories = measured(cell(*MIXED))
    print_run(rows, style, Console(file=file, width=160), Shown(categories=categories, explain=True))
    return file.getvalue()


def test_it_is_printed_for_readers_and_not_among_the_rows_for_programs() -> None:
    assert printed("table").index("by category") > printed("table").index("from the formula")
    assert "**by category" in printed("md")
    assert len(printed("csv").splitlines()) == 2
    assert len(printed("jsonl").splitlines()) == 1
