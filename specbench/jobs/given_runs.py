"""Runs that a reading command is given: read from their journals, with notes on stderr. Loads no torch."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from specbench.errors import UsageError
from specbench.wording import clean_path, resume_command

if TYPE_CHECKING:
    from specbench.results.reading import Run


def read_given(paths: Sequence[Path]) -> "list[Run]":
    """The runs of some folders; UsageError where one is no run, or nothing of it was measured yet."""
    from specbench.results.reading import read_run  # it takes a moment to load

    runs = {path: read_run(path) for path in dict.fromkeys(paths)}
    for path, run in runs.items():
        if not run.cells:
            raise UsageError(f"no cell of {clean_path(path)} has begun: {resume_command(path)} begins with them")
    return [runs[path] for path in paths]


def tell(runs: "Iterable[Run]") -> None:
    """A line on stderr for cells that have not ended, and for every table that was edited."""
    from specbench.results.reading import edited, unfinished

    for run in {run.path: run for run in runs}.values():
        for line in (*unfinished(run), *edited(run)):
            typer.echo(f"note: {line}", err=True)


def rows_with(run: "Run", needed: Sequence[str]) -> list[tuple[str, dict[str, str]]]:
    """The rows of a run that have all `needed` values, each with its place.

    Rows without them (failed cells, baselines) are left out, and stderr says how many. UsageError if none is usable.
    """
    rows, file = run.rows, clean_path(run.path / "results.csv")
    found = [(f"{file}, row {n}", row) for n, row in enumerate(rows, start=1) if all(row.get(x) for x in needed)]
    if not found:
        raise UsageError(
            f"{file} has no row with {', '.join(needed)}: give a run in which at least one cell was measured"
        )
    if len(found) < len(rows):
        typer.echo(f"left out {len(rows) - len(found)} of {len(rows)} rows, without {', '.join(needed)}", err=True)
    return found
