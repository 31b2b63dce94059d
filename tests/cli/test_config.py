"""Short commands: configurations, presets, methods, the list of runs, reports."""

import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specbench.cli.help import beginning, completed, grid_names, run_names
from specbench.cli.options import OWN, setting, settings_of, with_lists
from specbench.decoding import method_files
from specbench.decoding.method_files import methods, parameters
from specbench.errors import UsageError
from specbench.measure import grid
from specbench.models.checkpoints.names import aliases
from specbench.presets import preset, presets
from specbench.results.cells import Cell
from specbench.results.named_runs import found_run
from specbench.show.engines import published_table
from specbench.show.run_output import FORMATS
from specbench.spec import CHOOSING, RunSpec
from tests.support.frontdoor import SHORT, Command
from tests.support.measured import cell, sample
from tests.support.simulated_sweeps import write_run
from tests.support.tinypair import prompts


def test_every_setting_says_where_it_comes_from(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("limit: 7\nk: 9\nformat: md\n")
    given = ["--preset", "chen2023-xsum", "--config", file, "--temperature", "0.5", "--batch", "1,4"]
    done = command("config", "show", *given, "--format", "json").ok()
    found = {row["setting"]: (row["value"], row["from"]) for row in json.loads(done.out)}
    expected = {"temperature": ("0.5", "command line"), "k": ("9", str(file)), "limit": ("7", str(file))}
    expected |= {"top_p": ("0.8", "preset chen2023-xsum"), "warmup": ("2", "default")}
    expected |= {"batch": ("1, 4", "command line")}
    assert {name: found[name] for name in expected} == expected
    assert found["tier"][1] == "default"
    assert "format" not in found
    assert command("config").ok() == command("config", "show")


def test_a_shell_completes_what_specbench_knows() -> None:
    def offered(name: str, typed: str, words: tuple[str, ...] = ()) -> list[str]:
        return list(completed(name, words)["autocompletion"](typed))

    assert offered("method", "cha") == ["chain"]
    assert offered("method", "") == [*methods(), CHOOSING]
    assert offered("target", "demo") == [name for name in aliases() if name.startswith("demo")]
    assert offered("dataset", "js") == ["jsonl:"]
    assert offered("preset", "chen2023-h") == ["chen2023-humaneval"]
    assert offered("format", "json") == ["json", "jsonl"]
    assert offered("tier", "c", setting("tier").words) == ["compile"]
    assert completed("limit") == {}
    assert OWN["preset"].parameter.annotation.__metadata__[0].autocompletion("spec-") == [
        "spec-bench-vicuna",
        "spec-bench",
    ]
    assert "methods" in grid_names()


def test_runs_are_completed_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "results" / "20260101T000000Z_a_b_aaaa1111").mkdir(parents=True)
    (tmp_path / "results" / "20260101T000000Z_a_b_aaaa1111" / "run.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    complete = beginning(run_names)
    assert (complete("a"), complete("l")) == (["aaaa1111"], ["latest"])
    assert complete("2026") == ["20260101T000000Z_a_b_aaaa1111"]
    assert completed("resume")["autocompletion"]("aaaa") == ["aaaa1111"]
    with pytest.raises(UsageError, match=r"no run is called latst \(did you mean latest\?\): specbench list"):
        found_run(Path("latst"))
    assert found_run(Path("nothing-like-it")) == Path("nothing-like-it")


# --- presets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", presets())
def test_a_preset_is_cells_that_can_be_measured_and_numbers_that_a_row_has(name: str) -> None:
    found = preset(name)
    cells = grid.cells(with_lists(settings_of({"preset": name})))
    assert cells
    columns = Cell(RunSpec(), {}).row()
    for published in found.published:
        told = {key: published[key] for key in found.stated if key in published}
        assert any(all(getattr(cell, key) == value for key, value in told.items()) for cell in cells)
        assert set(published) - set(told) <= set(columns)
    assert all((found.summary, found.paper, found.reproduces, found.differs))


def test_published_numbers_stand_beside_the_measured_ones_of_their_cell() -> None:
    row = {**RunSpec(dataset="xsum", temperature=1.0).model_dump(mode="json"), "speedup": 1.5, "c": 0.1}
    table = published_table(preset("chen2023-xsum"), [row])
    assert [tuple(line) for line in table.lines] == [
        ("c", "xsum, temperature 1.0", "0.128", "0.100", "-22%"),
        ("speedup", "xsum, temperature 1.0", "1.92", "1.500×", "-22%"),
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


# --- methods ----------------------------------------------------------------------------------------------------------


def test_the_list_has_every_method_with_its_paper(command: Command) -> None:
    rows = json.loads(command("methods", "--format", "json").out)
    assert [row["name"] for row in rows] == list(methods())
    assert all(row["paper"] and row["summary"] for row in rows)
    lossy = {"typical", "lenience", "relaxed", "relaxed-everywhere"}
    assert {row["name"] for row in rows if row["lossless"] == "NO"} == lossy
    known = {row["name"]: (row["needs"], row["parameters"]) for row in rows}
    assert (known["chain"], known["baseline"]) == (("target, draft", "k, schedule"), ("target", ""))


@pytest.mark.parametrize("style", ["table", "md", "csv", "jsonl"])
def test_every_format_names_every_method(command: Command, style: str) -> None:
    found = command("methods", "--format", style)
    assert (found.code, found.err) == (0, "")
    assert all(name in found.out for name in methods())
    if style == "csv":
        assert len(list(csv.DictReader(io.StringIO(found.out)))) == len(methods())


def test_the_list_is_short_and_a_method_that_is_named_is_told_whole(command: Command) -> None:
    shown = command("methods").out
    assert "lenience (lossy)" in shown
    assert "arXiv" not in shown
    chosen = command("methods", "lenience", "chain")
    assert "2211.17192" in chosen.out
    assert "lenience 0.5" in chosen.out
    assert "sequoia" not in chosen.out
    wrong = command("methods", "chian")
    assert (wrong.code, wrong.out) == (2, "")
    assert "did you mean chain?" in wrong.err


def test_numbers_in_a_file_are_parameters_and_those_of_a_part_inside_not_the_k_of_the_command_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert parameters("cascade") == ["k", "Cascade k [[k, 2], [0, 2]]"]
    assert parameters("cascade-horizontal") == ["k", "Maxgram k 2"]
    assert method_files.needs("cascade") == {"target", "draft"}
    tree = {"Speculate": {"drafter": {"Tree": {"model": "draft", "widths": [3, 2], "n": 2}}, "model": "target",
                          "verifier": "Rejection"}}  # fmt: skip
    monkeypatch.setattr(method_files, "read_method", lambda name: {"method": tree})
    assert parameters("tree") == ["widths [3, 2]", "n 2"]
    assert method_files.needs("tree") == {"target", "draft"}


# --- list -------------------------------------------------------------------------------------------------------------


def test_every_run_is_a_line_with_its_name_and_answer(run: Command, command: Command) -> None:
    made = run()
    (line,) = json.loads(command("list", "--format", "json").out)
    assert (line["cells"], line["prompts"], line["methods"], line["K"]) == ("1 of 1", "2", "chain", "3")
    assert line["answer"] in ("PROVISIONAL", "UNCLEAR")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d", line["began"])
    assert made.folder.name.endswith(line["name"])
    for name in (line["name"], "latest"):
        assert command("verdict", name).code == 0
        assert command("compare", name, name, "--checks", "deterministic").code == 0
    assert line["name"] in command("list").out
    assert all(command("list", "--format", style).code == 0 for style in FORMATS)


def test_what_is_no_run_is_passed_over_and_what_cannot_be_read_is_listed(command: Command, tmp_path: Path) -> None:
    results = tmp_path / "results"
    for name, content in (("20260101T000000Z_a_b_c", "{}"), ("20260102T000000Z_a_b_d", '{"specs": [3, {}]}')):
        (results / name).mkdir(parents=True)
        (results / name / "run.json").write_text(content)
    (results / "benchmarks").mkdir()
    found = json.loads(command("list", "--format", "json").out)
    assert [(line["name"], line["answer"]) for line in found] == [("c", "none yet"), ("d", "none yet")]


# --- report -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("undrawn")
def test_the_command_says_where_the_file_is(command: Command, tmp_path: Path) -> None:
    run = write_run(tmp_path, [cell(sample())])
    outcome = command("report", run, "--no-png")
    assert (outcome.code, outcome.out.strip(), outcome.err) == (0, str(run / "report.html"), "")
    assert not (run / "plots").exists()
    assert command("report", run, "--output", tmp_path / "a" / "b.html").code == 0
    assert (tmp_path / "a" / "b.html").is_file()
    assert list((tmp_path / "a" / "plots").iterdir())


@pytest.mark.parametrize(("link", "code"), [("report.html", 0), ("report.html.tmp", 0), ("plots", 2)])
@pytest.mark.usefixtures("undrawn")
def test_a_link_in_the_folder_leads_nothing_outside(command: Command, tmp_path: Path, link: str, code: int) -> None:
    run, outside = write_run(tmp_path / "runs", [cell(sample())]), tmp_path / "outside"
    outside.mkdir() if link == "plots" else outside.write_text("precious")
    (run / link).symlink_to(outside)
    assert command("report", run).code == code
    assert not list(outside.iterdir()) if link == "plots" else outside.read_text() == "precious"


def unusable(tmp_path: Path) -> Iterator[tuple[Any, ...]]:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    run = write_run(tmp_path, [cell(sample())])
    yield from ((tmp_path / "none",), (tmp_path / "empty",), (tmp_path / "file",), (run, tmp_path / "none"), ())
    yield from ((run, "--output", tmp_path / "empty"), (run, "--output", tmp_path / "file" / "x.html"), (run, "--nope"))


@pytest.mark.usefixtures("undrawn")
def test_what_cannot_be_read_or_written_ends_in_one_line(command: Command, tmp_path: Path) -> None:
    for arguments in unusable(tmp_path):
        outcome = command("report", *arguments)
        assert (outcome.code, outcome.out) == (2, ""), arguments
        assert outcome.line
