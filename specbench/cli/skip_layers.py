"""`specbench skip-layers`: which layers of the target to keep for drafting, found by search, as a method file."""

from typing import Annotated, Literal

import typer

from specbench.cli.options import DATA, SAMPLING, SEARCH, STYLE, Given, options, settings_in
from specbench.jobs.method_file import check_free

TARGET = ("target", "target_revision", "dtype", "device")
USUAL = {"limit": 16, "max_new_tokens": 64}

Evaluations = Annotated[int, typer.Option(min=3, help="Sets of layers to score at most.", rich_help_panel=SEARCH)]
Cost = Annotated[
    Literal["measured", "share"],
    typer.Option(help="c of a set: timed on this machine, or the share of kept layers.", rich_help_panel=SEARCH),
]


@options(*TARGET, *DATA, *SAMPLING, "seed", ..., "output", "overwrite", STYLE, "quiet", usual=USUAL)
def skip_layers(given: Given, evaluations: Evaluations = 600, cost: Cost = "measured") -> None:
    """Search the layers of the target that draft best for it (self-speculation without a draft model).

    Half of the prompts are searched on, the other half check what was found. Default: 16 prompts per data set.

    Examples:

    specbench skip-layers --output layers.yaml

    specbench run --method layers.yaml
    """
    check_free(given.get("output"), given["overwrite"])
    from specbench.jobs import skip_layers

    search = skip_layers.LayerSearch(evaluations, cost)
    skip_layers.start(settings_in(given), search, given.get("output"), given["format"], given["quiet"])
