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
        help="Run folders, their names, latest, previous, or their results.csv.",
        autocompletion=completion.beginning(completion.runs),
    ),
]


Judges = Annotated[
    bool,
    typer.Option(
        "--exit-code", help="Exit with 0 on YES, 3 on NO, 7 on PROVISIONAL and UNCLEAR; of several, the worst."
    ),
]
Least = Annotated[
    float | None,
    typer.Option(
        help="Exit with 3 where the whole interval of the speedup is below this, 7 where that is not settled."
    ),
]


@options(..., STYLE, "explain")
def verdict(given: Given, runs: Runs, exit_code: Judges = False, fail_under: Least = None) -> None:
    """Say whether speculative decoding pays: YES, NO, PROVISIONAL or UNCLEAR, the best K, and what would settle it.

    Examples:

    specbench verdict latest

    specbench verdict latest --explain

    specbench verdict latest --fail-under 1.1
    """
    from specbench.jobs import verdict

    verdict.start([found_run(run) for run in runs], given["format"], given["explain"], exit_code, fail_under)
