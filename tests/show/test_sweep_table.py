"""The table of a sweep: one line per lookahead, the best ones by measurement and by both predictions, acceptance."""

import io
import math
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from specbench.results.cells import Cell
from specbench.show.cell_text import cell_text, lookahead
from specbench.show.grouping import series
from specbench.show.run_output import Shown, explanation, remarks, rendered
from specbench.show.sweep_table import best, conclusions
from specbench.show.why_table import OF_SOME, STAGES, why_table
from tests.support.measured import baseline_trace, cell, sample

ACCEPTED = {1: (1, 1, 0, 1), 2: (2, 2, 1, 2), 4: (4, 2, 0, 2)}


def sweep(**changes: Any) -> list[Cell]:
    return [cell(sample("p1", a), sample("p2", a), k=k, **changes) for k, a in ACCEPTED.items()]


def printed(*cells: Cell, style: str = "table") -> str:
    rows = [c.row() for c in cells]
    if style != "table":
        return rendered(rows, style, Shown(explain=True))
    console = Console(file=io.StringIO(), width=110)
    console.print(explanation(rows))
    return console.file.getvalue()  # type: ignore[attr-defined]


def measured(**speedups: float) -> list[dict[str, Any]]:
    """Rows with K from the names k1, k2 … and nothing else that matters."""
    return [{"k": int(name[1:]), "status": "ok", "speedup": value} for name, value in speedups.items()]


def test_cells_that_differ_in_their_lookahead_alone_are_a_series() -> None:
    rows = [c.row() for c in (*sweep(), *sweep(dataset="articles"), cell(sample(), temperature=1.0))]
    assert [len(group) for group in series(rows)] == [3, 3, 1]


def test_every_lookahead_is_a_line_with_its_numbers() -> None:
    text = printed(*sweep())
    for one in sweep():
        row = one.row()
        line = next(line for line in text.splitlines() if line.lstrip().startswith(f"{row['k']} "))
        cells = re.split(r"\s{2,}", line.strip())
        columns = (
            "speedup",
            "speedup_interval",
            "speedup_predicted",
            "speedup_calibrated",
            "tokens_per_round",
            "alpha",
        )
        assert cells[1:7] == [cell_text(row, column) for column in columns]


def test_no_line_of_a_table_is_folded_or_cut_at_110_columns() -> None:
    wide = sweep(schedule="confidence")
    lines = printed(*wide).splitlines()
    assert sum(line.lstrip().startswith("confidence 0.4 ≤ ") for line in lines) == 9, "sweep, acceptance and terms"
    assert "…" not in "".join(lines)


def test_acceptance_by_position_stands_below() -> None:
    text = printed(*sweep())
    table = text[text.index("acceptance by position") :].splitlines()
    four = next(line for line in table if line.lstrip().startswith("4 "))
    row = sweep()[2].row()
    assert four.split()[1:] == [cell_text(row, f"acceptance_at_{i}") for i in range(1, 5)]


def test_the_best_is_named_with_all_that_are_within_one_percent() -> None:
    found = best(measured(k1=1.2, k2=1.5, k3=1.49, k4=1.4), "speedup")
    assert found is not None
    assert (found.name, found.value, found.near) == ("2", 1.5, ("2", "3"))


def test_where_nothing_pays_no_draft_is_best() -> None:
    found = best(measured(k1=0.9, k2=0.995), "speedup")
    assert found is not None
    assert (found.name, found.value, found.near) == ("0", 1.0, ("2", "0"))


@pytest.mark.parametrize("nothing", [None, math.nan])
def test_without_numbers_nothing_is_best(nothing: float | None) -> None:
    assert best([{"k": 1, "status": "oom", "speedup": nothing}], "speedup") is None
    assert best([{"k": 1, "status": "ok", "speedup": nothing}], "speedup") is None
    assert conclusions([{"k": 1, "status": "oom"}]) == []


def test_a_failed_lookahead_is_never_the_best_and_stays_in_the_table() -> None:
    broken = cell(sample("p1", (8, 8)), k=8, status="mismatch", error="greedy output differs")
    text = printed(*sweep(), broken)
    assert "mismatch" in next(line for line in text.splitlines() if line.lstrip().startswith("8 "))
    assert "code, chain, K 8: mismatch: greedy output differs" in remarks([broken.row()], [], explain=False)
    assert all("8" not in line.split(":", 1)[1].split(" (")[0] for line in conclusions([c.row() for c in sweep()]))


def test_an_adaptive_lookahead_is_named_with_its_ceiling() -> None:
    assert lookahead(cell(schedule="auto", k=12).row()) == "auto ≤ 12"
    assert lookahead(cell(k=3).row()) == "3"


def test_two_thresholds_are_two_lookaheads() -> None:
    both = {"k": 4, "schedule": "confidence", "status": "ok"}
    found = best([both | {"confidence": c, "speedup": s} for c, s in ((0.9, 1.5), (0.05, 1.1))], "speedup")
    assert found is not None
    assert (found.name, found.value) == ("confidence 0.9 ≤ 4", 1.5)


def test_the_terms_between_prediction_and_measurement_stand_below_with_their_signs() -> None:
    text = printed(*sweep())
    terms = text[text.index("from the formula to the measurement") :].splitlines()
    line = next(line for line in terms if line.lstrip().startswith("4 "))
    row = sweep()[2].row()
    numbers = [float(part.replace("−", "-")) for part in line.split()[1:]]
    shown = [column for _, column, _ in STAGES if column not in OF_SOME]
    assert numbers == [pytest.approx(row[column], abs=0.0005) for column in shown]
    assert numbers[0] + sum(numbers[i] for i in (1, 3, 4, 5, 6, 8)) == pytest.approx(numbers[-1], abs=0.004)


def test_cells_without_phases_have_no_terms() -> None:
    dark = sample("p1", baseline=replace(baseline_trace(range(8)), spans={}))
    assert why_table([cell(dark).row(), cell(status="oom").row()], ["a", "b"]) is None


def test_markdown_has_a_line_for_every_lookahead_and_the_conclusions() -> None:
    rows, text = [one.row() for one in sweep()], printed(*sweep(), style="md")
    grid = [line for line in rendered(rows, "md").splitlines() if line.startswith("|")]
    assert [line.split("|")[1].strip() for line in grid] == ["K", "---:", "1", "2", "4"]
    assert len({line.count("|") for line in grid}) == 1
    assert all(f"- {line}" in text for line in conclusions(rows))


def test_many_cells_stand_a_few_at_a_time_beside_each_other() -> None:
    text = printed(*(cell(sample("p1"), sample("p2"), dataset=f"d{n}") for n in range(6)))
    heads = [line for line in text.splitlines() if line.startswith("┃")]
    assert [line.count("┃") - 3 for line in heads] == [4, 2]
