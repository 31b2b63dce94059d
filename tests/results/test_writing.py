"""Tables as files: replaced at once or not at all, and no cell of them runs."""

import math
import os
from pathlib import Path

import pytest

from specbench.results.named_runs import csv_cell, json_rows, write_csv


def test_a_csv_is_replaced_at_once_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "results.csv"
    write_csv(path, [{"a": 1}])
    states = []

    def replace(source: Path, target: Path) -> None:
        states.append((Path(source).read_text(), Path(target).read_text()))
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        write_csv(path, [{"a": 2}])
    assert states == [("a\n2\n", "a\n1\n")]
    assert path.read_text() == "a\n1\n"


def test_columns_are_those_of_all_rows_in_the_order_of_their_appearance(tmp_path: Path) -> None:
    write_csv(tmp_path / "t.csv", [{"a": 1}, {"a": 2, "b": 3}])
    assert (tmp_path / "t.csv").read_text() == "a,b\n1,\n2,3\n"


def test_text_that_a_spreadsheet_would_run_is_quoted_a_megabyte_cut_and_numbers_stay_numbers() -> None:
    formulas = ("=1+1", "+1", "-1", "@SUM(A1)", '=HYPERLINK("http://x")')
    assert [csv_cell(formula) for formula in formulas] == [f"'{formula}" for formula in formulas]
    assert [csv_cell(v) for v in (-1, -0.5, True, math.nan, None, "")] == [-1, -0.5, True, "", "", ""]
    assert len(csv_cell("x" * 1_000_000)) == 10_000


def test_json_has_no_nan() -> None:
    assert json_rows([{"a": math.nan, "b": math.inf, "c": 1.5, "d": "nan"}]) == [
        {"a": None, "b": None, "c": 1.5, "d": "nan"}
    ]
