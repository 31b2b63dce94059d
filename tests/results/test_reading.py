"""Runs that somebody edited, or that a kill left half written: commands read the journal and say so, or refuse it."""

import csv
import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specbench.metrics import LevelCounts, RoundCounts, Trace
from specbench.results import journal
from specbench.results.cells import Cell
from specbench.results.journal import begin_line, check_trace, end_line, turn_line
from specbench.results.named_runs import column_names
from tests.support.frontdoor import Command, Outcome
from tests.support.measured import baseline_trace, method_trace, one_round
from tests.support.simulated_sweeps import description, sweep, write_run

Change = Callable[[Path], None]
COMMANDS = ("verdict", "compare", "predict", "report", "--resume")
JUDGES = ("verdict", "compare", "predict")
READERS = (*JUDGES, "report")


@pytest.fixture(scope="module")
def cells() -> list[Cell]:
    return sweep("code", prompts=4, ks=(1, 2, 3))


@pytest.fixture(scope="module")
def clean(cells: list[Cell], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run, which no test changes."""
    return write_run(tmp_path_factory.mktemp("clean"), cells)


@pytest.fixture
def run(clean: Path, tmp_path: Path) -> Path:
    return shutil.copytree(clean, tmp_path / "run")


@pytest.fixture
def read(command: Command, clean: Path, run: Path, undrawn: None) -> Callable[[str], Outcome]:
    """One of the commands that read a run, on the copy."""
    options: dict[str, tuple[Any, ...]] = {
        "verdict": ("verdict", run),
        "compare": ("compare", "--checks", "deterministic", clean, run),
        "predict": ("predict", "--from-run", run, "--format", "csv"),
        "report": ("report", run, "--no-png"),
        "--resume": ("sweep", "--resume", run, "-q"),
    }
    return lambda name: command(*options[name])


def replaced(file: Path, content: bytes) -> None:
    file.write_bytes(content)


def cases(changes: dict[str, tuple[Change, str]], usual: str, names: Sequence[str] = COMMANDS) -> list[Any]:
    """Every change with one command, and the first of them with every other one: all read by the same function."""
    first = next(iter(changes))
    return [
        pytest.param(name, *row, id=f"{name}, {what}")
        for name in names
        for what, row in changes.items()
        if name == usual or what == first
    ]


def refused(found: Outcome, *said: str) -> None:
    assert (found.code, found.out) == (2, "")
    assert [text for text in said if text not in found.line] == [], found.line


# --- tables -----------------------------------------------------------------------------------------------------------


def table(name: str, change: Callable[[list[dict[str, str]]], Iterable[dict[str, str]]]) -> Change:
    """Change the rows of a table."""

    def apply(run: Path) -> None:
        with (run / name).open(encoding="utf-8", newline="") as file:
            rows = list(change(list(csv.DictReader(file))))
        with (run / name).open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, column_names(rows), restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)

    return apply


def edited(name: str, number: int = 1, **columns: str) -> Change:
    return table(name, lambda rows: [{**row, **columns} if n == number else row for n, row in enumerate(rows)])


TABLES: dict[str, tuple[Change, str]] = {
    "a number": (edited("results.csv", speedup="9.99"), "results.csv"),
    "the fourth digit": (
        table("results.csv", lambda rows: [{**r, "c": f"{float(r['c']):.4f}"} for r in rows]), "results.csv",
    ),
    "no number": (edited("results.csv", speedup="fast"), "results.csv"),
    "a blank": (edited("results.csv", alpha=""), "results.csv"),
    "a setting": (edited("results.csv", k="7"), "results.csv"),
    "another column": (edited("results.csv", mine="x"), "results.csv"),
    "a row twice": (table("results.csv", lambda rows: [*rows, rows[0]]), "results.csv"),
    "a hash": (edited("samples.csv", output_sha256="0" * 16), "samples.csv"),
    "a sample": (table("samples.csv", lambda rows: rows[1:]), "samples.csv"),
    "no table": (lambda run: replaced(run / "samples.csv", b"\xff"), "samples.csv"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "change", "file"), cases(TABLES, "compare", READERS))
def test_an_edited_table_is_not_read_and_a_note_says_so(
    read: Callable[[str], Outcome], run: Path, name: str, change: Change, file: str
) -> None:
    before = read(name)
    assert (before.code, before.err) == (0, ""), "an untouched run is believed"
    change(run)
    found = read(name)
    assert (found.code, found.out) == (0, before.out)
    (line,) = found.err.splitlines()
    assert line.startswith("note: ")
    assert f"/{file} was edited, damaged or rendered by another version: it is not read" in line


def test_the_last_digits_of_numbers_may_differ_and_tables_may_be_gone(
    read: Callable[[str], Outcome], run: Path
) -> None:
    (run / "samples.csv").unlink()
    table("results.csv", lambda rows: [{**r, "c": repr(float(r["c"]) * (1 + 1e-12))} for r in rows])(run)
    assert (read("verdict").code, read("verdict").err) == (0, "")


def test_the_journal_renders_an_edited_table_anew(read: Callable[[str], Outcome], clean: Path, run: Path) -> None:
    edited("results.csv", speedup="9.99")(run)
    (run / "samples.csv").unlink()
    assert read("--resume").code == 0
    for name in ("results.csv", "samples.csv"):
        assert (run / name).read_bytes() == (clean / name).read_bytes()
    assert (read("--resume").err, read("verdict").err) == ("", "")


def test_the_path_of_a_table_is_the_run_that_it_lies_in(command: Command, clean: Path) -> None:
    for path in (clean, clean / "results.csv"):
        compare = ("compare", clean, path, "--checks", "deterministic")
        for given in (("verdict", path), ("predict", "--from-run", path, "--format", "csv"), compare):
            found = command(*given)
            assert (found.code, found.err) == (0, ""), given


def test_tables_without_their_run_are_refused(command: Command, clean: Path, tmp_path: Path) -> None:
    for name in ("results.csv", "samples.csv"):
        shutil.copy(clean / name, tmp_path)
    for path in (tmp_path, tmp_path / "results.csv", tmp_path / "samples.csv"):
        for given in (("verdict", path), ("compare", clean, path), ("predict", "--from-run", path), ("report", path)):
            refused(command(*given), "give the folder of a specbench run, its name, or the results.csv in it")


@pytest.mark.usefixtures("undrawn")
def test_the_name_of_a_report_cannot_move_the_cursor(command: Command, run: Path) -> None:
    found = command("report", run, "--no-png", "--output", run / "a\x1b[2Jb.html")
    assert found.code == 0
    assert "\x1b" not in found.out
    assert found.out.endswith("a\ufffd[2Jb.html\n")


# --- runs that were killed --------------------------------------------------------------------------------------------


def lines(cells: list[Cell], *, ended: int, turns: int = 4) -> bytes:
    """A journal of cells that were decoded together, of which the first few have ended."""
    begun = [{"begin": begin_line(cell.spec, cell.resolved)} for cell in cells]
    done = [{"turn": turn_line({cell.spec: [cell.samples[n]] for cell in cells})} for n in range(turns)]
    return b"".join(map(journal.encode, [*begun, *done, *({"end": end_line(cell)} for cell in cells[:ended])]))


@pytest.mark.parametrize("name", JUDGES)
@pytest.mark.parametrize("tables", [True, False])
def test_cells_that_have_not_ended_are_told_and_the_others_read(
    read: Callable[[str], Outcome], run: Path, cells: list[Cell], name: str, tables: bool
) -> None:
    (run / "journal.jsonl").write_bytes(lines(cells, ended=2))
    for file, rows in (("results.csv", 2), ("samples.csv", 8)):
        table(file, lambda found, rows=rows: found[:rows])(run)  # type: ignore[misc]
        if not tables:
            (run / file).unlink()
    found = read(name)
    assert "note: " in found.err
    assert "1 of 3 cells have not ended; `specbench run --resume " in found.err
    assert "edited" not in found.err
    assert found.code == (7 if name == "compare" else 0), "compare does not judge a cell that was cut off"


# --- folders that are not whole ---------------------------------------------------------------------------------------


def flipped(run: Path) -> None:
    content = bytearray((run / "journal.jsonl").read_bytes())
    content[len(content) // 2] ^= 1
    (run / "journal.jsonl").write_bytes(content)


def described(**changes: Any) -> Change:
    def apply(run: Path) -> None:
        found = json.loads((run / "run.json").read_text())
        (run / "run.json").write_text(json.dumps({**found, **changes}))

    return apply


def kept(keep: Callable[[dict[str, Any]], bool]) -> Change:
    """Take lines out of the journal; what is left of it is sound."""

    def apply(run: Path) -> None:
        left = [line for line in journal.read_bodies(run / "journal.jsonl") if keep(line)]
        (run / "journal.jsonl").write_bytes(b"".join(map(journal.encode, left)))

    return apply


def repeated(kind: str) -> Change:
    """A line about a cell after its end, with the checksum that it must have."""

    def apply(run: Path) -> None:
        found = journal.read_bodies(run / "journal.jsonl")
        key = next(line["end"]["cell"] for line in found if "end" in line)
        more = {"anew": {"anew": key}}.get(kind) or next(line for line in found if kind in line)
        (run / "journal.jsonl").write_bytes(b"".join(map(journal.encode, [*found, more])))

    return apply


FIRST = [cell.spec.model_dump(mode="json") for cell in sweep("code", prompts=4, ks=(1,))]
FOLDERS: dict[str, tuple[Change, str]] = {
    "a flipped bit": (flipped, "a damaged line"),
    "no journal": (lambda run: (run / "journal.jsonl").unlink(), "journal.jsonl"),
    "an empty journal": (kept(lambda line: False), "has lost lines: results.csv lists cell"),
    "no ends": (kept(lambda line: "end" not in line), "as ok, the end of which the journal does not have"),
    "no turns": (kept(lambda line: "turn" not in line), "a cell with 0 samples that ended as 'ok'"),
    "anew after the end": (repeated("anew"), "has ended before"),
    "a turn after the end": (repeated("turn"), "has ended before"),
    "another end": (repeated("end"), "has ended before"),
    "no beginnings": (kept(lambda line: "begin" not in line), "journal.jsonl:1: a line"),
    "no run.json": (lambda run: (run / "run.json").unlink(), "is not the folder of a run"),
    "a list": (lambda run: replaced(run / "run.json", b"[1]"), "is not a description of a run"),
    "another schema": (described(schema_version=99), "schema_version 99"),
    "no cells": (described(specs=None), "run.json is damaged"),
    "other cells": (described(specs=FIRST), "which run.json does not list"),
}  # fmt: skip


@pytest.mark.whole
@pytest.mark.parametrize(("name", "change", "said"), cases(FOLDERS, "compare"))
def test_a_folder_that_is_not_whole_is_refused_by_every_command(
    read: Callable[[str], Outcome], run: Path, name: str, change: Change, said: str
) -> None:
    change(run)
    refused(read(name), said)


@pytest.mark.parametrize("name", READERS)
def test_of_a_run_that_has_not_begun_it_is_said_what_begins_it(
    read: Callable[[str], Outcome], run: Path, name: str
) -> None:
    (run / "journal.jsonl").write_bytes(b"")
    (run / "results.csv").unlink()
    refused(read(name), "no cell of ", "has begun: `specbench run --resume ")


# --- numbers that no decode gives -------------------------------------------------------------------------------------


def forged(arm: str, **changes: Any) -> Change:
    """Other numbers in the first turn of the journal, with the checksum that they must have."""

    def apply(run: Path) -> None:
        found = journal.read_bodies(run / "journal.jsonl")
        turn = next(line["turn"] for line in found if "turn" in line)
        place = turn["baseline"] if arm == "baseline" else next(iter(turn["arms"].values()))
        place["trace"].update(changes)
        (run / "journal.jsonl").write_bytes(b"".join(map(journal.encode, found)))

    return apply


FORGERIES: dict[str, tuple[Change, str]] = {
    "negative seconds": (forged("method", seconds=-1), "seconds of -1.0"),
    "no seconds": (forged("baseline", seconds=0), "128 tokens in 0 seconds"),
    "NaN": (forged("method", seconds=float("nan")), "seconds of nan"),
    "no rounds": (forged("method", rounds=[]), "128 tokens, where its rounds emitted 0"),
}


@pytest.mark.parametrize(("name", "change", "said"), cases(FORGERIES, "verdict"))
def test_impossible_numbers_are_refused_by_every_command_with_their_line(
    read: Callable[[str], Outcome], run: Path, name: str, change: Change, said: str
) -> None:
    change(run)
    refused(read(name), "journal.jsonl:2: a line that this specbench did not write", said)


POSSIBLE = method_trace((4, 0))
ROUND = one_round(2)
LEVEL = LevelCounts(2, 4, 3, 1, 3, 1.5, 2)
IMPOSSIBLE = (
    {"seconds": float("inf")}, {"prefill_seconds": -1e-9}, {"spans": {"draft": float("nan")}}, {"tokens": (1, 2)},
    *({"rounds": (one_round(4), replace(ROUND, **change))} for change in (
        {"accepted": -1}, {"tested": 2, "accepted": 3}, {"drafted": 1}, {"emitted": 0}, {"emitted": 4}, {"overlap": ()},
        {"overlap": (0.5, 0.5, 1.5)}, {"overlap": (0.5, 0.5, float("nan"))}, {"nodes": -1}, {"distance": -1.0},
        {"surplus": -1}, {"surplus": 2}, {"belief": (0.5,)}, {"belief": (0.5, None, 1.5)}, {"belief": (0.5, 0.5, "1")},
        {"belief": (float("nan"), 0.5, 0.5)}, {"belief": (0.5, -0.5, 0.5)},
        {"drafted": 4.5}, {"drafted": 10**30}, {"accepted": True},
        {"inner": (replace(LEVEL, accepted=4),)}, {"inner": (replace(LEVEL, overlap=7.0),)},
    )),
)  # fmt: skip


@pytest.mark.parametrize("changes", IMPOSSIBLE, ids=str)
def test_what_no_decode_gives(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\d|nan|inf"):
        check_trace(replace(POSSIBLE, **changes))


def test_what_decodes_give() -> None:
    ended = RoundCounts(4, 4, 4, 2, (1.001, 0.0, 1.0, 0.5), 9, 0.25, (LEVEL,))  # a text ends within a round
    for trace in (POSSIBLE, baseline_trace((1, 2)), Trace((), ()), Trace((1, 2), (ended,), 0.1)):
        check_trace(trace)


def test_run_json_of_these_folders_is_that_of_a_run(clean: Path) -> None:
    """The control of all tests above: they change a folder that a run would have left."""
    found = json.loads((clean / "run.json").read_text())
    assert set(description()) < set(found)
    assert len(found["specs"]) == 3
