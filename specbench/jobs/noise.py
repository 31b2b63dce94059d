"""The body of `specbench noise`: cells through the runner of every other command, and a table of what they say."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from specbench.jobs import run
from specbench.jobs.output import Output, say
from specbench.measure import grid
from specbench.results.cells import MEASURED, raise_for_status
from specbench.show import documents, run_output
from specbench.show.fitting import draw, screen
from specbench.spec import BASELINE

NOISE = {"method": BASELINE, "dataset": ["code"], "limit": 20}


def start(settings: Mapping[str, Any], output: Output) -> None:
    """Measure and print; raises 6 where a cell failed."""
    done = run.record(grid.cells({**NOISE, **settings}), output.parent, run.Terminal(output))
    run.say_where(done, output)
    rows = [documents.noise_row(cell) for cell in done.cells if cell.status in MEASURED]
    print_found(rows, documents.noise_notes(rows), output)
    raise_for_status(done.cells)


def print_found(rows: list[dict[str, Any]], notes: Sequence[str], output: Output) -> None:
    """The rows on stdout, and what a reader must know about them on stderr."""
    if output.style in {"table", "md"}:
        lined = documents.noise_grid(rows)
        if output.style == "table":
            draw(screen(), documents.noise_table(lined))
        else:
            sys.stdout.write(documents.noise_markdown(lined))
    else:
        sys.stdout.write(run_output.rendered(rows, output.style))
    if not output.quiet:
        say(Console(stderr=True), [f"note: {note}" for note in notes])
