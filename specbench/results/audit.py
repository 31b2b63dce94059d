"""Whether the tables of a run's folder are what its journal renders; commands that read tables refuse any others.

Knows rows and their text; must not know what a column means.
"""

import csv
import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from specbench.errors import UsageError
from specbench.results import journal
from specbench.results.cells import UNFINISHED
from specbench.results.reading import RESULTS, SAMPLES, Run, read_run, rows_of
from specbench.results.writing import csv_cell, read_csv
from specbench.wording import Row, clean, clean_path, first_line, grouped, resume_command

NEWER = ("term_update", "v_low", "v_high")  # columns that older versions left blank
CLOSE = 1e-9  # other versions of numpy and scipy, and other processors, differ in the last digits of what they compute


def audited(path: Path, *, samples: bool) -> Run:
    """A run from its folder; UsageError where results.csv, or samples.csv, is not what the journal renders."""
    check_journal(path)
    run = read_run(path)
    check_table(run, RESULTS)
    if samples:
        check_table(run, SAMPLES)
    return run


def edited(run: Run, *tables: str) -> list[str]:
    """What to know of tables that are not what the journal renders, where a command shows the journal's numbers."""
    found = []
    for name in tables:
        try:
            if (run.path / name).exists():
                check_table(run, name)
        except UsageError as error:
            found.append(f"{error}; the numbers of the journal are shown")
    return found


def check_journal(path: Path) -> None:
    """UsageError that names the table which may be given instead where there is no journal."""
    if not (path / journal.FILE).is_file():
        raise UsageError(
            f"{clean_path(path)} has no {journal.FILE}, which its tables could be checked against: give "
            f"{clean_path(path / RESULTS)} by itself to have it read unverified"
        )


def unfinished(run: Run) -> list[str]:
    """What a reader of the tables must know: that cells are not in them yet."""
    left = len(run.specs) - len(run.ended)
    if not left:
        return []
    where, all_cells = clean_path(run.path), len(run.specs)
    return [f"{where}: {left} of {all_cells} cells have not ended; {resume_command(run.path)} goes on with them"]


def read_table(run: Run, name: str) -> list[dict[str, str]]:
    """The rows of a table of the run; UsageError where there is no such table."""
    file = run.path / name
    try:
        return read_csv(file)
    except FileNotFoundError:
        raise UsageError(
            f"{clean_path(run.path)} has no {name}: the run was cut off before a cell had ended, or the "
            f"table was removed; {resume_command(run.path)} goes on and renders it"
        ) from None
    except (OSError, ValueError, csv.Error) as error:
        said = first_line(error)
        raise UsageError(
            f"{clean_path(file)} is not a CSV text file ({said}); {resume_command(run.path)} renders it anew"
        ) from error


def check_table(run: Run, name: str) -> None:
    """UsageError, naming the first difference, where results.csv or samples.csv is not what the journal renders.

    Rows of cells that have not ended may be older than the journal, as in a run that was killed twice: they, and rows
    that are not there yet, are not said to be edited.
    """
    found = read_table(run, name)
    results = found if name == RESULTS else rows_of(run.path / RESULTS)
    older = {row.get("cell", "") for row in results if row.get("status") in UNFINISHED}
    there = {*(row.get("cell", "") for row in results), *run.ended}
    ours, theirs = by_cell(rendered(run, name, there)), by_cell(found)
    for key in dict.fromkeys((*ours, *theirs)):
        rows = theirs.get(key, [])
        if said := difference(rows, ours.get(key, [])):
            stale = "it is older than the journal, or " if key in older or not rows else ""
            raise UsageError(
                f"{clean_path(run.path / name)}: {said} (cell {clean(key, 20)}): {stale}it was edited, damaged or "
                f"rendered by another version; {resume_command(run.path)} renders it anew"
            )


def rendered(run: Run, name: str, keys: Collection[str]) -> list[Row]:
    """The rows that the journal gives for some cells of a table."""
    cells = [cell for cell in run.cells if cell.spec.key in keys]
    return [cell.row() for cell in cells] if name == RESULTS else [row for cell in cells for row in cell.sample_rows()]


def by_cell(rows: Sequence[Row]) -> dict[str, list[Row]]:
    return {str(group[0].get("cell", "")): group for group in grouped(rows, lambda row: row.get("cell", ""))}


def difference(found: Sequence[Row], rendered: Sequence[Row]) -> str | None:
    """The first cell in which the rows of a table are not those of the journal, in words."""
    if len(found) != len(rendered):
        return f"{len(found)} rows where the journal gives {len(rendered)}"
    for theirs, ours in zip(found, rendered, strict=True):
        for column in dict.fromkeys((*ours, *theirs)):
            text, value = theirs.get(column, ""), ours.get(column)
            if not ((column in NEWER and text == "") or agrees(text, value)):
                return f"{clean(column)} is {clean(text)!r} where the journal gives {clean(csv_cell(value))!r}"
    return None


def agrees(text: Any, value: Any) -> bool:
    """Whether a cell of a table is a value: numbers except for their last digits, texts to the letter."""
    written = csv_cell(value)
    if isinstance(written, float):
        try:
            return math.isclose(float(text), written, rel_tol=CLOSE, abs_tol=CLOSE)
        except (TypeError, ValueError):
            return False
    return bool(text == str(written))
