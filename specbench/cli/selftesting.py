"""The body of `specbench selftest`: cells through the runner of every other command, and a table of what they say."""

import sys
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from rich.console import Console

from specbench.bench import plan, report
from specbench.bench import selftest as found
from specbench.bench.fitting import draw, screen
from specbench.bench.prepared import Prepared
from specbench.bench.record import RunFolder
from specbench.bench.samples import MEASURED, Cell
from specbench.cli import measuring
from specbench.cli.launch import output_of
from specbench.cli.measuring import Output
from specbench.cli.progress import Watch
from specbench.spec import BASELINE, RunSpec

CHECK = {"method": "chain", "k": [1, 2, 4], "dataset": ["code"], "limit": 4, "max_new_tokens": 48, "dtype": "float32",
         "warmup": 0}  # fmt: skip
NOISE = {"method": BASELINE, "dataset": ["code"], "limit": 20}


def selftest(given: dict[str, Any]) -> None:
    """Measure and print; raises what the exit code says: 5 where greedy output differs, 6 where a cell failed."""
    noise = given.pop("noise")
    settings = {k: v for k, v in given.items() if k not in {"quiet", "verbose"}}
    output = output_of(settings, given)
    cells = measured(plan.cells((NOISE if noise else CHECK) | settings), output)
    if noise:
        rows = [found.noise_row(cell) for cell in cells if cell.status in MEASURED]
        show(rows, found.NOISE_LINES, found.noise_notes(rows), output)
    else:
        show([found.check_row(cell) for cell in cells], found.CHECK_LINES, [], output)
    measuring.judge(cells)


def measured(specs: Sequence[RunSpec], output: Output) -> list[Cell]:
    """The cells, in a folder of their own like those of a run."""
    pair = Prepared(specs)
    err = Console(stderr=True)
    folder = RunFolder.create(output.parent, measuring.folder_name(specs), measuring.describe(specs, [pair]))
    with closing(folder), Watch(err, folder, output.quiet, pair.turns({})) as watch:
        cells, stop = measuring.measure_pair(specs, pair, folder, watch, alone=True)
    if not output.quiet:
        measuring.say(err, [f"results: {folder.path}"])
    if stop is not None:
        raise stop
    return cells


def show(rows: list[dict[str, Any]], lines: Sequence[found.Line], notes: Sequence[str], output: Output) -> None:
    """The rows on stdout, what one must know besides them on stderr."""
    if output.style in {"table", "md"}:
        grid = found.grid(rows, lines)
        if output.style == "table":
            draw(screen(), found.table(grid))
        else:
            sys.stdout.write(found.markdown(grid))
    else:
        sys.stdout.write(report.rendered(rows, output.style))
    if not output.quiet:
        measuring.say(Console(stderr=True), [f"note: {note}" for note in notes])
