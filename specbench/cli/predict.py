"""`specbench predict`: the formulas as tables, for given alpha and c or beside what a run measured.

Must not load torch, transformers, datasets or pandas: the command answers at once.
"""

from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.options import PLAIN, Given, options
from specbench.errors import UsageError
from specbench.jobs import predict as job
from specbench.jobs.parsing import parse_k_list
from specbench.results.named_runs import found_run

DEFAULT_KS = "1-12"

Alphas = Annotated[list[float] | None, typer.Option(help="Acceptance of a tested token, 0 to 1. Repeatable.")]
Cs = Annotated[list[float] | None, typer.Option(help="Seconds per draft token ÷ target step. Repeatable.")]
CRounds = Annotated[
    list[float] | None,
    typer.Option(help="In the place of --c: seconds of a round's drafts ÷ target step, where one pass makes them."),
]
CHat = Annotated[float | None, typer.Option(help="The ratio --c, or --c-round, in operations (default: the same).")]
Ks = Annotated[str | None, typer.Option(help=f"Lookahead K: 4, 1,2,4, 1-12, 1-16+3 (default {DEFAULT_KS}).")]
Run = Annotated[Path | None, typer.Option(help="Run folder or results.csv: predict its cells.")]


@options(..., PLAIN)
def predict(
    given: Given,
    alpha: Alphas = None,
    c: Cs = None,
    c_round: CRounds = None,
    c_hat: CHat = None,
    k: Ks = None,
    from_run: Run = None,
) -> None:
    """Predict tokens per round, speedup and operations from alpha, c and K, without running a model.

    Tables are rounded to 3 decimals (not truncated, as in some tutorials); csv, json and jsonl carry full precision.
    """
    if from_run is not None:
        if any(option is not None for option in (alpha, c, c_round, c_hat, k)):
            raise UsageError(
                "--from-run takes alpha, c and K from the run: leave out --alpha, --c, --c-round, --c-hat and --k"
            )
        job.from_run(found_run(from_run), given["format"])
        return
    if not alpha or not (c or c_round):
        raise UsageError(
            "nothing to predict from: give --alpha and --c (such as 0.7 and 0.1) or --c-round, or --from-run RUN"
        )
    job.from_rates(alpha, c or [], c_round or [], c_hat, parse_k_list(DEFAULT_KS if k is None else k), given["format"])
