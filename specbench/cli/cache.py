"""`specbench cache`: what compiled rounds leave on disk, and how it is deleted."""

from typing import Annotated

import typer

from specbench.cli.options import PLAIN, Given, options
from specbench.models.execution.regions.folder import BOUND, clear, files_of, place, size_of
from specbench.show.records import print_records
from specbench.wording import gigabytes

Clear = Annotated[bool, typer.Option("--clear", help="Delete it; later runs compile anew.")]


@options(..., PLAIN)
def cache(given: Given, clear_it: Clear = False) -> None:
    """Show where compiled code is kept, and how much; it is bounded, and may be deleted at any time.

    SPECBENCH_CACHE in the environment names another folder, in which it has one of its own.

    Examples:

    specbench cache

    specbench cache --clear
    """
    folder = place()
    if clear_it:
        typer.echo(f"deleted: {gigabytes(clear(folder))} in {folder}")
        return
    regions = sum(path.parent.name == "regions" for _, _, path in files_of(folder))
    row = {"folder": str(folder), "compiled parts": regions, "size": gigabytes(size_of(folder))}
    print_records([row], {f"compiled code: at most {gigabytes(BOUND)}": [row]}, given["format"])
