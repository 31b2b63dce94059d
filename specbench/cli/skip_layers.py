"""`specbench skip-layers`: which layers of the target to keep for drafting, found by search, as a method file."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from specbench.cli import options as o
from specbench.show.records import Format

SEARCH = "Search"


def skip_layers(
    target: o.Target = None,
    target_revision: o.TargetRevision = None,
    dtype: o.Dtype = None,
    device: o.Device = None,
    dataset: o.Dataset = None,
    column: o.Column = None,
    template: o.Template = None,
    limit: o.Limit = None,
    max_new_tokens: o.MaxNewTokens = None,
    temperature: o.Temperature = None,
    top_k: o.TopK = None,
    top_p: o.TopP = None,
    seed: o.Seed = None,
    evaluations: Annotated[
        int, typer.Option(min=3, help="Sets of layers to score at most.", rich_help_panel=SEARCH)
    ] = 600,
    cost: Annotated[
        Literal["measured", "share"],
        typer.Option(help="c of a set: timed on this machine, or the share of kept layers.", rich_help_panel=SEARCH),
    ] = "measured",
    out: Annotated[
        Path | None, typer.Option("--out", help="Method file to write, for --method.", rich_help_panel=o.OUTPUT)
    ] = None,
    output: Annotated[
        Format, typer.Option("--format", help="How to print the steps.", rich_help_panel=o.OUTPUT)
    ] = "table",
    quiet: o.Quiet = False,
) -> None:
    """Search the layers of the target that draft best for it (self-speculation without a draft model).

    Half of the prompts are searched on, the other half check what was found. Default: 16 prompts per data set.
    """
    given = {name: value for name, value in locals().items() if value is not None}
    from specbench.jobs import skip_layers

    skip_layers.skip_layers(given)
