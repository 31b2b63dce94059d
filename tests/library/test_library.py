"""`import specbench`: commands as functions, and their results as objects."""

import csv
import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas
import pytest

import specbench
from specbench.errors import CellsFailedError, UsageError
from specbench.judge.verdict import Recommendation
from specbench.results.cells import Cell
from specbench.results.documents import About
from specbench.results.named_runs import column_names
from specbench.results.reading import read_run
from specbench.spec import RunSpec
from tests.support.frontdoor import Command
from tests.support.tinypair import prompts
from tests.test_imports import BASELINE, HEAVY

SHORT: dict[str, Any] = {"limit": 2, "max_new_tokens": 8, "warmup": 0, "k": 3}


@pytest.fixture
def asked(pair: Any, tmp_path: Path) -> dict[str, Any]:
    """Arguments of a short run on the tiny pair."""
    dataset = prompts(tmp_path / "words.jsonl", 4, 6, 5)
    where = {"dataset": dataset, "output_dir": tmp_path / "runs", "tier": "eager"}
    return {"target": str(pair.target), "draft": str(pair.draft), **SHORT, **where}


def loaded_by(code: str) -> set[str]:
    """The heavy libraries that are loaded after some code."""
    tail = "; import sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code + tail], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split()) & HEAVY


def test_importing_and_predicting_load_nothing_heavy() -> None:
    assert loaded_by("import specbench; dir(specbench); specbench.predict(0.7, 0.1)") == set()


def test_reading_a_run_loads_no_torch() -> None:
    assert "torch" not in loaded_by(f"import specbench; specbench.load_run({BASELINE!r}).verdicts")


def test_a_name_that_is_not_offered_is_no_attribute() -> None:
    assert not hasattr(specbench, "nothing")
    assert set(specbench.__all__) <= set(dir(specbench))
    assert all(getattr(specbench, name) is not None for name in specbench.__all__)


def test_a_run_has_the_rows_that_its_folder_has(asked: dict[str, Any]) -> None:
    result = specbench.run(**asked)
    with (result.path / "results.csv").open(newline="") as file:
        written = list(csv.DictReader(file))
    assert [row["cell"] for row in result.rows()] == [row["cell"] for row in written]
    assert [repr(row["alpha"]) for row in result.rows()] == [row["alpha"] for row in written]
    assert result.rows()[0]["k"] == 3
    assert len(result.samples()) == 2
    result.raise_for_status()


def test_lists_are_axes(asked: dict[str, Any]) -> None:
    result = specbench.run(**{**asked, "k": "1-2", "method": ["chain", "block"]})
    assert [(row["method"], row["k"]) for row in result.rows()] == [
        ("chain", 1), ("chain", 2), ("block", 1), ("block", 2)
    ]  # fmt: skip


def test_a_loaded_run_says_what_the_run_said(asked: dict[str, Any]) -> None:
    result = specbench.run(**asked)
    again = specbench.load_run(result.path)
    assert again.rows() == result.rows()
    assert str(again) == str(result)
    assert again.verdicts == result.verdicts
    assert again.to_frame().equals(result.to_frame())


def test_the_verdict_is_that_of_the_command(run: Command, command: Command) -> None:
    folder = run().folder
    (said,) = json.loads(command("verdict", folder, "--format", "json").out)
    found = specbench.load_run(folder).verdict
    assert isinstance(found, Recommendation)
    assert (found.answer, found.speedup, list(found.reasons)) == (said["answer"], said["speedup"], said["reasons"])


def test_progress_is_told_between_the_turns(asked: dict[str, Any]) -> None:
    heard: list[specbench.Progress] = []
    result = specbench.run(**asked, on_progress=heard.append)
    prompts = [one for one in heard if one.event == "prompt"]
    assert [(one.done, one.total) for one in prompts] == [(1, 2), (2, 2)]
    (cell,) = [one.cell for one in heard if one.event == "cell"]
    assert cell == result.rows()[0]
    assert any(one.event == "loading" for one in heard)


def test_what_a_listener_raises_ends_the_run_and_loses_nothing(asked: dict[str, Any]) -> None:
    def stop(progress: specbench.Progress) -> None:
        if progress.event == "prompt":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        specbench.run(**asked, on_progress=stop)
    (folder,) = asked["output_dir"].iterdir()
    assert f"specbench.resume({str(folder)!r})" in "".join(stopped.value.__notes__)
    assert len(read_run(folder).cells[0].samples) == 1
    assert len(specbench.resume(folder).samples()) == 2


def test_wrong_settings_are_one_line(asked: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="nonsense"):
        specbench.run(**asked, nonsense=1)
    with pytest.raises(UsageError, match="--k"):
        specbench.run(**{**asked, "k": "four"})


def test_a_run_with_several_questions_has_several_verdicts(asked: dict[str, Any]) -> None:
    result = specbench.run(**{**asked, "temperature": [0.0, 1.0]})
    assert [found.temperature for found in result.verdicts] == [0.0, 1.0]
    assert result.verdict == result.verdicts
    assert specbench.Result(result.path, []).verdict == []


# --- frames -----------------------------------------------------------------------------------------------------------


def frame_has_types(frame: pandas.DataFrame) -> bool:
    """Whether numbers are columns of numbers: none of them is an object."""
    return {str(dtype) for dtype in frame.dtypes} <= {"str", "Int64", "float64", "Float64", "boolean"}


