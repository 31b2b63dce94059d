"""`specbench methods`: every method with its paper, what it needs, and whether it is lossless."""

from typing import Any

from specbench.cli.options import PLAIN, Given, options
from specbench.decoding.method_files import methods as shipped
from specbench.decoding.method_files import needs, parameters, read_method
from specbench.show.records import print_records


@options(PLAIN)
def methods(given: Given) -> None:
    """List the methods for --method: what they do, their papers, what they need and what can be set."""
    rows = [described(name) for name in shipped()]
    title = "methods: --method NAME, or the path of a file like those in configs/methods"
    print_records(rows, {title: rows}, given["format"])


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
