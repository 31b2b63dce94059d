"""Readers that go away, full devices, closed streams and terminals without a width: the command still ends as it is."""

import contextlib
import errno
import io
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from specbench.cli import app
from specbench.cli.app import Lasting, streams

PREDICT = ("predict", "--alpha", "0.7", "--c", "0.1")


class Broken(io.StringIO):
    """A stream that takes so many texts and then raises an error."""

    def __init__(self, texts: int, number: int) -> None:
        super().__init__()
        self._left, self._number = texts, number

    def write(self, text: str) -> int:
        self._left -= 1
        if self._left < 0:
            raise OSError(self._number, os.strerror(self._number))
        return super().write(text)


def test_what_nobody_reads_is_dropped_and_any_other_error_of_stdout_is_one() -> None:
    stream = Lasting(Broken(1, errno.EPIPE), BrokenPipeError)
    assert [stream.write(text) for text in ("a", "bc", "d")] == [1, 2, 1]
    stream.flush()
    assert stream.getvalue() == "a"
    with pytest.raises(OSError, match="No space"):
        Lasting(Broken(0, errno.ENOSPC), BrokenPipeError).write("a")


def ended(monkeypatch: pytest.MonkeyPatch, *arguments: str, out: Any = None, err: Any = None) -> int:
    """The exit code of a command that writes to the given streams."""
    monkeypatch.setattr(sys, "argv", ["specbench", *arguments])
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    to_out, to_err = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
    with to_out, to_err, pytest.raises(SystemExit) as how:
        app.main()
    return int(how.value.code or 0)


@pytest.mark.parametrize("style", ["table", "csv", "json", "jsonl", "md"])
def test_a_reader_that_has_seen_enough_is_no_error(monkeypatch: pytest.MonkeyPatch, style: str) -> None:
    err = io.StringIO()
    found = ended(monkeypatch, *PREDICT, "--format", style, out=Broken(1, errno.EPIPE), err=err)
    assert (found, "specbench:" in err.getvalue()) == (0, False)


def test_a_full_device_is_an_error_which_keeps_its_exit_code_and_closed_streams_are_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    err = io.StringIO()
    assert ended(monkeypatch, *PREDICT, out=Broken(0, errno.ENOSPC), err=err) == 2
    assert err.getvalue().splitlines()[-1] == "specbench: cannot use the output: No space left on device"
    for number in (errno.ENOSPC, errno.EPIPE, errno.EIO):
        assert ended(monkeypatch, "run", "--nope", out=io.StringIO(), err=Broken(0, number)) == 2
    for style in ("table", "csv"):
        assert ended(monkeypatch, *PREDICT, "--format", style) == 0
    assert ended(monkeypatch, "run", "--nope") == 2


def test_a_pipe_without_a_reader_gets_what_is_left_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", encoding="utf-8") as out:
        assert ended(monkeypatch, *PREDICT, out=out, err=io.StringIO()) == 0
        out.write("more")  # closing it, as Python does at the end, would raise what has been overcome


def test_a_run_whose_reader_has_gone_names_its_folder(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specbench.cli.app.streams", lambda: contextlib.nullcontext())
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Lasting(Broken(0, errno.EPIPE), BrokenPipeError))
        found = run()
    assert (found.code, found.out) == (0, "")
    assert f"results: results/{found.folder.name}" in found.err


def test_a_width_that_can_be_is_kept_and_streams_are_as_they_were_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    before = sys.stdout, sys.stderr
    for width in ("1", "80", "10000", "wide", ""):
        monkeypatch.setenv("COLUMNS", width)
        with streams():
            assert os.environ["COLUMNS"] == width
            assert sys.stdout is not before[0]
        assert (sys.stdout, sys.stderr) == before


@pytest.mark.slow
def test_pipelines_of_a_shell(tmp_path: Path) -> None:
    """The processes that users start, with the streams that the system gives them."""
    import subprocess

    main = f"{sys.executable} -c 'from specbench.cli.app import main; main()'"
    predict = f"{main} {' '.join(PREDICT)} --k 1-1000 --format"
    lines = {
        f"{predict} csv | head -1 | wc -l; echo ${{PIPESTATUS[0]}}": "1\n0\n",
        f"{predict} table | true; echo ${{PIPESTATUS[0]}}": "0\n",
        f"{main} methods | true; echo ${{PIPESTATUS[0]}}": "0\n",
        f"{predict} csv >/dev/full; echo $?": "2\n",
        f"{predict} md >/dev/full; echo $?": "2\n",
        f"{predict} csv >&-; echo $?": "0\n",
        f"{main} run --nope 2>/dev/full; echo $?": "2\n",
        f"{main} run --nope 2>&-; echo $?": "2\n",
    }
    for line, said in lines.items():
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=tmp_path, timeout=120)
        assert done.stdout == said, line
        assert "Traceback" not in done.stderr
        assert "Exception ignored" not in done.stderr
