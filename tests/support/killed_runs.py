"""Real kills: a child process measures into a folder and is killed with SIGKILL at a random moment.

The child is forked, so a kill costs milliseconds. It acknowledges every turn through a pipe once the journal has said
that the turn is on disk; whatever it acknowledged must be there afterwards.
"""

import os
import random
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specbench.measure.group import Job
from specbench.measure.runner import measure
from specbench.results import journal
from specbench.results.cells import Cell, Observer
from specbench.results.folder import RunFolder
from specbench.results.reading import read_run
from specbench.results.samples import Sample
from specbench.spec import SCHEMA_VERSION, RunSpec
from tests.support.measured import Call, FakeBackend, job

DESCRIPTION = {"schema_version": SCHEMA_VERSION, "command": "specbench sweep-k"}
NAMES = [f"p{n}" for n in range(8)]


def jobs() -> list[Job]:
    """Two groups: three lookaheads and two, sampled so that nothing is compared."""
    return [job(*NAMES, k=k, temperature=t) for k, t in ((1, 1.0), (2, 1.0), (4, 1.0), (1, 0.5), (2, 0.5))]


def answer(call: Call) -> Sequence[int]:
    """Texts that depend on what is asked alone, as those of a seeded decode do."""
    return tuple(random.Random(f"{call}").choices(range(100), k=1 + call.seed % 5))


@dataclass
class Acknowledging(Observer):
    """Says through a pipe what the observers before it have acknowledged."""

    pipe: int

    def turn(self, samples: Mapping[RunSpec, Sequence[Sample]]) -> None:
        os.write(self.pipe, b"t")

    def end(self, cell: Cell) -> None:
        os.write(self.pipe, b"e")


def work(path: Path, pipe: int) -> None:
    """What the child does: go on with the folder until everything is measured."""
    folder = RunFolder.resume(path)
    measure(jobs(), FakeBackend(answer), [folder, Acknowledging(pipe)], folder.past)
    folder.close()


def life(path: Path, seconds: float | None) -> tuple[int, bool]:
    """Let a child work for so long (None: to the end): how many events it acknowledged, and whether it was killed."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        try:
            work(path, writer)
        finally:
            os._exit(0)
    os.close(writer)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    acknowledged = b""
    while part := os.read(reader, 4096):
        acknowledged += part
    os.close(reader)
    _, status = os.waitpid(child, 0)
    return len(acknowledged), os.WIFSIGNALED(status)


def events(path: Path) -> int:
    """Turns and ends in the journal."""
    return sum("begin" not in line for line in journal.read_bodies(path / journal.FILE))


@dataclass(frozen=True)
class Ordeal:
    """What became of a run that was killed again and again, then left alone."""

    kills: int
    torn: int
    lost: int
    outcome: list[object]


def outcome(path: Path) -> list[object]:
    """Everything about the cells of a run but how long things took."""
    return [
        (c.spec, c.status, [(s.prompt, s.repeat, s.turn, s.order, s.baseline.tokens, s.method) for s in c.samples])
        for c in read_run(path).cells
    ]


def whole(parent: Path) -> Path:
    """The folder of an uninterrupted run."""
    path = made(parent, "whole")
    life(path, None)
    return path


def made(parent: Path, name: str) -> Path:
    """A folder in which the first line is written already: without any, nothing is to be continued."""
    specs = [one.spec.model_dump(mode="json") for one in jobs()]
    folder = RunFolder.create(parent, name, {**DESCRIPTION, "specs": specs})
    folder.begin([Cell(jobs()[0].spec, jobs()[0].resolved)], 0)
    folder.close()
    return folder.path


def ordeal(parent: Path, name: str, kills: int, seed: int, longest: float) -> Ordeal:
    """Kill a run `kills` times, each after a random part of `longest` seconds, then let it end."""
    path, chance = made(parent, name), random.Random(seed)
    done = lost = torn = killed = 0
    while killed < kills and done < 2 * len(NAMES) + len(jobs()):  # turns of both groups, and the ends of all cells
        acknowledged, was_killed = life(path, chance.uniform(0, longest))
        killed += was_killed
        content = (path / journal.FILE).read_bytes()
        torn += not content.endswith(b"\n")
        lost += max(0, done + acknowledged - events(path))
        done = events(path)
    life(path, None)
    return Ordeal(killed, torn, lost, outcome(path))
