"""The folder of a run: what lies in it, when it is written, and that nothing in it runs or gets lost."""

import csv
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from specbench.errors import UsageError
from specbench.results import journal
from specbench.results.cells import Cell, Losslessness
from specbench.results.documents import SUMMARY
from specbench.results.folder import RunFolder, slug
from specbench.results.reading import read_run
from specbench.spec import SCHEMA_VERSION
from tests.support.measured import cell, sample

SPECS = [cell(k=k).spec.model_dump(mode="json") for k in (2, 3, 4, 5, 9)]
BEGAN = {"command": "specbench run", "started": "20260101T000000Z"}
DESCRIPTION = {"schema_version": SCHEMA_VERSION, "specs": SPECS, **BEGAN}


TABLES = ("results.csv", "summary.csv", "samples.csv", "rounds.parquet")
NO_PROC = pytest.mark.skipif(not Path("/proc/version").exists(), reason="the system has no /proc")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    made = RunFolder.create(tmp_path, "run", DESCRIPTION)
    yield made
    made.close()


def lines(folder: RunFolder) -> list[dict[str, Any]]:
    return journal.read_bodies(folder.path / "journal.jsonl")


def table(folder: RunFolder, name: str = "results.csv") -> list[dict[str, str]]:
    with (folder.path / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def files(folder: RunFolder) -> set[str]:
    return {path.name for path in folder.path.iterdir()} - {".lock"}


# --- what is written, and when ----------------------------------------------------------------------------------------


def test_run_json_is_there_first_and_a_finished_cell_leaves_all_files_and_no_temporary_ones(folder: RunFolder) -> None:
    assert files(folder) == {"run.json", "journal.jsonl"}
    assert json.loads((folder.path / "run.json").read_text()) == DESCRIPTION
    assert lines(folder) == []
    folder.end(cell(sample("p1"), sample("p2")))
    assert files(folder) == {*TABLES, "run.json", "journal.jsonl"}


def test_every_turn_is_a_line_that_is_on_disk_before_anything_else_happens(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(len(lines(folder))))
    for number in range(3):
        folder.turn({cell().spec: [sample(f"p{number}")]})
    assert synced == [1, 2, 3]


def test_the_baseline_of_a_turn_stands_in_the_journal_once(folder: RunFolder) -> None:
    one = sample("p1", (4, 0))
    folder.turn({cell(k=k).spec: [one] for k in (1, 2, 3)})
    (line,) = lines(folder)
    assert line["turn"]["baseline"]["trace"]["tokens"] == list(one.baseline.tokens)
    counts = [arm["trace"]["rounds"][1] for arm in line["turn"]["arms"].values()]
    assert counts == [[4, 0, 1, 0, 1, [0.5], 0, 0.0, []]] * 3


def test_the_tables_grow_with_every_cell(folder: RunFolder) -> None:
    folder.end(cell(sample("p1"), dataset="code"))
    assert [row["dataset"] for row in table(folder)] == ["code"]
    folder.end(cell(sample("p1"), sample("p2"), dataset="articles"))
    assert [row["dataset"] for row in table(folder)] == ["code", "articles"]
    assert [(row["dataset"], row["prompt"]) for row in table(folder, "samples.csv")] == [
        ("code", "p1"), ("articles", "p1"), ("articles", "p2"),
    ]  # fmt: skip


def test_the_rounds_are_a_table_of_their_own(folder: RunFolder) -> None:
    done = cell(sample("p1", (4, 2)), sample("p2", (0,)))
    folder.end(done)
    rounds = pd.read_parquet(folder.path / "rounds.parquet")
    assert list(rounds["cell"].unique()) == [done.spec.key]
    assert list(zip(rounds["prompt"], rounds["round"], rounds["accepted"], strict=True)) == [
        ("p1", 0, 4), ("p1", 1, 2), ("p2", 0, 0),
    ]  # fmt: skip
    assert [len(overlap) for overlap in rounds["overlap"]] == [4, 3, 1]


def test_a_run_in_which_nothing_was_measured_has_a_row_and_no_rounds(folder: RunFolder) -> None:
    folder.end(cell(status="nan", error="a model gave NaN"))
    assert [(row["status"], row["speedup"]) for row in table(folder)] == [("nan", "")]
    assert "rounds.parquet" not in files(folder)


def test_closing_renders_what_an_interrupt_kept_from_the_tables(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(folder, "render", interrupted)
        with pytest.raises(KeyboardInterrupt):
            folder.end(cell(sample("p1")))
    folder.close()
    assert [row["prompts"] for row in table(folder)] == ["1"]


# --- reading it again -------------------------------------------------------------------------------------------------


def filled(folder: RunFolder) -> list[Cell]:
    """A run with cells that share turns, one that failed, one that is not finished, and one that has not begun to."""
    done, cut = (
        cell(sample("p1"), sample("p2", (3, 1), turn=1), k=k, resolved={"rejected": "1 empty"}) for k in (2, 3)
    )
    done = replace(done, lossless=Losslessness("numeric", 1, 2, 3, 0.1, 0.2))
    bad = cell(sample("p1"), k=4, status="error", error="unexpected TypeError", detail="Traceback …")
    fresh = cell(k=5)
    folder.begin([done, cut, bad, fresh], 2)
    folder.turn({c.spec: c.samples[:1] for c in (done, cut, bad)})
    folder.end(bad)
    folder.turn({c.spec: c.samples[1:2] for c in (done, cut)})
    folder.end(done)
    off = {"error": "the run was cut off; continue with --resume"}
    return [done, replace(cut, status="partial", **off), bad, replace(fresh, status="skipped", **off)]


def test_a_run_is_read_back_as_it_was_measured_and_continued_with_what_the_journal_holds(folder: RunFolder) -> None:
    cells = filled(folder)
    run = read_run(folder.path)
    assert run.description == DESCRIPTION
    assert [replace(c, samples=tuple(c.samples)) for c in run.cells] == cells
    before = (folder.path / "journal.jsonl").read_bytes()
    folder.close()
    again = RunFolder.resume(folder.path)
    assert {c.spec: (c.status, len(c.samples)) for c in again.past.values()} == {
        c.spec: (c.status, len(c.samples)) for c in cells
    }
    again.begin(cells, 2)
    assert (folder.path / "journal.jsonl").read_bytes() == before, "cells that had begun do not begin again"
    again.end(replace(cells[1], status="ok", error=""))
    again.close()
    assert [(row["k"], row["status"]) for row in table(folder)] == [
        ("2", "ok"), ("3", "ok"), ("4", "error"), ("5", "skipped"),
    ]  # fmt: skip


def test_the_summary_has_few_columns_and_every_cell_whatever_ended_the_run(folder: RunFolder) -> None:
    filled(folder)
    folder.close()
    again = RunFolder.resume(folder.path)
    for _ in ("as the interrupt left it", "gone on with"):
        few, rows = table(folder, "summary.csv"), table(folder)
        assert [(row["k"], row["status"]) for row in few] == [(row["k"], row["status"]) for row in rows]
        assert set(few[0]) <= set(SUMMARY)
        assert all(any(row[name] for row in few) for name in few[0])
        about = {"run": "run", "started": "2026-01-01T00:00:00+00:00", "command": "specbench run"}
        assert all(row | about == row for row in few)
        again.render()
    again.close()


@pytest.mark.parametrize("name", ["results.csv.tmp", *TABLES])
def test_links_in_the_folder_of_a_stranger_lead_nothing_outside(folder: RunFolder, name: str) -> None:
    filled(folder)
    folder.close()
    victim = folder.path.parent / "victim"
    victim.write_text("precious")
    left = folder.path / f".{name.removesuffix('.tmp')}.{'0' * 16}.tmp"
    left.write_text("a part")
    (folder.path / name).unlink(missing_ok=True)
    (folder.path / name).symlink_to("../victim")
    again = RunFolder.resume(folder.path)
    again.render()
    again.close()
    assert victim.read_text() == "precious"
    assert not left.exists()


@pytest.mark.parametrize(("content", "said"), [("a token", "not the journal"), (None, "is a link")])
def test_a_journal_of_a_stranger_leads_nothing_outside(folder: RunFolder, content: str | None, said: str) -> None:
    folder.close()
    file, victim = folder.path / "journal.jsonl", folder.path.parent / "victim"
    folder.path.mkdir(exist_ok=True)
    (folder.path / "run.json").write_text(json.dumps(DESCRIPTION))
    victim.write_text("a token")
    file.symlink_to("../victim") if content is None else file.write_text(content)
    with pytest.raises(UsageError, match=said) as refused:
        RunFolder.resume(folder.path)
    assert (refused.value.exit_code, victim.read_text(), file.read_text()) == (2, "a token", "a token")


def test_a_cell_that_was_skipped_before_its_pair_was_loaded_begins_anew(folder: RunFolder) -> None:
    known, unknown = cell(sample("p1"), status="partial"), Cell(cell(k=9).spec, {}, status="skipped")
    for one in (known, unknown):
        folder.end(one)
    folder.close()
    again = RunFolder.resume(folder.path)
    assert set(again.past) == {known.spec}
    again.begin([cell(k=9)], 1)
    again.close()
    assert read_run(folder.path).cells[1].resolved, "what its names stand for is known now"


def test_a_folder_of_someone_else_is_never_removed(folder: RunFolder) -> None:
    folder.begin([], 0)
    (folder.path / "notes.txt").write_text("mine")
    (folder.path / "journal.jsonl").write_bytes(b"")
    folder._made_here = False
    folder.close()
    assert (folder.path / "notes.txt").exists()


def test_only_one_process_writes_into_a_folder(folder: RunFolder) -> None:
    with pytest.raises(UsageError, match="is being written by another process"):
        RunFolder(folder.path)
    folder.begin([cell()], 1)
    folder.close()
    RunFolder.resume(folder.path).close()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "is not the folder of a run"),
        ("not json", "is not a description of a run"),
        ("[]", "is not a description of a run"),
        ("{}", "is not a description of a run"),
        (
            '{"schema_version": 1}',
            f"schema_version 1, this specbench reads and writes {SCHEMA_VERSION}: measure it again",
        ),
        ('{"schema_version": "\\u001b[31m"}', "schema_version"),
    ],
)
def test_what_is_no_run_of_this_schema_is_refused_in_one_line(tmp_path: Path, content: str | None, said: str) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    for read in (read_run, RunFolder.resume):
        with pytest.raises(UsageError) as refusal:
            read(tmp_path)
        assert said in str(refusal.value)
        assert str(refusal.value).isprintable()
    assert not (tmp_path / "journal.jsonl").exists()


