"""Folders that somebody edited, or that a kill left half written: what every command that reads them says."""

import csv
import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specbench.metrics import LevelCounts, RoundCounts, Trace
from specbench.results import journal
from specbench.results.audit import agrees
from specbench.results.cells import Cell
from specbench.results.folder import RunFolder
from specbench.results.journal_lines import begin_line, end_line, turn_line
from specbench.results.possible import possible
from specbench.results.writing import column_names
from tests.support.cases import quick_or_slow
from tests.support.frontdoor import Command, Outcome
from tests.support.measured import baseline_trace, method_trace, one_round
from tests.support.simulated_sweeps import description, sweep, write_run

Change = Callable[[Path], None]
COMMANDS = ("verdict", "compare", "predict", "report", "--resume")
JUDGES = ("verdict", "compare", "predict")


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
def read(command: Command, clean: Path, run: Path) -> Callable[[str], Outcome]:
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


def refused(found: Outcome, *said: str) -> None:
    assert (found.code, found.out) == (2, "")
    assert [text for text in said if text not in found.line] == [], found.line


@pytest.mark.parametrize("name", quick_or_slow(COMMANDS, lambda name: name in ("compare", "report")))
def test_an_untouched_run_is_believed(read: Callable[[str], Outcome], name: str) -> None:
    found = read(name)
    assert (found.code, found.err) == (0, "")


# --- tables that are not what the journal renders ---------------------------------------------------------------------


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


RESULTS: dict[str, tuple[Change, str]] = {
    "a number": (edited("results.csv", speedup="9.99"), "speedup is '9.99' where the journal gives '1."),
    "the fourth digit": (table("results.csv", lambda rows: [{**r, "c": f"{float(r['c']):.4f}"} for r in rows]), "c is"),
    "no number": (edited("results.csv", speedup="fast"), "speedup is 'fast'"),
    "a blank": (edited("results.csv", alpha=""), "alpha is ''"),
    "a text": (edited("results.csv", device_name="H100"), "device_name is 'H100' where the journal gives 'Exam"),
    "a number for nothing": (edited("results.csv", top2_gap="0.5"), "top2_gap is '0.5' where the journal gives ''"),
    "a setting": (edited("results.csv", k="7"), "k is '7' where the journal gives '2'"),
    "another column": (edited("results.csv", mine="x"), "mine is 'x' where the journal gives ''"),
    "a lost column": (table("results.csv", lambda rows: [dict(list(r.items())[:-1]) for r in rows]), "is '' where"),
    "a row twice": (table("results.csv", lambda rows: [*rows, rows[0]]), "2 rows where the journal gives 1"),
}  # fmt: skip
SAMPLES: dict[str, tuple[Change, str]] = {
    "seconds": (edited("samples.csv", seconds="0.001"), "samples.csv: seconds is '0.001'"),
    "a hash": (edited("samples.csv", output_sha256="0" * 16), "output_sha256 is '0000000000000000'"),
    "a sample": (table("samples.csv", lambda rows: rows[1:]), "3 rows where the journal gives 4"),
    "no file": (lambda run: (run / "samples.csv").unlink(), "has no samples.csv"),
    "no table": (lambda run: replaced(run / "samples.csv", b"\xff"), "samples.csv is not a CSV text file"),
}


@pytest.mark.parametrize("name", quick_or_slow(JUDGES, lambda name: name == "verdict"))
@pytest.mark.parametrize(("change", "said"), RESULTS.values(), ids=RESULTS)
def test_a_judge_does_not_believe_an_edited_table(
    read: Callable[[str], Outcome], run: Path, name: str, change: Change, said: str
) -> None:
    change(run)
    refused(read(name), "results.csv", said, "it was edited, damaged or", "--resume")


@pytest.mark.parametrize(("change", "said"), SAMPLES.values(), ids=SAMPLES)
def test_nor_edited_samples_where_they_count(
    read: Callable[[str], Outcome], run: Path, change: Change, said: str
) -> None:
    change(run)
    refused(read("compare"), said, "--resume")
    assert read("verdict").code == 0


