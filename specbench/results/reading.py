"""Read a run from its folder: run.json and the journal, refused if they contradict each other."""

import csv
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from specbench.errors import UsageError
from specbench.files import read_whole
from specbench.results import journal
from specbench.results.cells import MEASURED, UNFINISHED, Cell
from specbench.results.documents import LOSSY, failed_audits, fault_of
from specbench.results.journal import cell_of, samples_of
from specbench.results.named_runs import as_text, read_csv
from specbench.results.samples import Sample
from specbench.spec import SCHEMA_VERSION, RunSpec
from specbench.wording import Row, clean, clean_path, first_line, resume_command

DESCRIPTION, RESULTS, SAMPLES, CATEGORIES = "run.json", "results.csv", "samples.csv", "categories.csv"
CLOSE = 1e-9  # last digits differ between processors and versions of numpy and scipy
DAMAGE = (KeyError, TypeError, ValueError, AttributeError, OverflowError, IndexError)  # errors of invalid lines


@dataclass(frozen=True)
class Run:
    """A run: the requested cells, and those that have begun.

    ended: the keys of the cells whose end is in the journal. limits: earlier limits of an extended run, oldest first.
    """

    path: Path
    description: dict[str, Any]
    specs: Sequence[RunSpec]
    cells: Sequence[Cell]
    ended: frozenset[str]
    limits: Sequence[int | None] = ()

    @cached_property
    def judged(self) -> list[Cell]:
        """The cells, without numbers where an audit failed."""
        return audited_cells(self.cells, self.path)

    @cached_property
    def table(self) -> list[dict[str, str]]:
        """The rows of results.csv, as text."""
        return as_text([cell.row() for cell in self.cells])

    @cached_property
    def rows(self) -> list[dict[str, str]]:
        """The same, without numbers where an audit failed."""
        kept = all(one is cell for one, cell in zip(self.judged, self.cells, strict=True))
        return self.table if kept else as_text([cell.row() for cell in self.judged])

    @cached_property
    def samples(self) -> list[list[dict[str, Any]]]:
        """The rows of samples.csv, by cell."""
        return [cell.sample_rows() for cell in self.cells]


def audited_cells(cells: Sequence[Cell], run: Path) -> list[Cell]:
    """The cells of a run; those of a deployment that is NOT LOSSLESS by an audit next to the run have no numbers."""
    failed = failed_audits(run.resolve().parent)
    lines = [fault_of({**cell.spec.model_dump(mode="json"), **cell.resolved}, failed) for cell in cells]
    return [replace(cell, status=LOSSY, error=line) if line and cell.status in MEASURED else cell
            for cell, line in zip(cells, lines, strict=True)]  # fmt: skip


def read_run(path: Path) -> Run:
    """Read a run from its folder. UsageError if it is not a run, damaged, impossible, or has other columns."""
    description = read_description(path)
    specs = specs_in(description, path)
    state = JournalState()
    for number, line in enumerate(journal.read_bodies(path / journal.FILE), start=1):
        try:
            state.add(line)
        except DAMAGE as error:
            wrong = f"a line that this specbench did not write ({first_line(error)})"
            raise UsageError(f"{path / journal.FILE}:{number}: {wrong}: start a new run") from error
    limits = [one["before"] for one in state.grown]
    if state.grown:
        specs = [spec.with_(limit=state.grown[-1]["limit"]) for spec in specs]
    run = Run(path, description, specs, state.cells(), frozenset(state.ended), limits)
    listed = set(specs)
    if foreign := [cell.spec.key for cell in run.cells if cell.spec not in listed]:
        raise UsageError(
            f"{path / journal.FILE} has cell {foreign[0]}, which {DESCRIPTION} does not list: one of them is not "
            "of this run; start a new run"
        )
    check_lost(run, state.former)
    return run


def read_description(path: Path) -> dict[str, Any]:
    """The content of run.json."""
    try:
        description = json.loads(read_whole(path / DESCRIPTION))
        version = description["schema_version"]
    except OSError as error:
        raise UsageError(
            f"{clean_path(path)} is not the folder of a run ({DESCRIPTION}: {error.strerror}): give the folder of a "
            "specbench run, its name, or the results.csv in it"
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"{path / DESCRIPTION} is not a description of a run: {first_line(error)}") from error
    if version != SCHEMA_VERSION:
        raise UsageError(
            f"{path} was written with schema_version {clean(str(version), 20)}, this specbench reads and writes "
            f"{SCHEMA_VERSION}: measure it again, or use the specbench that wrote it"
        )
    return dict(description)


def specs_in(description: Mapping[str, Any], path: Path) -> list[RunSpec]:
    try:
        if not (specs := [RunSpec(**spec) for spec in description["specs"]]):
            raise ValueError("it lists no cells")
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path / DESCRIPTION} is damaged ({first_line(error)}): start a new run") from error
    return specs


