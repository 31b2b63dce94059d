"""`specbench report`: where the file lands, and one line for what cannot be read or written."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.frontdoor import Command
from tests.support.measured import cell, sample
from tests.support.simulated_sweeps import write_run


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
