"""The body of `specbench selftest`: cells through the runner of every other command, and a table of what they say."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from specbench.jobs import run
from specbench.jobs.output import Output, say
from specbench.measure import grid
from specbench.results.cells import MEASURED
from specbench.show import run_output
from specbench.show import selftest as found
from specbench.show.fitting import draw, screen
from specbench.spec import BASELINE

CHECK = {"method": "chain", "k": [1, 2, 4], "dataset": ["code"], "limit": 4, "max_new_tokens": 48, "dtype": "float32",
         "warmup": 0}  # fmt: skip
NOISE = {"method": BASELINE, "dataset": ["code"], "limit": 20}


def start(settings: Mapping[str, Any], noise: bool, output: Output) -> None:
    """Measure and print; raises what the exit code says: 5 where greedy output differs, 6 where a cell failed."""
    done = run.record(grid.cells({**(NOISE if noise else CHECK), **settings}), output)
    run.say_where(done, output)
    if noise:
        rows = [found.noise_row(cell) for cell in done.cells if cell.status in MEASURED]
        print_found(rows, found.NOISE_LINES, found.noise_notes(rows), output)
    else:
        print_found([found.check_row(cell) for cell in done.cells], found.CHECK_LINES, [], output)
    run.raise_for_status(done.cells)


def print_found(rows: list[dict[str, Any]], lines: Sequence[found.Line], notes: Sequence[str], output: Output) -> None:
    """The rows on stdout, and what a reader must know about them on stderr."""
    if output.style in {"table", "md"}:
        lined = found.grid(rows, lines)
        if output.style == "table":
            draw(screen(), found.table(lined))
        else:
            sys.stdout.write(found.markdown(lined))
    else:
        sys.stdout.write(run_output.rendered(rows, output.style))
    if not output.quiet:
        say(Console(stderr=True), [f"note: {note}" for note in notes])
