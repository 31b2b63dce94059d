"""The body of `specbench calibrate`: from settings to a result folder and printed tables."""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from specbench.backends.base import networks_of
from specbench.backends.choose import backend_for
from specbench.files import replace_text
from specbench.jobs import run
from specbench.jobs.output import Output, say
from specbench.jobs.progress import load
from specbench.jobs.run import described, folder_name
from specbench.measure import grid
from specbench.measure.calibrate import calibrate, fitting
from specbench.measure.pair import resolved_pair
from specbench.results import folder
from specbench.results.calibration import Calibration
from specbench.results.cells import MEASURED, raise_for_status
from specbench.results.folder import make_folder
from specbench.results.named_runs import write_csv
from specbench.show import documents, run_output
from specbench.show.documents import calibration_tables
from specbench.show.fitting import draw, screen
from specbench.spec import BASELINE


def start_calibrate(
    settings: Mapping[str, Any], widths: Sequence[int], contexts: Sequence[int], repeat: int, output: Output
) -> None:
    """Measure a pair, write its folder and print the results."""
    (spec,) = grid.cells({**settings, "dataset": "none"})
    err = Console(stderr=True, quiet=output.quiet)
    backend = backend_for([spec])
    networks = networks_of(backend, "a calibration")
    lengths = fitting(contexts, max(widths), networks)
    load(backend, spec, max(lengths), err)
    if lengths != list(contexts):
        say(err, [f"note: contexts {join(lengths)}: these models hold {backend.context} tokens"])
    asked = {"widths": list(widths), "contexts": lengths, "repeat": repeat}
    # before anything is measured
    about = {"kind": "calibration", "calibration": asked, "resolved": resolved_pair(backend)}
    description = described([spec], backend.device, **about)
    with folder.writing_to(output.parent):
        made = make_folder(output.parent, folder_name(spec, "calibrate"))
        replace_text(made / "run.json", json.dumps(description, indent=2, sort_keys=True) + "\n")
    found = calibrate(
        networks, lengths, widths, repeat, spec.seed, spec=spec,
        watch=lambda length: say(err, [f"context {length}: timing {len(widths)} widths {repeat} times …"]),
    )  # fmt: skip
    with folder.writing_to(made):
        write_csv(made / "calibration.csv", found.rows())
        replace_text(made / "calibration.json", json.dumps(found.document(), indent=2) + "\n")
    print_calibration(found, output.style)
    say(err, [f"results: {made}"])


def join(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def print_calibration(found: Calibration, style: str) -> None:
    """Print as `style`: points as csv or jsonl, everything as json, tables for readers."""
    if style in ("csv", "jsonl"):
        sys.stdout.write(run_output.rendered(found.rows(), style))
    elif style == "json":
        sys.stdout.write(json.dumps(found.document(), indent=2) + "\n")
    elif style == "md":
        sys.stdout.write("\n".join(table.markdown(str) for table in calibration_tables(found)))
    else:
        for table in calibration_tables(found):
            table.print()


# --- noise ------------------------------------------------------------------------------------------------------------
# The body of `specbench noise`: cells through the common runner, and a table of the results.

NOISE = {"method": BASELINE, "dataset": ["code"], "limit": 20}


def start_noise(settings: Mapping[str, Any], output: Output) -> None:
    """Measure and print; exit code 6 if a cell failed."""
    done = run.record(grid.cells({**NOISE, **settings}), output.parent, run.Terminal(output))
    run.say_where(done, output)
    rows = [documents.noise_row(cell) for cell in done.cells if cell.status in MEASURED]
    print_found(rows, documents.noise_notes(rows), output)
    raise_for_status(done.cells)


def print_found(rows: list[dict[str, Any]], notes: Sequence[str], output: Output) -> None:
    """Print the rows on stdout and the notes on stderr."""
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
