"""Cases of one seed over one ground, each by its kind and number."""

import gc
import os
import random
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

import typer.main

from specbench.cli import app
from specbench.measure import parsing
from tests.support.fuzz import attacks, cases
from tests.support.fuzz.cases import Case, Ground
from tests.support.fuzz.processes import SECRET, Ended, Limits, carried_out
from tests.support.fuzz.servers import serving
from tests.support.simulated_sweeps import sweep, write_run
from tests.support.tinypair import prompts, save_pair

JOBS = ("calibrate", "reading", "run", "search", "trace")
NEEDED = (
    *("datasets", "matplotlib.figure", "pyarrow.parquet", "transformers", "torch._inductor.compile_fx"),
    *(f"specbench.{name}" for name in ("show.report.page", "models.execution.int8_operators")),
    "specbench.models.execution.region_code",
    *(f"specbench.jobs.{name}" for name in JOBS),
)
KINDS: dict[str, Callable[[random.Random, Path, Ground], Case | tuple[str, ...]]] = {**cases.KINDS, **attacks.KINDS}
PATIENCE: dict[str, dict[str, float]] = {  # seconds for which commands wait for others, shorter than they are
    "specbench.backends.engines.client": {"STALL": 1.0, "SLOWEST": 0.2, "PAGE_SECONDS": 1.0},
    "specbench.hub": {"PATIENCE": 2.0, "ANSWERED": 3.0},
}
LIBRARY = """#include <stdio.h>
#include <stdlib.h>
__attribute__((constructor)) static void leave(void) {
    char name[4096]; snprintf(name, sizeof name, "%s/MARK", getenv("HOME")); fclose(fopen(name, "w"));
}
"""


@dataclass(frozen=True)
class Session:
    """A folder, a seed, what all cases begin with, and the limits of each."""

    folder: Path
    seed: int
    limits: Limits
    ground: Ground

    @classmethod
    @contextmanager
    def begun(cls, folder: Path, seed: int, limits: Limits) -> Iterator["Session"]:
        """A session in a process that has loaded what its cases will need."""
        preload()
        yield cls(folder, seed, limits, ground_in(folder))

    def ended(self, kind: str, number: int) -> Ended:
        """Try a case; its files are removed."""
        return self.tried(kind, number)[1]

    def tried(self, kind: str, number: int) -> tuple[tuple[str, ...], Ended]:
        """The arguments of a case, and how it ended."""
        place = self.folder / f"case-{os.getpid():07}"  # of a worker
        (place / "cwd").mkdir(parents=True)
        (place / "home").mkdir()
        try:
            with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
                ground = replace(self.ground, url=f"http://127.0.0.1:{listener.getsockname()[1]}")
                case = self.case(kind, number, place / "cwd", ground)
                with serving(listener, case.reply) if case.reply else nullcontext():
                    return case.arguments, self.carried_out(case, place)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def case(self, kind: str, number: int, place: Path, ground: Ground) -> Case:
        """A case; its files are in the folder."""
        chance = random.Random(f"{self.seed} {kind} {number}")
        made = KINDS[kind](chance, place, ground)
        found = made if isinstance(made, Case) else Case(made)
        more = (f"https://user:{SECRET}@localhost/x",) if chance.random() < 0.02 else ()
        return replace(found, arguments=(*found.arguments, *more))

    def carried_out(self, case: Case, place: Path) -> Ended:
        def before() -> None:
            hurry()
            case.before()

        return carried_out(case.arguments, place, self.limits, before, case.bad)


def ground_in(folder: Path) -> Ground:
    """A tiny pair, its data set, the folders of a simulated run and of one that was measured, and compiled code."""
    words = folder / "words.jsonl"
    prompts(words, 4, 6, 5)
    run = write_run(folder / "past", sweep("code", prompts=3, ks=(1, 2), target="nope/nope"))
    ground = Ground(save_pair(folder / "pair"), words, run, run)
    plain = ground.runs()
    tried(plain, folder / "measured")
    (real,) = (folder / "measured" / "cwd" / "results").iterdir()
    plain, cache = plain[: -len(cases.QUICK)], folder / "cache"
    for number, more in enumerate((attacks.COMPILED, attacks.PACKED)):
        tried((*plain, *more), folder / f"looked-{number}", lambda: attacks.without_compiler(cache))
    found = sorted(cache.glob("specbench/[rp]*s/*"))
    looked_for = tuple(str(file.relative_to(cache / "specbench")) for file in found)
    return replace(ground, real=real, looked_for=looked_for, library=library_in(folder))


def tried(arguments: tuple[str, ...], place: Path, before: Callable[[], object] = lambda: None) -> Ended:
    """How a command ends that nothing is wrong with."""
    place.mkdir()
    return carried_out(arguments, place, Limits(seconds=300, computing=300), before)


def library_in(folder: Path) -> Path | None:
    """Machine code that leaves a file where it is loaded; None where there is no compiler."""
    (folder / "leave.c").write_text(LIBRARY)
    if (compiler := shutil.which("cc")) is None:
        return None
    made = folder / "leave.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(made), str(folder / "leave.c")], check=True)
    return made


def hurry() -> None:
    """Wait less for servers and hubs, and compile nothing unless it is asked for: a case has seconds."""
    parsing.USUAL["tier"] = "eager"
    for module, limits in PATIENCE.items():
        for name, seconds in limits.items():
            if hasattr(found := import_module(module), name):
                setattr(found, name, seconds)


def preload() -> None:
    """Import what commands import when they are carried out, so that a forked process need not."""
    for name in NEEDED:
        import_module(name)
    typer.main.get_command(app.app)  # kept by the tests
    gc.freeze()  # a collection in a forked process would copy all of it
