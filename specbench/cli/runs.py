"""`specbench list`: the runs that there are, by name. Needs no model."""

from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.options import PLAIN, Given, options
from specbench.results.named_runs import USUAL

Parent = Annotated[Path, typer.Argument(help="The folder that holds the runs.")]


@options(..., PLAIN)
def runs(given: Given, parent: Parent = USUAL) -> None:
    """List the runs of a folder: the name that other commands take, what was measured, and the answer.

    Examples:

    specbench list

    specbench list results --format json
    """
    from specbench.jobs import runs

    runs.start(parent, given["format"])
