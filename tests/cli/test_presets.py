"""Presets: settings of published experiments, and their numbers beside the measured ones."""

import json
from pathlib import Path
from typing import Any

import pytest

from specbench.cli.options import settings_of, with_lists
from specbench.measure import grid
from specbench.presets import preset, presets
from specbench.results.cells import Cell
from specbench.show.engines import published_table
from specbench.spec import RunSpec
from tests.support.frontdoor import SHORT, Command
from tests.support.tinypair import prompts


@pytest.mark.parametrize("name", presets())
def test_a_preset_is_cells_that_can_be_measured_and_numbers_that_a_row_has(name: str) -> None:
    found = preset(name)
    cells = grid.cells(with_lists(settings_of({"preset": name})))
    assert cells
    columns = Cell(RunSpec(), {}).row()
    for published in found.published:
        told = {key: published[key] for key in found.told if key in published}
        assert any(all(getattr(cell, key) == value for key, value in told.items()) for cell in cells)
        assert set(published) - set(told) <= set(columns)
    assert all((found.summary, found.paper, found.reproduces, found.differs))


def test_published_numbers_stand_beside_the_measured_ones_of_their_cell() -> None:
    row = {**RunSpec(dataset="xsum", temperature=1.0).model_dump(mode="json"), "speedup": 1.5, "c": 0.1}
    table = published_table(preset("chen2023-xsum"), [row])
    assert [tuple(line) for line in table.lines] == [
        ("c", "xsum, temperature 1.0", "0.128", "0.100"),
        ("speedup", "xsum, temperature 1.0", "1.92", "1.500×"),
    ]
    assert published_table(preset("chen2023-xsum"), [{**row, "temperature": 0.5}]).lines == []


def test_options_win_over_a_preset_and_rows_for_programs_have_no_published_numbers(
    command: Command, pair: Any, tmp_path: Path
) -> None:
    data = prompts(tmp_path / "words.jsonl", 4, 6, 5)
    words = ("run", *pair.options, "--preset", "chen2023-xsum", "--dataset", data, *SHORT)
    done = command(*words).ok()
    assert {(row["k"], row["top_p"], row["temperature"]) for row in done.table()} == {
        ("3", "0.8", "0.0"), ("3", "0.8", "1.0")
    }  # fmt: skip
    assert "preset chen2023-xsum" in done.out
    assert "2.01" in done.out
    assert json.loads((done.folder / "run.json").read_text())["preset"] == "chen2023-xsum"
    assert len(json.loads(command(*words, "--format", "json").out)["cells"]) == 2
