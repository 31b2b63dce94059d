"""`specbench profile`: how likely every position of a draft was accepted in a run, as a file for --acceptance."""

from pathlib import Path
from typing import Annotated

import typer

from specbench.cli import completion
from specbench.cli.options import Given, options
from specbench.results.named_runs import found_run

Run = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="A run's folder, its name, latest, previous, or its results.csv.",
        autocompletion=completion.beginning(completion.runs),
    ),
]
Cell = Annotated[str, typer.Option(help="Of several cells the one to take: its key, its method, or its K (K4).")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="A JSON file. Default: stdout.")]


@options(...)
def profile_of(given: Given, run: Run, cell: Cell = "", output: Output = None) -> None:
    """Export the acceptance of a run by position, as the JSON file that --acceptance takes, with its source.

    Examples:

    specbench profile latest --output profile.json

    specbench run --acceptance profile.json
    """
    from specbench.jobs import profile

    profile.start(found_run(run), cell, output)
