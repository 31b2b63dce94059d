"""`specbench methods`: every method with its paper, what it needs, and whether it is lossless."""

from typing import Annotated, Any

import typer

from specbench.decoding.method_files import methods as shipped
from specbench.decoding.method_files import needs, parameters, read_method
from specbench.show.records import Format, print_records


def methods(
    output: Annotated[Format, typer.Option("--format", help="How to print the list.")] = "table",
) -> None:
    """List the methods for --method: what they do, their papers, what they need and what can be set."""
    rows = [described(name) for name in shipped()]
    print_records(rows, {"methods: --method NAME, or the path of a file like those in configs/methods": rows}, output)


def described(name: str) -> dict[str, Any]:
    """What the list says about a method."""
    content = read_method(name)
    return {
        "name": name,
        "lossless": "yes" if content["lossless"] else "NO",
        "needs": ", ".join(sorted(needs(name), key=lambda model: (model != "target", model))),
        "parameters": ", ".join(parameters(name)),
        "summary": content["summary"],
        "paper": content["paper"],
    }
