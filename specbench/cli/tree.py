"""`specbench tree`: the token tree that a pair should draft, from measured acceptance and measured costs."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from specbench.cli import options as o
from specbench.errors import UsageError
from specbench.show.records import Format

SEARCH = "Search"
NO_SETTINGS = ("children", "nodes", "depth", "by", "repeat", "out", "overwrite", "output", "quiet")
SHORT = {"limit": 10, "max_new_tokens": 64}

Children = Annotated[
    int, typer.Option(min=1, max=32, help="Children of a node whose acceptance is measured.", rich_help_panel=SEARCH)
]
Nodes = Annotated[int, typer.Option(min=1, max=256, help="Most nodes of the tree.", rich_help_panel=SEARCH)]
Depth = Annotated[int, typer.Option(min=1, max=32, help="Most levels of the tree.", rich_help_panel=SEARCH)]
By = Annotated[
    Literal["speedup", "tokens"],
    typer.Option(help="What is best: the speedup on this machine, or the tokens per round.", rich_help_panel=SEARCH),
]
Repeat = Annotated[int, typer.Option(min=1, help="How often every pass is timed.", rich_help_panel=o.MEASURE)]
Out = Annotated[
    Path | None,
    typer.Option(help="Write the tree as a method file, for --method of other commands.", rich_help_panel=o.OUTPUT),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Let --out replace a file that is there.", rich_help_panel=o.OUTPUT)
]
Style = Annotated[Format, typer.Option("--format", help="How to print what was found.", rich_help_panel=o.OUTPUT)]


def tree(
    target: o.Target = None,
    draft: o.Draft = None,
    target_revision: o.TargetRevision = None,
    draft_revision: o.DraftRevision = None,
    dtype: o.Dtype = None,
    draft_dtype: o.DraftDtype = None,
    device: o.Device = None,
    dataset: o.Dataset = None,
    column: o.Column = None,
    template: o.Template = None,
    limit: o.Limit = None,
    max_new_tokens: o.MaxNewTokens = None,
    temperature: o.Temperature = None,
    top_k: o.TopK = None,
    top_p: o.TopP = None,
    min_p: o.MinP = None,
    eta: o.Eta = None,
    ignore_eos: o.IgnoreEos = None,
    children: Children = 4,
    nodes: Nodes = 32,
    depth: Depth = 8,
    by: By = "speedup",
    repeat: Repeat = 15,
    seed: o.Seed = None,
    out: Out = None,
    overwrite: Overwrite = False,
    output: Style = "table",
    quiet: o.Quiet = False,
) -> None:
    """Find the best token tree (Sequoia): measure how often each child is accepted and what a round costs.

    Children are the most probable tokens when greedy, draws without replacement when sampling. Decodes 10 prompts per
    data set and 64 tokens each, unless told otherwise.
    """
    settings = {name: value for name, value in locals().items() if name not in NO_SETTINGS and value is not None}
    if out is not None:
        writable(out, overwrite)
    from specbench.jobs import tree

    tree.start({**SHORT, **settings}, children, nodes, depth, by, repeat, out, output, quiet)


def writable(out: Path, overwrite: bool) -> None:
    """UsageError if nothing should, or can, be written there; before anything is measured."""
    if out.is_dir():
        raise UsageError(f"cannot write {out}: it is a folder; name a file in it")
    if out.exists() and not overwrite:
        raise UsageError(f"{out} is there already: choose another --out, or add --overwrite")
    if not out.absolute().parent.is_dir():
        raise UsageError(f"cannot write {out}: there is no folder {out.parent}")
