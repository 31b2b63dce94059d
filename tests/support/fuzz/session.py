"""Cases of one seed over one ground, tried one after the other."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from tests.support.fuzz.cases import Ground, case
from tests.support.fuzz.processes import Ended, Limits, carried_out
from tests.support.simulated_sweeps import sweep, write_run
from tests.support.tinypair import prompts, save_pair

JOBS = ("calibrate", "compare", "run", "noise", "skip_layers", "trace", "tree", "verdict")
NEEDED = (
    *("datasets", "matplotlib.figure", "pyarrow.parquet", "transformers", "specbench.show.report.page"),
    *(f"specbench.jobs.{name}" for name in JOBS),
)


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
        session = cls(folder, seed, limits, ground_in(folder))
        preload()
        yield session

    def words(self, kind: str, number: int) -> tuple[str, ...]:
        """The arguments of a case."""
        return self._made(kind, number, "shown")

    def ended(self, kind: str, number: int) -> Ended:
        """Try a case; its files are removed."""
        place = self.folder / "case"
        try:
            return carried_out(self._made(kind, number, "case"), place, self.limits)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _made(self, kind: str, number: int, name: str) -> tuple[str, ...]:
        place = self.folder / name
        shutil.rmtree(place, ignore_errors=True)
        (place / "cwd").mkdir(parents=True)
        return case(kind, self.seed, number, place / "cwd", self.ground)


def ground_in(folder: Path) -> Ground:
    """A tiny pair, its data set, and the folder of a simulated run."""
    words = folder / "words.jsonl"
    prompts(words, 4, 6, 5)
    run = write_run(folder / "past", sweep("code", prompts=3, ks=(1, 2), target="nope/nope"))
    return Ground(save_pair(folder / "pair"), words, run)


def preload() -> None:
    """Import what commands import when they are carried out, so that a forked process need not."""
    for name in NEEDED:
        import_module(name)
