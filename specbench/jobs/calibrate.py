"""The body of `specbench calibrate`: from settings to a folder and printed tables. May import torch."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from specbench.backends.base import Backend, networks_of
from specbench.backends.choose import backend_for
from specbench.jobs.output import Output
from specbench.jobs.run import say
from specbench.measure import grid
from specbench.measure.calibrate import calibrate, fitting
from specbench.measure.pair import resolved_pair
from specbench.results import folder
from specbench.results.calibration import Calibration
from specbench.results.environment import command_line, environment, now
from specbench.results.folder import make_folder
from specbench.results.writing import replace_text, write_csv
from specbench.show import run_output
from specbench.show.records import print_numbers
from specbench.spec import SCHEMA_VERSION, RunSpec


@dataclass(frozen=True)
class Table:
    """A table ready to print: text only."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]
    together: int = 1  # columns of a length of the context, which stay beside each other


def start(
    settings: Mapping[str, Any], widths: Sequence[int], contexts: Sequence[int], repeat: int, output: Output
) -> None:
    """Measure a pair, write its folder and print what was found."""
    (spec,) = grid.cells({**settings, "dataset": "none"})
    err = Console(stderr=True, quiet=output.quiet)
    backend = backend_for([spec])
    networks = networks_of(backend, "a calibration")
    lengths = fitting(contexts, max(widths), networks)
    backend.load()
    say(err, [f"note: {warning}" for warning in backend.warnings])
    if lengths != list(contexts):
        say(err, [f"note: contexts {join(lengths)}: these models hold {backend.context} tokens"])
    asked = {"widths": list(widths), "contexts": lengths, "repeat": repeat}
    folder = begin(spec, backend, asked, output.parent)
    found = calibrate(
        networks, lengths, widths, repeat, spec.seed, spec=spec,
        watch=lambda length: say(err, [f"context {length}: timing {len(widths)} widths {repeat} times …"]),
    )  # fmt: skip
    end(folder, found)
    show(found, output.style)
    say(err, [f"results: {folder}"])


def join(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def begin(spec: RunSpec, backend: Backend, asked: Mapping[str, Any], parent: Path) -> Path:
    """The folder with run.json in it, before anything is measured."""
    description = {
        "schema_version": SCHEMA_VERSION,
        "kind": "calibration",
        "started": now(),
        "command": command_line(),
        "calibration": asked,
        "specs": [spec.model_dump(mode="json")],
        "environment": environment(backend.device),
        "resolved": resolved_pair(backend),
    }
    name = f"{now()}_calibrate_{folder.slug(spec.target)}_{folder.slug(spec.draft or 'none')}"
    with folder.writing_to(parent):
        made = make_folder(parent, name)
        replace_text(made / "run.json", json.dumps(description, indent=2, sort_keys=True) + "\n")
    return made


def end(made: Path, found: Calibration) -> None:
    """The two tables of the folder."""
    with folder.writing_to(made):
        write_csv(made / "calibration.csv", found.rows())
        replace_text(made / "calibration.json", json.dumps(found.document(), indent=2) + "\n")


def show(found: Calibration, style: str) -> None:
    """Print as `style`: points as csv or jsonl, everything as json, tables for readers."""
    if style in ("csv", "jsonl"):
        sys.stdout.write(run_output.rendered(found.rows(), style))
    elif style == "json":
        sys.stdout.write(json.dumps(found.document(), indent=2) + "\n")
    elif style == "md":
        sys.stdout.write("\n".join(map(markdown, tables(found))))
    else:
        for table in tables(found):
            print_numbers(table.title, table.header, table.rows, together=table.together)


def markdown(table: Table) -> str:
    lines = [table.header, ("---:",) * len(table.header), *table.rows]
    return f"**{table.title}**\n\n" + "".join("| " + " | ".join(line) + " |\n" for line in lines)


def tables(found: Calibration) -> list[Table]:
    """Passes by width, the costs of a round, and the K to choose; one or a few columns per length of the context."""
    return [passes(found), costs(found), choices(found)]


def passes(found: Calibration) -> Table:
    header = ["tokens"]
    for level in found.contexts:
        header += [f"ms at {level.context}", "quartiles", "v"]
    rows = [
        (str(points[0].width), *(t for p in points for t in (ms(p.milliseconds), f"{ms(p.low)}–{ms(p.high)}", n(p.v))))
        for points in zip(*(level.target for level in found.contexts), strict=True)
    ]
    title = "One pass of the target over so many tokens, by length of the context (v: ÷ one token)"
    return Table(title, tuple(header), rows, together=3)


def costs(found: Calibration) -> Table:
    header = ("context", "baseline step ms", "first drafted ms", "later ms", "c first", "c later", "overhead",
              "free width", "break-even α")  # fmt: skip
    rows = []
    for level in found.contexts:
        context, step, first, later, *shares, free, even = level.summary().values()
        times = (ms(step), ms(first), ms(later))
        rows.append((str(context), *times, *map(n, shares), str(free), "none" if even is None else n(even)))
    return Table("What a round costs; passes up to the free width cost at most 1.10 × one token", header, rows)


def choices(found: Calibration) -> Table:
    header = ["α"]
    for level in found.contexts:
        header += [f"best K at {level.context}", "within 1 %", "speedup"]
    rows = [
        (f"{at[0]['alpha']:g}", *(t for c in at for t in (str(c["best_k"]), c["near_best"], f"{c['speedup']:.2f}×")))
        for at in zip(*(level.choices() for level in found.contexts), strict=True)
    ]
    return Table("The K to choose for an acceptance α, with these costs", tuple(header), rows, together=3)


def ms(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def n(value: float) -> str:
    return f"{value:.3f}"
