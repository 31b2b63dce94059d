"""The body of `specbench profile`: from a finished run to a file. Loads no torch."""

from pathlib import Path

import typer

from specbench.errors import UsageError
from specbench.jobs.given_runs import read_given, rows_with, tell
from specbench.judge.predictions import profile_of_run
from specbench.replacing import replace_text
from specbench.wording import clean_path

NEEDED = ("status", "target", "dataset", "method", "k")


def start(run: Path, cell: str, output: Path | None) -> None:
    """Write the profile of a cell of the run, or print it."""
    (read,) = read_given([run])
    rows = [row for _, row in rows_with(read, NEEDED)]
    tell([read])
    found, about = profile_of_run(rows, cell)
    if output is None:
        typer.echo(found.text(**about), nl=False)
        return
    try:
        replace_text(output, found.text(**about))
    except OSError as error:
        raise UsageError(f"cannot write {clean_path(output)}: {error.strerror}; choose another --output") from None
    typer.echo(f"profile: {clean_path(output)}", err=True)
