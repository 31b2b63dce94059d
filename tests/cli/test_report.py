"""`specbench report`: where the file lands, and one line for what cannot be read or written."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.frontdoor import Command
from tests.support.measured import cell, sample
from tests.support.simulated_sweeps import write_run


def test_the_command_says_where_the_file_is(command: Command, tmp_path: Path) -> None:
    run = write_run(tmp_path, [cell(sample())])
    outcome = command("report", run, "--no-png")
    assert (outcome.code, outcome.out.strip(), outcome.err) == (0, str(run / "report.html"), "")
    assert not (run / "plots").exists()
    assert command("report", run, "--output", tmp_path / "a" / "b.html").code == 0
    assert (tmp_path / "a" / "b.html").is_file()
    assert list((tmp_path / "a" / "plots").iterdir())


def unusable(tmp_path: Path) -> Iterator[tuple[Any, ...]]:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    run = write_run(tmp_path, [cell(sample())])
    yield from ((tmp_path / "none",), (tmp_path / "empty",), (tmp_path / "file",), (run, tmp_path / "none"), ())
    yield from ((run, "--output", tmp_path / "empty"), (run, "--output", tmp_path / "file" / "x.html"), (run, "--nope"))


def test_what_cannot_be_read_or_written_ends_in_one_line(command: Command, tmp_path: Path) -> None:
    for arguments in unusable(tmp_path):
        outcome = command("report", *arguments)
        assert (outcome.code, outcome.out) == (2, ""), arguments
        assert outcome.line