# --- the folder -------------------------------------------------------------------------------------------------------


def test_two_runs_of_one_second_get_two_folders_and_one_in_which_no_cell_began_is_removed(tmp_path: Path) -> None:
    made = [RunFolder.create(tmp_path / "a" / "b", "run", DESCRIPTION) for _ in range(3)]
    assert [folder.path.name for folder in made] == ["run", "run-2", "run-3"]
    for folder in made:
        folder.close()
    assert list((tmp_path / "a" / "b").iterdir()) == []


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("file", "choose another --output-dir"),
        ("file/deeper", "choose another --output-dir"),
        pytest.param("/proc", "cannot write results to /proc", marks=NO_PROC),  # even root cannot write there
    ],
)
def test_a_folder_that_cannot_be_made_is_told_in_one_line(tmp_path: Path, place: str, said: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=f"^[^\n]*{said}[^\n]*$"):
        RunFolder.create(tmp_path / place, "run", DESCRIPTION)


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("llama-7b", "llama-7b"),
        ("owner/Model_1.5", "Model-1.5"),
        ("/a/b/", "b"),
        ("../..", "model"),
        ("é" * 90, "model"),
    ],
)
def test_a_models_name_cannot_leave_the_results_folder(name: str, folder: str) -> None:
    assert slug(name) == folder
    assert len(slug(name * 40)) <= 40


@pytest.mark.parametrize(("device", "before"), [("another", "of a machine that is gone"), ("abacus", "p1")])
def test_a_cell_that_begins_anew_loses_what_was_measured_before_and_one_that_goes_on_keeps_it(
    folder: RunFolder, device: str, before: str
) -> None:
    done = cell(sample("p1"), sample("p2"), k=2)
    done = replace(done, resolved={**done.resolved, "device_name": device})
    anew = before != "p1"
    folder.begin([replace(cell(k=2), samples=())], 2)
    folder.turn({done.spec: [sample(before)]})
    folder.begin([replace(done, samples=() if anew else done.samples[:1])], 2)
    for one in done.samples[not anew :]:
        folder.turn({done.spec: [one]})
    folder.end(done)
    (found,) = read_run(folder.path).cells
    assert [one.prompt for one in found.samples] == ["p1", "p2"]
    assert found.resolved["device_name"] == device
