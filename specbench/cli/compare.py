"""`specbench compare`: is a new run worse than an old one, as an exit code for CI."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from specbench.cli import completion
from specbench.cli.options import OWN, PLAIN, Given, options
from specbench.errors import UsageError
from specbench.results.named_runs import found_run

MOST = 50.0  # percent; a larger margin would call nothing a regression
STYLE = replace(PLAIN, kind=Literal["table", "md", "json", "junit", "gha"])
QUIET = replace(OWN["quiet"], panel=None, help="Print nothing but an error.")

RUNS = completion.beginning(completion.runs)
Base = Annotated[
    Path,
    typer.Argument(
        help="Run to compare with: its folder, its name, previous, or its results.csv.", autocompletion=RUNS
    ),
]
New = Annotated[
    list[Path] | None,
    typer.Argument(
        help="The run in question, and reruns of it: all must show a regression. Required.",
        autocompletion=RUNS,
    ),
]
Reruns = Annotated[list[Path] | None, typer.Option(help="A rerun of BASE, for the second NEW, and so on. Repeatable.")]
Gates = Annotated[
    list[str] | None, typer.Option(help='Gates such as "speedup<-5%" or "latency>+10%"; they alone decide. Repeatable.')
]
Checks = Annotated[list[str] | None, typer.Option(help="Only deterministic, ratios or absolute. Repeatable.")]
Margin = Annotated[
    float | None, typer.Option(min=0, max=MOST, help="Percent a number may be worse. Default: 2.5; absolute: 5.")
]
Level = Annotated[
    float | None,
    typer.Option(
        min=80,
        max=99.99,
        help="Confidence of a regression: percent, one-sided, over all of a check. Default: 99.",
    ),
]
JUnit = Annotated[Path | None, typer.Option(help="Write JUnit XML to this file, too.")]
Gha = Annotated[Path | None, typer.Option(help="Write NEW as customBiggerIsBetter JSON to this file, too.")]


@options(..., STYLE, QUIET)
def compare(
    given: Given,
    base: Base,
    new: New = None,
    base_rerun: Reruns = None,
    fail_on: Gates = None,
    checks: Checks = None,
    margin: Margin = None,
    level: Level = None,
    junit: JUnit = None,
    gha: Gha = None,
) -> None:
    """Compare runs: exit 0 if nothing became worse, 3 on a regression, 7 where something could not be compared.

    Counts and outputs must be equal where seeds and versions are; ratios and times must be worse by more than the
    margin and by more than chance. Under GitHub Actions the table is added to the summary of the job.

    Examples:

    specbench compare results/baseline latest

    specbench compare results/baseline latest --fail-on "speedup<-5%" --junit compare.xml

    specbench compare previous latest
    """
    from specbench.jobs import compare

    if not new:
        raise UsageError(
            "give two runs, BASE and NEW; the best cell of one run is named by `specbench verdict RUN` and "
            "`specbench sweep-k`"
        )
    policy = compare.policy_of(fail_on or [], checks or [], margin, level or 99)
    output = compare.Output(given["format"], given["quiet"], junit, gha)
    bases, news = ([found_run(run) for run in runs] for runs in ([base, *(base_rerun or [])], new))
    compare.start(bases, news, policy, output)