@pytest.mark.parametrize("full", [False, True])
def test_a_frame_has_the_numbers_of_the_rows_in_columns_of_numbers(asked: dict[str, Any], full: bool) -> None:
    for result in (specbench.run(**asked), specbench.load_run(BASELINE)):
        frame, rows = result.to_frame(full=full), result.rows()
        assert frame_has_types(frame)
        for name in set(frame) & set(rows[0]):
            column = [None if pandas.isna(value) else value for value in frame[name]]
            assert column == [None if row[name] != row[name] else row[name] for row in rows], name


@pytest.mark.parametrize("folder", [BASELINE, ""])
def test_a_frame_has_few_columns_which_are_those_of_the_summary(asked: dict[str, Any], folder: str) -> None:
    result = specbench.load_run(folder) if folder else specbench.run(**asked)
    few, full = result.to_frame(), result.to_frame(full=True)
    assert 20 <= len(few.columns) <= 26
    assert not few.isna().all().any()
    assert list(full) == ["run", "started", "command", *column_names(result.rows())]
    assert set(few) <= set(full)
    if not folder:
        assert pandas.read_csv(result.path / "summary.csv").columns.tolist() == list(few)


def test_frames_of_two_runs_go_together(asked: dict[str, Any]) -> None:
    runs = specbench.run(**asked), specbench.run(**{**asked, "k": [1, 2]}), specbench.load_run(BASELINE)
    failed = specbench.Result(Path("failed"), [Cell(RunSpec(), {}, status="oom")], About("failed"))
    for full in (False, True):
        frame = pandas.concat([run.to_frame(full=full) for run in (*runs, failed)], ignore_index=True)
        assert frame_has_types(frame)
        names = [run.path.resolve().name for run in (*runs, failed)]
        assert frame.groupby("run", sort=False).size().to_dict() == dict(zip(names, (1, 2, 16, 1), strict=True))
    began = pandas.to_datetime(frame["started"])
    assert str(began[3]) == "2026-11-22 03:09:37+00:00"
    assert frame["command"][3] == "specbench sweep configs/grids/ci.yaml --quiet"


def test_a_frame_takes_what_no_table_of_arrow_can_hold(tmp_path: Path) -> None:
    spec = RunSpec(dataset="\udcff", seed=1 << 70)
    cells = [Cell(spec, {}, status="error", error="\ud800"), Cell(RunSpec(seed=1), {}, status="skipped")]
    frame = specbench.Result(tmp_path, cells).to_frame(full=True)
    assert frame["dataset"].tolist() == ["?", RunSpec().dataset]
    assert frame["seed"].tolist() == [2.0**70, 1.0]
    assert frame_has_types(frame)
    few = specbench.Result(tmp_path, cells).to_frame()
    assert "speedup" not in few
    assert few["status"].tolist() == ["error", "skipped"]


def test_what_users_meet_is_one_line(tmp_path: Path) -> None:
    result = specbench.load_run(BASELINE)
    assert repr(result) == f"<Result demo ← demo-draft, 16 cells, {result.path}>"
    assert repr(result.cells[0]) == "<Cell demo ← demo-draft, chain K 1, code: ok, 3 samples>"
    assert repr(result.verdicts[1]).startswith("<Recommendation UNCLEAR, demo ← demo-draft on code: K = 1, 0.96")
    broken = specbench.Result(tmp_path, [Cell(RunSpec(dataset="a\nb", draft=None), {}, status="oom")])
    shown = [broken, *broken.cells, *broken.verdicts, specbench.Progress("cell", "K", 1, 2, broken.rows()[0])]
    assert [one for one in map(repr, shown) if len(one) > 200 or not one.isprintable()] == []


# --- the end ----------------------------------------------------------------------------------------------------------


def test_a_cell_without_numbers_is_no_exception_until_it_is_asked_for(tmp_path: Path) -> None:
    result = specbench.Result(tmp_path, [Cell(RunSpec(), {}, status="oom", error="too large")])
    with pytest.raises(CellsFailedError, match="too large"):
        result.raise_for_status()


@pytest.mark.usefixtures("undrawn")
def test_a_report_is_written_where_it_is_wanted(tmp_path: Path) -> None:
    file = specbench.load_run(BASELINE).report(tmp_path / "page.html")
    assert file == tmp_path / "page.html"
    assert "<html" in file.read_text()


def test_a_notebook_shows_every_cell_and_escapes_names(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>"
    cell = Cell(RunSpec(dataset=hostile, target=hostile), {}, status="error", error=hostile)
    shown = specbench.Result(tmp_path, [cell])._repr_html_()
    assert hostile not in shown
    assert "&lt;script&gt;" in shown
    shown = specbench.load_run(BASELINE)._repr_html_()
    assert shown.count("<tr>") == 1 + len(specbench.load_run(BASELINE).rows())
    HTMLParser().feed(shown)


def test_predictions_are_those_of_the_command(command: Command) -> None:
    done = command("predict", "--alpha", "0.7", "--c", "0.1", "--k", "1-3", "--format", "json")
    said = [line["speedup_predicted"] for line in json.loads(done.out)]
    assert [one.speedup_predicted for one in specbench.predict(0.7, 0.1, range(1, 4))] == said
    assert specbench.predict(0.7, 0.1, 2)[0].k == 2
    with pytest.raises(UsageError):
        specbench.predict(1.7, 0.1)
