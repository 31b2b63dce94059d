"""`specbench report`: runs as one HTML file to look at, offline. Needs no model."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from specbench.cli import completion
from specbench.cli.options import OWN, Given, options
from specbench.errors import UsageError
from specbench.results.named_runs import found_run
from specbench.wording import clean

FILE = replace(OWN["output"], panel=None, help="The file. Default: report.html in the first folder.")


@options(..., FILE)
def report(
    given: Given,
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Run folders, or folders of calibrate or design-draft.",
            autocompletion=completion.beginning(completion.runs),
        ),
    ],
    png: Annotated[
        bool, typer.Option("--png/--no-png", help="Write the figures as plots/*.png beside it, too.")
    ] = True,
    svg: Annotated[bool, typer.Option("--svg", help="Write them as SVG, too.")] = False,
    pdf: Annotated[bool, typer.Option("--pdf", help="Write them as PDF, too.")] = False,
    show: Annotated[bool, typer.Option("--open/--no-open", help="Open it in the browser.")] = False,
) -> None:
    """Write one HTML file on finished runs: the answer, every number, the figures. No network.

    Two runs stand beside each other with what was different, every number of both, and the tests of compare.

    Examples:

    specbench report latest

    specbench report latest --svg --pdf --output answer.html

    specbench report results/baseline latest
    """
    output = given.get("output")
    if output is not None and output.is_dir():
        raise UsageError(f"--output {output} is a folder: name a file in it, such as {output / 'report.html'}")
    from specbench.show.report.page import write_report

    def note(line: str) -> None:
        typer.echo(f"note: {line}", err=True)

    file = write_report([found_run(run) for run in runs], output, png=png, svg=svg, pdf=pdf, note=note)
    typer.echo(clean(file, 4096))
    if show:
        typer.launch(file.resolve().as_uri())