def test_the_journal_renders_an_edited_table_anew(read: Callable[[str], Outcome], clean: Path, run: Path) -> None:
    edited("results.csv", speedup="9.99")(run)
    (run / "samples.csv").unlink()
    assert read("--resume").code == 0
    for name in ("results.csv", "samples.csv"):
        assert (run / name).read_bytes() == (clean / name).read_bytes()
    assert read("compare").code == 0


def test_a_table_of_an_older_version_is_believed_where_a_zero_was_left_blank(
    read: Callable[[str], Outcome], run: Path
) -> None:
    with (run / "results.csv").open(encoding="utf-8", newline="") as file:
        assert {row["term_update"] for row in csv.DictReader(file)} == {"0.0"}
    edited("results.csv", term_update="")(run)
    found = read("compare")
    assert (found.code, found.err) == (0, "")
    edited("results.csv", term_update="0.5")(run)
    refused(read("verdict"), "term_update is '0.5' where the journal gives '0.0'")


def test_a_row_that_is_gone_may_be_one_that_was_not_written_yet(read: Callable[[str], Outcome], run: Path) -> None:
    table("results.csv", lambda rows: rows[1:])(run)
    refused(read("verdict"), "0 rows where the journal gives 1", "it is older than the journal, or it was edited")


def test_numbers_may_differ_in_their_last_digits_and_texts_may_not() -> None:
    assert agrees("1.1999999999999", 1.2)
    assert agrees("-3e-17", 2e-17), "a difference that is nothing but rounding"
    assert agrees("", float("nan"))
    assert agrees("inf", float("inf"))
    assert not agrees("1.2000001", 1.2)
    assert not agrees("nan", 1.2)
    assert not agrees("", 1.2)
    assert not agrees("1.0", 1)
    assert not agrees("1.2 ", "1.2")
    assert agrees("'=1+1", "=1+1")


@pytest.mark.parametrize(
    ("name", "file"), [("report", "results.csv"), ("report", "samples.csv"), ("verdict", "samples.csv")]
)
def test_an_edited_table_that_is_not_read_is_named(
    read: Callable[[str], Outcome], run: Path, name: str, file: str
) -> None:
    edited(file, tokens="7")(run)
    found = read(name)
    assert found.code == 0
    (line,) = found.err.splitlines()
    assert line.startswith("note: ")
    assert f"/{file}: tokens is '7' where the journal gives " in line
    assert line.endswith("; the numbers of the journal are shown")


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
def test_cells_that_have_not_ended_are_told_and_the_others_believed(
    read: Callable[[str], Outcome], run: Path, cells: list[Cell], name: str
) -> None:
    (run / "journal.jsonl").write_bytes(lines(cells, ended=2))
    for file, rows in (("results.csv", 2), ("samples.csv", 8)):
        table(file, lambda found, rows=rows: found[:rows])(run)  # type: ignore[misc]
    found = read(name)
    assert "note: " in found.err
    assert "1 of 3 cells have not ended; `specbench run --resume " in found.err
    assert found.code == (7 if name == "compare" else 0), "compare has nothing to say of a cell that NEW lacks"


@pytest.mark.parametrize("name", JUDGES)
@pytest.mark.parametrize("ended", [0, 1])
def test_a_run_that_was_killed_before_it_rendered_is_not_called_edited(
    read: Callable[[str], Outcome], run: Path, cells: list[Cell], name: str, ended: int
) -> None:
    (run / "journal.jsonl").write_bytes(lines(cells, ended=ended, turns=3 + ended))
    for file in ("results.csv", "samples.csv"):
        (run / file).unlink()
    found = read(name)
    refused(found, "has no results.csv: the run was cut off", "--resume")
    assert "edited" not in found.line


