"""`--executor process`: every cell in a process of its own, and what a crash costs."""

import json
import multiprocessing
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import specbench
from specbench import plugins
from specbench.jobs.subprocess import Known, Once, Relay, how_it_ended, listen
from specbench.results.cells import Cell
from specbench.spec import RunSpec
from tests.support.signals import MAIN
from tests.support.tinypair import prompts
from tests.test_plugins import record

pytestmark = pytest.mark.slow  # a process loads torch anew

EXACT = ("status", "method", "k", "rounds", "drafted", "tested", "accepted", "tokens", "alpha", "lossless", "prompts")
FATAL = '''
import os, signal
from dataclasses import dataclass
from specbench.decoding.drafters.lookup import PromptLookup

@dataclass(frozen=True)
class Fatal(PromptLookup):
    """Kills its process at the third prompt."""

    started = [0]

    def start(self, context):
        self.started[0] += 1
        if self.started[0] > 2:
            os.kill(os.getpid(), signal.SIGKILL)
'''
METHOD = """
summary: A drafter that kills its process
paper: none
lossless: true
method: {Speculate: {drafter: {Fatal: {k: k}}, model: target, verifier: Rejection}}
"""


@pytest.fixture
def asked(pair: Any, tmp_path: Path) -> dict[str, Any]:
    dataset = prompts(tmp_path / "words.jsonl", 4, 6, 5, 7)
    more = {"dataset": dataset, "k": 3, "tier": "eager", "max_new_tokens": 8, "warmup": 0}
    return {"target": str(pair.target), "draft": str(pair.draft), "output_dir": tmp_path / "runs", **more}


@pytest.fixture
def fatal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A method that kills the process that decodes with it, from an installed package."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "fatal_part.py").write_text(FATAL)
    (site / "fatal.yaml").write_text(METHOD)
    monkeypatch.syspath_prepend(str(site))
    record(site, "fatal", "1.0", {plugins.PARTS: {"Fatal": "fatal_part:Fatal"}})
    return str(site / "fatal.yaml")


def test_a_crash_costs_one_cell_and_the_others_have_the_numbers_of_one_process(
    asked: dict[str, Any], fatal: str
) -> None:
    result = specbench.run(**asked, method=["chain", fatal, "prompt-lookup"], executor="process")
    first, crashed, last = result.rows()
    local = specbench.run(**asked, method=["chain", "prompt-lookup"]).rows()
    assert [[row[name] for name in EXACT] for row in (first, last)] == [[row[name] for name in EXACT] for row in local]
    assert (first["status"], crashed["status"], last["status"]) == ("ok", "partial", "ok")
    assert "its process was ended by SIGKILL" in crashed["error"]
    assert crashed["prompts"] == 2
    written = specbench.load_run(result.path).rows()
    assert repr(written) == repr(result.rows())  # some are no numbers, which equal nothing


def measuring(asked: dict[str, Any], folder: Path, repeat: int) -> "subprocess.Popen[str]":
    """A process that has begun to measure."""
    options = [f"--{name.replace('_', '-')}={value}" for name, value in asked.items()]
    command = [sys.executable, "-c", MAIN, "run", *options, "--repeat", str(repeat), "--executor", "process"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running: subprocess.Popen[str] = subprocess.Popen(command, start_new_session=True, **pipes)  # type: ignore[call-overload]
    deadline = time.monotonic() + 120
    while not any('"turn"' in file.read_text() for file in folder.glob("runs/*/journal.jsonl")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return running


def test_an_interrupt_keeps_what_was_measured(asked: dict[str, Any], tmp_path: Path) -> None:
    running = measuring(asked, tmp_path, 400)
    os.killpg(running.pid, signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130, said
    (folder,) = (tmp_path / "runs").iterdir()
    (row,) = specbench.load_run(folder).rows()
    assert row["status"] == "partial"
    assert "interrupted" in row["error"]


def test_a_worker_ends_silently_with_the_process_that_was_killed(asked: dict[str, Any], tmp_path: Path) -> None:
    running = measuring(asked, tmp_path, 4000)
    running.kill()
    began = time.monotonic()
    _, said = running.communicate(timeout=60)  # until the worker has closed the same streams
    assert time.monotonic() - began < 5
    assert "Traceback" not in said


def test_how_a_process_ended_is_said_in_words() -> None:
    assert how_it_ended(-9).startswith("its process was ended by SIGKILL")
    assert how_it_ended(3).startswith("its process ended with exit code 3")


def test_a_process_that_is_killed_in_the_middle_of_a_message_has_ended() -> None:
    ours, theirs = multiprocessing.Pipe(duplex=False)
    theirs.send(("note", ("before",)))
    os.write(theirs.fileno(), struct.pack("!i", 1000) + b"a part of it")
    theirs.close()
    heard: list[str] = []
    listen(ours, Relay([], heard.append))
    assert heard == ["before"]


def test_an_interrupt_waits_for_the_end_of_a_message_and_comes_once() -> None:
    once, written = Once(), []
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 – where it comes is what is tested
        with once.held():
            once(signal.SIGINT, None)
            written.append("all of it")
        written.append("more")
    assert written == ["all of it"]
    once(signal.SIGTERM, None)
    with once.held():
        written.append("what was measured")
    with pytest.raises(KeyboardInterrupt):
        Once()(signal.SIGINT, None)


def test_what_is_known_of_a_cell_grows_with_every_turn() -> None:
    spec = RunSpec()
    known = Known(Cell(spec, {}, status="skipped"))
    known.begin([Cell(spec, {"device_name": "x"})], 1)
    known.turn({spec: ()})
    assert known.cell.resolved == {"device_name": "x"}
    assert not known.over
    assert json.dumps(dict(known.cell.resolved))
