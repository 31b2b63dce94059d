"""Runs that a command is given, checked before their tables are believed; a bare table has nothing to be checked with.

Knows what lies in a folder, and rows by their columns; must not know what is asked of them. Loads no torch.
"""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from specbench.errors import UsageError
from specbench.files import open_text, read_whole
from specbench.wording import clean_path, unverified

DESCRIPTION = "run.json"
OF_A_RUN = (DESCRIPTION, "journal.jsonl")


@dataclass(frozen=True)
class Checked:
    """What is known of the given runs besides their tables.

    bare: the tables without a journal, as printable paths; notes: on the others; commands: the command lines that made
    them, "" where that is not known; tables: the bare ones as they were given.
    """

    bare: list[str]
    notes: list[str]
    commands: dict[Path, str]
    tables: set[Path] = field(default_factory=set)

    def tell(self) -> None:
        """One line on stderr for all bare tables, and one for each note."""
        lines = [unverified(", ".join(self.bare))] if self.bare else []
        for line in [*lines, *(f"note: {note}" for note in self.notes)]:
            typer.echo(line, err=True)


def verified(paths: Sequence[Path], *, samples: bool) -> Checked:
    """The given runs; UsageError where the tables of one are not those of its journal."""
    found = Checked([], [], {})
    for path in dict.fromkeys(paths):
        if is_bare(path):
            found.bare.append(clean_path(path))
            found.tables.add(path)
            description = beside(path)
        else:
            # it takes a moment, which bare tables need not
            from specbench.results.audit import audited, edited, unfinished

            run = audited(path, samples=samples)
            found.notes.extend([*unfinished(run), *([] if samples else edited(run, "samples.csv"))])
            description = run.description
        found.commands[path] = str(description.get("command", ""))
    return found


def is_bare(path: Path) -> bool:
    """A CSV file, or a folder with nothing else of a run."""
    return not any((path / name).exists() for name in OF_A_RUN)


def beside(table: Path) -> Mapping[str, Any]:
    """The run.json beside a bare table; empty where there is none that can be read."""
    try:
        found = json.loads(read_whole((table if table.is_dir() else table.parent) / DESCRIPTION))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def content_of(file: Path) -> tuple[list[dict[str, str]], Sequence[str]]:
    """Rows and columns of a CSV file; UsageError if it cannot be read."""
    try:
        with open_text(file, "utf-8-sig") as stream:
            reader = csv.DictReader(stream, restval="")
            return list(reader), reader.fieldnames or []
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or "not a CSV text file"
        raise UsageError(f"cannot read {file}: {reason}; give a run folder or its results.csv") from error


def read_results(path: Path, needed: Sequence[str]) -> list[tuple[str, dict[str, str]]]:
    """The rows of a run folder's results.csv, or of that file, that have all `needed` values, each with its place.

    Rows without them (failed cells, baselines) are left out, and stderr says how many. UsageError if none is usable.
    """
    file = path / "results.csv" if path.is_dir() else path
    rows, columns = content_of(file)
    if missing := [name for name in needed if name not in columns]:
        raise UsageError(f"{file} lacks the column(s) {', '.join(missing)}: give the results.csv of a specbench run")
    measured = [(f"{file}, row {n}", row) for n, row in enumerate(rows, start=1) if all(row[x].strip() for x in needed)]
    if not measured:
        raise UsageError(
            f"{file} has no row with {', '.join(needed)}: give a run in which at least one cell was measured"
        )
    if len(measured) < len(rows):
        typer.echo(f"left out {len(rows) - len(measured)} of {len(rows)} rows, without {', '.join(needed)}", err=True)
    return measured
