"""Many methods in one table, one line each; a few stay side by side."""

import io
from typing import Any

import pytest
from rich.console import Console

from specbench.bench.lossless import Losslessness
from specbench.bench.methods_table import FEW, by_method, line, methods_markdown
from specbench.bench.report import arranged, cell_text, markdown, show
from tests.measured import cell, sample
from tests.nests import nested_sample

NAMES = ("chain", "block", "tree-top", "merge", "jacobi")


def rows(**changes: Any) -> list[dict[str, Any]]:
    return [cell(sample("p1"), sample("p2"), method=name, **changes).row() for name in NAMES]


def printed(found: list[dict[str, Any]]) -> str:
    file = io.StringIO()
    show(found, "table", Console(file=file, width=150))
    return file.getvalue()


def test_many_methods_are_the_lines_of_one_table() -> None:
    out = printed(rows())
    first = [words[0] for words in map(str.split, out.splitlines()) if words]
    assert [word for word in first if word in NAMES][: len(NAMES)] == list(NAMES)
    assert out.count("calibrated") == 1
    assert markdown(rows()).count("| method |") == 1


def test_a_few_methods_stay_side_by_side() -> None:
    assert by_method(rows()[:FEW]) == []
    assert "method chain" in printed(rows()[:FEW])


def test_every_row_is_shown_once_and_data_sets_and_temperatures_stay_apart() -> None:
    swept = [cell(sample("p1"), method="chain", k=k, dataset="swept").row() for k in (1, 2)]
    found = [*rows(), *rows(temperature=1.0), *swept, *rows(dataset="few")[:2]]
    sweeps, methods, alone = arranged(found)
    assert [len(group) for group in methods] == [5, 5]
    assert [len(group) for group in sweeps] == [2]
    assert len(alone) == 2
    assert sorted(id(row) for group in (*sweeps, *methods, alone) for row in group) == sorted(map(id, found))


def test_a_nest_is_shown_level_by_level_and_a_failed_cell_with_how_it_ended() -> None:
    nested = cell(nested_sample("p1"), nested_sample("p2"), method="cascade").row()
    shown = line(nested, cell_text)
    assert shown[1] == "0.500 / 0.500"
    assert " / " in shown[2]
    failed = {**nested, "status": "oom"}
    assert line(failed, cell_text)[0] == "oom"
    assert "oom" in methods_markdown([nested, failed], cell_text)


def test_a_lossy_method_says_by_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    lossy = {**cell(sample("p1"), lossless=Losslessness("lossy")).row(), "law_distance": 0.25}
    assert line(lossy, cell_text)[-1] == "lossy by 0.250"
