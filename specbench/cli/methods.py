"""`specbench methods`: every method in a line, or some with their papers, what they need and what can be set."""

from typing import Annotated, Any

import typer

from specbench.cli import completion
from specbench.cli.options import PLAIN, Given, options
from specbench.decoding.method_files import methods as shipped
from specbench.decoding.method_files import needs, parameters, read_method
from specbench.show.records import print_records

ALL = "methods for --method; more of one: specbench methods NAME"
Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME...]",
        help="Methods, or paths of files like those in configs/methods, of which all is said. Without one: the list.",
        autocompletion=completion.beginning(shipped),
    ),
]


@options(..., PLAIN)
def methods(given: Given, names: Names = None) -> None:
    """List the methods for --method; of those that are named, their papers, what they need and what can be set.

    Formats for programs have everything of all of them.

    Examples:

    specbench methods

    specbench methods chain sequoia

    specbench methods --format json
    """
    rows = [described(name) for name in names or shipped()]
    if names or given["format"] != "table":
        print_records(rows, {"methods": rows}, given["format"])
    else:
        print_records(rows, {ALL: [in_brief(row) for row in rows]}, given["format"])


def described(name: str) -> dict[str, Any]:
    """Everything that is said about a method."""
    content = read_method(name)
    return {
        "name": name,
        "lossless": "yes" if content["lossless"] else "NO",
        "needs": ", ".join(sorted(needs(name), key=lambda model: (model != "target", model))),
        "parameters": ", ".join(parameters(name)),
        "summary": content["summary"],
        "paper": content["paper"],
    }


def in_brief(row: dict[str, Any]) -> dict[str, Any]:
    """What the list says: the method, marked where it is lossy, and what it does."""
    return {"name": row["name"] + " (lossy)" * (row["lossless"] != "yes"), "what it does": row["summary"]}
