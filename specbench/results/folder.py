"""A run folder: run.json, the journal, and the tables rendered from the results.

run.json is written before anything is measured, the journal gets one fsynced line per finished prompt, and
every table is replaced atomically, so that no finished measurement is lost, whatever ends the run.
"""

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from specbench.errors import UsageError
from specbench.files import clear_unfinished, replace_text, replacing, writing
from specbench.results import journal
from specbench.results.cells import Cell, Observer
from specbench.results.documents import About, summary
from specbench.results.journal import begin_line, end_line, turn_line
from specbench.results.named_runs import LONGEST, read_json, write_csv
from specbench.results.reading import CATEGORIES, DESCRIPTION, RESULTS, SAMPLES, read_run
from specbench.results.samples import Sample
from specbench.spec import RunSpec
from specbench.wording import clean, redact

LOCK, ROUNDS, SUMMARY = ".lock", "rounds.parquet", "summary.csv"


def slug(name: str) -> str:
    """A model's name as part of a folder name: its last component, only letters, digits, dot and dash, at most 40."""
    return re.sub(r"[^A-Za-z0-9.-]+", "-", redact(name).rstrip("/").rsplit("/", 1)[-1]).strip("-.")[:40] or "model"


class RunFolder(Observer):
    """A run folder `<parent>/<time>_<target>_<draft>_<hash>/` while it is written; locked for one process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.past: dict[RunSpec, Cell] = {}
        self._made_here = False
        self._lock = FileLock(self.path / LOCK, timeout=0)
        with writing_to(self.path):
            try:
                self._lock.acquire()
            except Timeout:
                raise UsageError(f"{self.path} is being written by another process: wait for it, or end it") from None
            self._journal = journal.Journal(self.path / journal.FILE)
            # Not the files of `report`, which takes no lock.
            clear_unfinished(self.path, DESCRIPTION, RESULTS, SUMMARY, SAMPLES, CATEGORIES, ROUNDS)
        self._begun: set[RunSpec] = set()
        self._turned: set[RunSpec] = set()
        self._tables: dict[RunSpec, tuple[list[dict[str, Any]], ...]] = {}  # of ended cells: one for each file
        self._rendered = True
        self._about = About.of(self.path, read_json(self.path / DESCRIPTION))

    @classmethod
    def create(cls, parent: Path, name: str, description: Mapping[str, Any]) -> "RunFolder":
        """A new folder with run.json. UsageError if it cannot be written."""
        with writing_to(parent):
            path = make_folder(parent, name)
            replace_text(path / DESCRIPTION, json.dumps(description, indent=2, sort_keys=True) + "\n")
        folder = cls(path)
        folder._made_here = True
        return folder

    @classmethod
    def resume(cls, path: Path) -> "RunFolder":
        """The folder of an interrupted run, with the cells in its journal."""
        read_run(path)  # raises its errors before a lock file is made
        folder = cls(path)
        folder._take_up()  # the lock is held: no other process writes now
        return folder

    def _take_up(self) -> None:
        """Load the cells from the journal."""
        for cell in read_run(self.path).cells:
            self._keep(cell)
            if cell.resolved or cell.status != "skipped":  # otherwise its pair was not even loaded: it starts over
                self.past[cell.spec] = cell
                self._begun.add(cell.spec)
                self._turned |= {cell.spec} if cell.samples else set()

    def grow(self, before: int, limit: int, prompts: Mapping[str, Mapping[str, Any]]) -> None:
        """Add prompts to the cells: `prompts` has the columns about them, by current key of a cell.

        Samples stay: one journal line records that the cells continue under the new limit.
        """
        self._write({"grow": {"before": before, "limit": limit, "prompts": prompts}})
        self.past, self._tables, self._begun, self._turned = {}, {}, set(), set()
        self._take_up()
        self.render()

    def begin(self, cells: Sequence[Cell], prompts: int) -> None:
        """Record the started cells and what their names resolved to; a resumed run has them already.

        A cell whose earlier samples were dropped starts over: they were measured on another machine.
        """
        for cell in cells:
            if cell.spec in self._turned and not cell.samples:
                self._write({"anew": cell.spec.key})
                self._turned.discard(cell.spec)
                self._begun.discard(cell.spec)
            self._recorded(cell)

    def _recorded(self, cell: Cell) -> None:
        if cell.spec not in self._begun:
            self._write({"begin": begin_line(cell.spec, cell.resolved)})
            self._begun.add(cell.spec)

    def resolved(self, cells: Sequence[Cell]) -> None:
        """Record again what the names of cells resolved to; the last such line of a cell holds."""
        for cell in cells:
            self._write({"begin": begin_line(cell.spec, cell.resolved)})

    def turn(self, samples: Mapping[RunSpec, Sequence[Sample]]) -> None:
        """Append one finished turn to the journal and wait until it is on disk."""
        self._write({"turn": turn_line(samples)})
        self._turned |= set(samples)

    def end(self, cell: Cell) -> None:
        """Append how a cell ended, and render the tables with it: a later cell may run for hours, or crash."""
        self._recorded(cell)
        self._write({"end": end_line(cell)})
        self._keep(cell)
        self.render()

    def _keep(self, cell: Cell) -> None:
        rounds = [
            {"cell": cell.spec.key, **r, "prompt": clean(s.prompt, LONGEST)}
            for s in cell.samples
            for r in s.round_rows()
        ]
        self._tables[cell.spec] = ([cell.row()], cell.sample_rows(), cell.category_rows(), rounds)
        self._rendered = False

    def _write(self, line: Mapping[str, Any]) -> None:
        with writing_to(self.path):
            self._journal.append(line)

    def render(self) -> None:
        """Rewrite the tables from all ended cells; one by category if there are several."""
        rows, samples, categories, rounds = (
            [row for tables in self._tables.values() for row in tables[place]] for place in range(4)
        )
        with writing_to(self.path):
            write_csv(self.path / RESULTS, rows)
            write_csv(self.path / SUMMARY, summary(self._about.rows(rows)))
            write_csv(self.path / SAMPLES, samples)
            if categories:
                write_csv(self.path / CATEGORIES, categories)
            import pandas as pd

            if rounds:
                with replacing(self.path / ROUNDS) as temporary:
                    pd.DataFrame(rounds).to_parquet(temporary, index=False)
        self._rendered = True

    def close(self) -> None:
        """Render the tables after an interrupt and release the lock; a folder without cells is removed."""
        try:
            if not self._rendered:
                self.render()
        finally:
            self._journal.close()
            self._lock.release()
            if self._made_here and not self._begun:
                shutil.rmtree(self.path, ignore_errors=True)


def make_folder(parent: Path, name: str) -> Path:
    for attempt in range(1, 1000):
        path = parent / (name if attempt == 1 else f"{name}-{attempt}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            if not path.is_dir():
                raise
            continue
        return path
    raise UsageError(f"{parent} holds too many runs of one second; choose another --output-dir")


def writing_to(place: Path) -> AbstractContextManager[None]:
    """Convert a full disk or an unwritable folder into a UsageError of one line."""
    return writing(f"results to {place}", "choose another --output-dir")
