"""The body of `specbench selftest`: cells through the runner of every other command, and a table of what they say."""

import sys
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from rich.console import Console

from specbench.jobs import run
from specbench.jobs.output import Output, output_of
from specbench.jobs.progress import Watch
from specbench.measure import grid
from specbench.measure.pair import Prepared
from specbench.results.cells import MEASURED, Cell
from specbench.results.folder import RunFolder
from specbench.show import run_table
from specbench.show import selftest as found
from specbench.show.fitting import draw, screen
from specbench.spec import BASELINE, RunSpec

CHECK = {"method": "chain", "k": [1, 2, 4], "dataset": ["code"], "limit": 4, "max_new_tokens": 48, "dtype": "float32",
         "warmup": 0}  # fmt: skip
NOISE = {"method": BASELINE, "dataset": ["code"], "limit": 20}


def selftest(given: dict[str, Any]) -> None:
    """Measure and print; raises what the exit code says: 5 where greedy output differs, 6 where a cell failed."""
    noise = given.pop("noise")
    settings = {k: v for k, v in given.items() if k not in {"quiet", "verbose"}}
    output = output_of(settings, given)
    cells = measured(grid.cells((NOISE if noise else CHECK) | settings), output)
    if noise:
        rows = [found.noise_row(cell) for cell in cells if cell.status in MEASURED]
        show(rows, found.NOISE_LINES, found.noise_notes(rows), output)
    else:
        show([found.check_row(cell) for cell in cells], found.CHECK_LINES, [], output)
    run.judge(cells)


def measured(specs: Sequence[RunSpec], output: Output) -> list[Cell]:
    """The cells, in a folder of their own like those of a run."""
    pair = Prepared(specs)
    err = Console(stderr=True)
    folder = RunFolder.create(output.parent, run.folder_name(specs), run.describe(specs, [pair]))
    with closing(folder), Watch(err, folder, output.quiet, pair.turns({})) as watch:
        cells, stop = run.measure_pair(specs, pair, folder, watch, alone=True)
    if not output.quiet:
        run.say(err, [f"results: {folder.path}"])
    if stop is not None:
        raise stop
    return cells


def show(rows: list[dict[str, Any]], lines: Sequence[found.Line], notes: Sequence[str], output: Output) -> None:
    """The rows on stdout, what one must know besides them on stderr."""
    if output.style in {"table", "md"}:
        lined = found.grid(rows, lines)
        if output.style == "table":
            draw(screen(), found.table(lined))
        else:
            sys.stdout.write(found.markdown(lined))
    else:
        sys.stdout.write(run_table.rendered(rows, output.style))
    if not output.quiet:
        run.say(Console(stderr=True), [f"note: {note}" for note in notes])
