"""`specbench verdict`: the answer of finished runs in a few sentences. Needs no model."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from specbench.cli import completion
from specbench.cli.options import PLAIN, Given, options
from specbench.results.named_runs import found_run

STYLE = replace(PLAIN, kind=Literal["table", "json", "md"], help="table (sentences), json or md on stdout.")
Runs = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN...",
        help="Run folders, their names, latest, or their results.csv.",
        autocompletion=completion.beginning(completion.runs),
    ),
]


@options(..., STYLE, "explain")
def verdict(given: Given, runs: Runs) -> None:
    """Say whether speculative decoding pays: YES, NO, PROVISIONAL or UNCLEAR, the best K, and what would settle it.

    Examples:

    specbench verdict latest

    specbench verdict latest --explain
    """
    from specbench.jobs import verdict

    verdict.start([found_run(run) for run in runs], given["format"], given["explain"])
