"""`specbench predict`: the formulas as tables, for given alpha and c or beside what a run measured.

Must not load torch, transformers, datasets or pandas: the command answers at once.
"""

from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.options import PLAIN, Given, options
from specbench.errors import UsageError
from specbench.jobs import predict as job
from specbench.jobs import while_verifying
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
Parallel = Annotated[
    bool, typer.Option("--parallel", help="With the draft at work on a second device while the target verifies.")
]
Verify = Annotated[float | None, typer.Option("--v", help="With --parallel: verify pass ÷ target step (default 1).")]
Hit = Annotated[
    float | None,
    typer.Option(help="With --parallel: share of rounds for whose text the draft is there already (default α^(K+1))."),
]
Traces = Annotated[
    list[Path] | None,
    typer.Option("--trace", help="With --parallel: count tokens and hits in what trace --output wrote. Repeatable."),
]


@options(..., PLAIN)
def predict(
    given: Given,
    alpha: Alphas = None,
    c: Cs = None,
    c_round: CRounds = None,
    c_hat: CHat = None,
    k: Ks = None,
    from_run: Run = None,
    parallel: Parallel = False,
    v: Verify = None,
    hit: Hit = None,
    trace: Traces = None,
) -> None:
    """Predict tokens per round, speedup and operations from alpha, c and K, without running a model.

    Tables are rounded to 3 decimals (not truncated, as in some tutorials); csv, json and jsonl carry full precision.
    """
    style = given["format"]
    check_parallel(parallel, c_hat=c_hat, v=v, hit=hit, trace=trace)
    if from_run is not None:
        if any(option is not None for option in (alpha, c, c_round, c_hat, k, v)):
            raise UsageError(
                "--from-run takes alpha, c and K from the run: leave out --alpha, --c, --c-round, --c-hat, --k and --v"
            )
        run = found_run(from_run)
        while_verifying.from_run(run, hit, trace or [], style) if parallel else job.from_run(run, style)
        return
    costs = [*((one, False) for one in c or []), *((one, True) for one in c_round or [])]
    if trace and costs:
        if any(option is not None for option in (alpha, k)):
            raise UsageError("--trace counts tokens and hits for the K of the traces: leave out --alpha and --k")
        while_verifying.from_traces(trace, costs, 1.0 if v is None else v, style)
        return
    if not alpha or not costs:
        raise UsageError(
            "nothing to predict from: give --alpha and --c (such as 0.7 and 0.1) or --c-round, or --from-run RUN"
        )
    ks = parse_k_list(DEFAULT_KS if k is None else k)
    if parallel:
        while_verifying.from_rates(alpha, costs, ks, 1.0 if v is None else v, hit, style)
    else:
        job.from_rates(alpha, costs, c_hat, ks, style)


def check_parallel(parallel: bool, *, c_hat: object, v: object, hit: object, trace: object) -> None:
    """UsageError for options that say nothing without --parallel, or nothing with it."""
    if not parallel and any(option is not None for option in (v, hit, trace)):
        raise UsageError("--v, --hit and --trace are of drafting while verifying: add --parallel, or leave them out")
    if parallel and c_hat is not None:
        raise UsageError("--parallel predicts no operations: leave out --c-hat")
    if hit is not None and trace is not None:
        raise UsageError("--trace counts the share of hits: leave out --hit")