@dataclass
class JournalState:
    """The state after some lines of a journal, by the keys of the cells."""

    begun: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    turns: dict[str, list[Sequence[Sample]]] = field(default_factory=dict)
    ended: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    grown: list[Mapping[str, Any]] = field(default_factory=list)
    former: set[str] = field(default_factory=set)  # keys of cells before prompts were added

    def add(self, line: Mapping[str, Any]) -> None:
        """Apply a line; raises one of `DAMAGE` if it is invalid or cannot follow the lines before it."""
        if "begin" in line:
            key = RunSpec(**line["begin"]["spec"]).key
            self.begun[key] = line["begin"]
            self.turns.setdefault(key, [])
        elif "turn" in line:
            for key, samples in samples_of(line["turn"]).items():
                self.of(key).append(samples)
        elif "anew" in line:
            self.of(line["anew"]).clear()
        elif "grow" in line:
            self.grow(line["grow"])
        else:
            key = line["end"]["cell"]
            cell_of(self.begun[key], self.of(key), line["end"])
            self.ended[key] = line["end"]

    def grow(self, line: Mapping[str, Any]) -> None:
        """Change the limit, and so the key, of every cell; completed cells continue."""
        if type(line["limit"]) is not int or type(line["before"]) is not int:
            raise TypeError("limits that are not numbers")
        begun, turns, ended = self.begun, self.turns, self.ended
        self.begun, self.turns, self.ended = {}, {}, {}
        for key, old in begun.items():
            spec = RunSpec(**old["spec"]).with_(limit=line["limit"])
            resolved = {**old["resolved"], **line["prompts"].get(key, {})}
            self.begun[spec.key] = {"spec": spec.model_dump(mode="json"), "resolved": resolved}
            self.turns[spec.key] = turns[key]
            if key in ended and ended[key]["status"] != "ok":
                self.ended[spec.key] = {**ended[key], "cell": spec.key}
        self.grown.append({"before": line["before"], "limit": line["limit"]})
        self.former |= set(begun)

    def of(self, key: str) -> list[Sequence[Sample]]:
        """The turns of a started, unfinished cell."""
        if key not in self.turns:
            raise ValueError(f"cell {key} has not begun")
        if key in self.ended and self.ended[key]["status"] not in UNFINISHED:
            raise ValueError(f"cell {key} has ended before")
        return self.turns[key]

    def cells(self) -> list[Cell]:
        return [cell_of(line, self.turns[key], self.ended.get(key)) for key, line in self.begun.items()]


def check_lost(run: Run, former: Collection[str]) -> None:
    """Raise UsageError if results.csv, written after the journal, has more than the journal.

    A run that was killed while prompts were added has rows of `former` cells.
    """
    begun = {cell.spec.key for cell in run.cells}
    for row in rows_of(run.path / RESULTS):
        key, status = row.get("cell", ""), row.get("status", "")
        if key in former and key not in begun:
            continue
        if key and (key not in begun or (key not in run.ended and status not in UNFINISHED)):
            raise UsageError(
                f"{run.path / journal.FILE} has lost lines: {RESULTS} lists cell {clean(key, 20)} as "
                f"{clean(status, 20)}, {'the end of ' * (key in begun)}which the journal does not have; start a new run"
            )


def unfinished(run: Run) -> list[str]:
    """A sentence if some cells are not included in the numbers yet."""
    left, where = len(run.specs) - len(run.ended), clean_path(run.path)
    said = f"{where}: {left} of {len(run.specs)} cells have not ended; {resume_command(run.path)} continues them"
    return [said] if left else []


def edited(run: Run) -> list[str]:
    """A sentence for each table of a finished run that differs from the journal: no command reads it."""
    if unfinished(run):
        return []
    tables = {RESULTS: run.table, SAMPLES: as_text([row for rows in run.samples for row in rows])}
    return [
        f"{clean_path(run.path / name)} was edited, damaged or rendered by another version: it is not read, the "
        f"numbers are those of {journal.FILE}"
        for name, rows in tables.items()
        if (run.path / name).exists() and not same_rows(rows_of(run.path / name), rows)
    ]


def same_rows(found: Sequence[Row], rendered: Sequence[Row]) -> bool:
    """Whether all values are equal: texts exactly, numbers up to their last digits."""
    return len(found) == len(rendered) and all(
        same_text(theirs.get(name, ""), ours.get(name, ""))
        for theirs, ours in zip(found, rendered, strict=True)
        for name in {**theirs, **ours}
    )


def same_text(one: str, other: str) -> bool:
    try:
        return one == other or math.isclose(float(one), float(other), rel_tol=CLOSE, abs_tol=CLOSE)
    except ValueError:
        return False


def rows_of(table: Path) -> list[dict[str, str]]:
    """The rows of a table; empty if unreadable."""
    try:
        return read_csv(table)
    except (OSError, ValueError, csv.Error):
        return []
