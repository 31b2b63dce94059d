"""Many methods in one table, one line each; a few stay side by side."""

import io
from typing import Any

from rich.console import Console

from specbench.results.cells import Losslessness
from specbench.show.cell_text import cell_text
from specbench.show.cells_table import cells_table
from specbench.show.grouping import FEW, arranged, by_method
from specbench.show.methods_table import COLUMNS, columns, methods_table
from specbench.show.methods_table import method_cells as cells_of
from specbench.show.run_output import Shown, markdown, print_run
from tests.support.measured import cell, sample
from tests.support.nested_samples import nested_sample

NAMES = ("chain", "block", "tree-top", "merge", "jacobi")


def rows(**changes: Any) -> list[dict[str, Any]]:
    return [cell(sample("p1"), sample("p2"), method=name, **changes).row() for name in NAMES]


def printed(found: list[dict[str, Any]], explain: bool = False) -> str:
    file = io.StringIO()
    print_run(found, "table", Console(file=file, width=150), Shown(explain=explain))
    return file.getvalue()


def test_many_methods_are_the_lines_of_one_table() -> None:
    out = printed(rows())
    first = [words[0] for words in map(str.split, out.splitlines()) if words]
    assert [word for word in first if word in NAMES][: len(NAMES)] == list(NAMES)
    assert out.count("95 % interval  ") == 1
    assert markdown(rows()).count("| method |") == 1


def test_a_few_methods_stay_side_by_side_where_they_are_explained() -> None:
    assert by_method(rows()[:FEW]) == []
    assert "method chain" in printed(rows()[:FEW], explain=True)


def test_methods_stand_by_their_speedup_the_lossy_marked_and_those_without_numbers_last() -> None:
    speeds = zip(rows(), (1.1, 1.4, None, 0.9, 1.2), strict=True)
    found = [row | {"speedup": speed, "status": "ok" if speed else "oom"} for row, speed in speeds]
    found[1]["lossless"] = "lossy"
    lines = cells_table(found).lines
    assert [line[0] for line in lines] == ["block (lossy)", "jacobi", "chain", "merge", "tree-top"]
    assert lines[-1][1] == "oom"
    assert cells_table(found).bold_lines == {1}, "the fastest lossless one"


def test_every_row_is_shown_once_and_data_sets_and_temperatures_stay_apart() -> None:
    swept = [cell(sample("p1"), method="chain", k=k, dataset="swept").row() for k in (1, 2)]
    found = [*rows(), *rows(temperature=1.0), *swept, *rows(dataset="few")[:2]]
    tables = arranged(found)
    sweeps, methods, alone = tables.sweeps, tables.methods, tables.alone
    assert [len(group) for group in methods] == [5, 5]
    assert [len(group) for group in sweeps] == [2]
    assert len(alone) == 2
    assert sorted(id(row) for group in (*sweeps, *methods, alone) for row in group) == sorted(map(id, found))


def numbers(row: dict[str, Any]) -> list[str]:
    return cells_of(row, [name for _, name in columns([row])])


def test_a_nest_is_shown_level_by_level_and_a_failed_cell_with_how_it_ended() -> None:
    nested = cell(nested_sample("p1"), nested_sample("p2"), method="cascade").row()
    assert numbers(nested)[1] == "0.500/0.500"
    assert "/" in numbers(nested)[2]
    failed = {**nested, "status": "oom"}
    assert numbers(failed)[0] == "oom"
    assert "oom" in methods_table([nested, failed]).markdown()
    assert "level inside" in methods_table([nested]).markdown()


def test_a_lossy_method_says_by_how_much_and_the_others_nothing() -> None:
    lossy = {**cell(sample("p1"), lossless=Losslessness("lossy")).row(), "law_distance": 0.25}
    (exact, *_) = rows()
    assert numbers(lossy)[-1] == "0.250"
    assert cells_of(exact, [name for _, name in columns([lossy, exact])])[-1] == ""
    assert len(columns([exact])) == len(COLUMNS) == len(columns([lossy])) - 1


def test_no_number_is_cut_however_narrow_the_console_is() -> None:
    file = io.StringIO()
    print_run(rows(), "table", Console(file=file, width=40))
    (chain,) = [found for found in file.getvalue().splitlines() if found.strip().startswith("chain ")][:1]
    assert cell_text(rows()[0], "speedup_interval") in chain
