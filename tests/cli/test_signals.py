"""SIGTERM and SIGHUP end a run as Ctrl-C does: tables, how to go on, an exit code of their own; nothing is lost."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from specbench.cli.app import GRACE, Heard, heeded
from specbench.measure.pair import Prepared
from specbench.results.folder import RunFolder
from specbench.results.reading import read_run
from specbench.results.samples import Sample
from tests.support.frontdoor import Command, Outcome
from tests.support.signals import as_a_shell_leaves_them

ENDS = [
    (signal.SIGTERM, 143, "ended by SIGTERM"),
    pytest.param(signal.SIGHUP, 129, "ended by SIGHUP", marks=pytest.mark.slow),
    (signal.SIGINT, 130, "interrupted"),
]


@pytest.fixture(autouse=True)
def _as_a_shell_leaves_them() -> Iterator[None]:
    with as_a_shell_leaves_them():
        yield


def killed_after(turns: int, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process send itself a signal after so many turns are on disk."""
    keep, done = RunFolder.turn, list[int]()

    def turn(self: RunFolder, samples: object) -> None:
        keep(self, samples)  # type: ignore[arg-type]
        done.append(1)
        if len(done) == turns:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(RunFolder, "turn", turn)


def decoded(folder: Path) -> list[tuple[object, ...]]:
    """Everything about the samples of a run but how long they took."""
    samples: list[Sample] = [sample for cell in read_run(folder).cells for sample in cell.samples]
    return [(s.prompt, s.turn, s.order, s.baseline.tokens, s.method.tokens, s.method.rounds) for s in samples]


@pytest.mark.parametrize(("number", "code", "said"), ENDS)
def test_a_signal_leaves_tables_and_the_run_can_be_gone_on_with(
    run: Command, command: Command, number: int, code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--limit", "3", "--temperature", "1", "--output-dir")
    undisturbed = run(*options, tmp_path / "whole")
    with monkeypatch.context() as patch:
        killed_after(2, number, patch)
        found = run(*options, tmp_path / "results")
    assert found.code == code
    assert found.err.splitlines()[-1] == f"specbench: {said}; `specbench run --resume {found.folder}` continues it"
    assert f"results: {found.folder}" in found.err
    (row,) = found.table()
    assert (row["status"], len(found.samples())) == ("partial", 2)
    assert "partial: interrupted" in found.out
    resumed: Outcome = command("sweep", "--resume", found.folder)
    assert resumed.code == undisturbed.code == 0
    (whole,) = (tmp_path / "whole").iterdir()
    assert decoded(found.folder) == decoded(whole)


def test_a_signal_before_the_first_sample_prints_no_tables(
    run: Command, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("specbench.measure.course.warm_up", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        found = run()
    assert (found.code, found.out) == (143, "")
    said = "nothing was measured yet; `specbench run --resume latest` continues it"
    assert found.err.splitlines()[-1] == f"specbench: ended by SIGTERM; {said}"
    assert command("run", "--resume", "latest").code == 0
    assert [row["status"] for row in found.table()] == ["ok"]


def test_a_signal_before_anything_is_measured_leaves_nothing(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(self: Prepared, *rest: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Prepared, "load", load)
    found = run()
    assert (found.code, found.out) == (143, "")
    assert found.line == "specbench: ended by SIGTERM"
    assert list((found.cwd / "results").iterdir()) == []


def test_two_signals_at_once_are_one_request_and_one_that_is_ignored_already_stays_so() -> None:
    """`nohup` means what it says."""
    heard = Heard()
    with pytest.raises(KeyboardInterrupt):
        heard.interrupt(signal.SIGHUP, None)
    heard.interrupt(signal.SIGTERM, None)
    assert (heard.number, heard.what) == (signal.SIGHUP, "ended by SIGHUP")
    heard.at -= 2 * GRACE
    with pytest.raises(KeyboardInterrupt):
        heard.interrupt(signal.SIGTERM, None)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with heeded() as heard:
        os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGTERM) == heard.interrupt
    assert heard.number == 0
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
