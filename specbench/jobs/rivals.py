"""The body of `specbench compare RUN`: the cells of one run against each other. Loads no torch."""

from collections.abc import Sequence
from pathlib import Path

import typer

from specbench.errors import UsageError
from specbench.jobs.given_runs import verified
from specbench.judge.compare_input import read_records
from specbench.judge.rivals import duels
from specbench.show.fitting import draw, screen
from specbench.show.rivals_table import as_json, rivals_tables

CONFIDENCE = 0.95
STYLES = ("table", "md", "json")


def start(run: Path, cells: Sequence[str], style: str, quiet: bool, confidence: float = CONFIDENCE) -> None:
    """Print every cell against the fastest of its question, or the chosen ones against the first of them."""
    if style not in STYLES:
        raise UsageError(f"--format {style} is of two runs: give NEW as well, or --format {', '.join(STYLES)}")
    checked = verified([run], samples=True)
    found = duels(read_records(run), cells, confidence)
    if quiet:
        return
    checked.tell()
    if style == "json":
        typer.echo(as_json(found), nl=False)
        return
    for table in rivals_tables(found, confidence):
        if style == "md":
            typer.echo(table.markdown())
        else:
            draw(screen(), table.drawn())