def test_rows_of_a_run_that_was_killed_twice_are_older_than_its_journal(
    read: Callable[[str], Outcome], run: Path, cells: list[Cell]
) -> None:
    (run / "journal.jsonl").write_bytes(lines(cells, ended=0, turns=3))
    (run / "results.csv").unlink()
    RunFolder.resume(run).close()
    (run / "journal.jsonl").write_bytes(lines(cells, ended=0, turns=4))
    refused(read("verdict"), "it is older than the journal", "--resume")
    RunFolder.resume(run).close()
    assert read("verdict").code == 0


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


@pytest.mark.parametrize("name", quick_or_slow(COMMANDS, lambda name: name in ("compare", "report")))
@pytest.mark.parametrize(("change", "said"), FOLDERS.values(), ids=FOLDERS)
def test_a_folder_that_is_not_whole_is_refused_by_every_command(
    read: Callable[[str], Outcome], run: Path, name: str, change: Change, said: str
) -> None:
    change(run)
    refused(read(name), said)


def test_a_report_of_a_run_that_has_not_begun_says_what_begins_it(read: Callable[[str], Outcome], run: Path) -> None:
    (run / "journal.jsonl").write_bytes(b"")
    (run / "results.csv").unlink()
    refused(read("report"), "no cell of ", "has begun: `specbench run --resume ")


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


@pytest.mark.parametrize("name", quick_or_slow(COMMANDS, lambda name: name == "verdict"))
@pytest.mark.parametrize(("change", "said"), FORGERIES.values(), ids=FORGERIES)
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
        possible(replace(POSSIBLE, **changes))


def test_what_decodes_give() -> None:
    ended = RoundCounts(4, 4, 4, 2, (1.001, 0.0, 1.0, 0.5), 9, 0.25, (LEVEL,))  # a text ends within a round
    for trace in (POSSIBLE, baseline_trace((1, 2)), Trace((), ()), Trace((1, 2), (ended,), 0.1)):
        assert possible(trace) is trace


# --- tables without a journal -----------------------------------------------------------------------------------------


@pytest.fixture
def bare(clean: Path, tmp_path: Path) -> Path:
    """The tables of a run, without what else it left."""
    folder = tmp_path / "bare"
    folder.mkdir()
    for name in ("results.csv", "samples.csv"):
        shutil.copy(clean / name, folder)
    return folder


def test_bare_tables_are_read_and_called_unverified(command: Command, clean: Path, bare: Path) -> None:
    for path in (bare, bare / "results.csv", clean / "results.csv"):
        for found in (
            command("verdict", path),
            command("compare", clean, path, "--checks", "deterministic"),
            command("predict", "--from-run", path, "--format", "csv"),
        ):
            said = f"unverified: bare CSV, no journal to check it against: {path}\n"
            assert (found.code, found.err) == (0, said)


def test_what_programs_read_says_so_too(command: Command, clean: Path, bare: Path) -> None:
    (found,) = json.loads(command("verdict", bare, "--format", "json").out)
    assert found["unverified"] == [str(bare)]
    (found,) = json.loads(command("verdict", clean, "--format", "json").out)
    assert found["unverified"] == []
    options = ("compare", clean, bare, "--checks", "deterministic", "--format")
    assert json.loads(command(*options, "json").out)["unverified"] == [str(bare)]
    assert "`unverified: bare CSV, no journal to check it against: " in command(*options, "md").out
    assert command("verdict", bare, "--format", "md").out.splitlines()[-1].startswith("- unverified: bare CSV")


def test_quiet_is_quiet(command: Command, clean: Path, bare: Path) -> None:
    found = command("compare", "-q", clean, bare, "--checks", "deterministic")
    assert (found.code, found.out, found.err) == (0, "", "")


def test_a_folder_without_its_journal_names_the_table_that_may_be_given(command: Command, run: Path) -> None:
    (run / "journal.jsonl").unlink()
    refused(command("verdict", run), f"give {run / 'results.csv'} by itself to have it read unverified")


def test_run_json_of_these_folders_is_that_of_a_run(clean: Path) -> None:
    """The control of all tests above: they change a folder that a run would have left."""
    found = json.loads((clean / "run.json").read_text())
    assert set(description()) < set(found)
    assert len(found["specs"]) == 3
