"""`specbench compare`: is a new run worse than an old one, as an exit code for CI."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from specbench.cli.options import OWN, PLAIN, Given, options

MOST = 50.0  # percent; a larger margin would call nothing a regression
STYLE = replace(PLAIN, kind=Literal["table", "md", "json", "junit", "gha"])
QUIET = replace(OWN["quiet"], panel=None, help="Print nothing but an error.")

Base = Annotated[Path, typer.Argument(help="Run folder or results.csv to compare with.")]
New = Annotated[list[Path], typer.Argument(help="The run in question, and reruns of it: all must show a regression.")]
Reruns = Annotated[list[Path] | None, typer.Option(help="A rerun of BASE, for the second NEW, and so on. Repeatable.")]
Gates = Annotated[
    list[str] | None, typer.Option(help='Gates such as "speedup<-5%" or "c>+10%"; they alone decide. Repeatable.')
]
Checks = Annotated[list[str] | None, typer.Option(help="Only deterministic, ratios or absolute. Repeatable.")]
Margin = Annotated[
    float | None, typer.Option(min=0, max=MOST, help="Percent a number may be worse. Default: 2.5; absolute: 5.")
]
Level = Annotated[
    float, typer.Option(min=80, max=99.99, help="Confidence of a regression: percent, one-sided, over all of a check.")
]
JUnit = Annotated[Path | None, typer.Option(help="Write JUnit XML to this file, too.")]
Gha = Annotated[Path | None, typer.Option(help="Write NEW as customBiggerIsBetter JSON to this file, too.")]


@options(..., STYLE, QUIET)
def compare(
    given: Given,
    base: Base,
    new: New,
    base_rerun: Reruns = None,
    fail_on: Gates = None,
    checks: Checks = None,
    margin: Margin = None,
    level: Level = 99,
    junit: JUnit = None,
    gha: Gha = None,
) -> None:
    """Compare runs: exit 0 if nothing became worse, 3 on a regression, 7 where something could not be compared.

    Counts and outputs must be equal where seeds and versions are; ratios and times must be worse by more than the
    margin and by more than chance. Under GitHub Actions the table is added to the summary of the job.
    """
    from specbench.jobs import compare

    policy = compare.policy_of(fail_on or [], checks or [], margin, level)
    output = compare.Output(given["format"], given["quiet"], junit, gha)
    compare.start([base, *(base_rerun or [])], new, policy, output)
