"""`specbench tree`: the token tree that a pair should draft, from measured acceptance and measured costs."""

from typing import Annotated, Literal

import typer

from specbench.cli.options import DATA, MEASURE, SAMPLING, SEARCH, STYLE, Given, options, settings_in
from specbench.jobs.method_file import check_free

USUAL = {"limit": 10, "max_new_tokens": 64}
PAIR = ("target", "draft", "revisions", "precision", "device")

Children = Annotated[
    int, typer.Option(min=1, max=32, help="Children of a node whose acceptance is measured.", rich_help_panel=SEARCH)
]
Nodes = Annotated[int, typer.Option(min=1, max=256, help="Most nodes of the tree.", rich_help_panel=SEARCH)]
Depth = Annotated[int, typer.Option(min=1, max=32, help="Most levels of the tree.", rich_help_panel=SEARCH)]
By = Annotated[
    Literal["speedup", "tokens"],
    typer.Option(help="What is best: the speedup on this machine, or the tokens per round.", rich_help_panel=SEARCH),
]
Repeat = Annotated[int, typer.Option(min=1, help="How often every pass is timed.", rich_help_panel=MEASURE)]


@options(*PAIR, *DATA, *SAMPLING, ..., "seed", "output", "overwrite", STYLE, "quiet", usual=USUAL)
def tree(
    given: Given, children: Children = 4, nodes: Nodes = 32, depth: Depth = 8, by: By = "speedup", repeat: Repeat = 15
) -> None:
    """Find the best token tree (Sequoia): measure how often each child is accepted and what a round costs.

    Children are the most probable tokens when greedy, draws without replacement when sampling. Decodes 10 prompts per
    data set and 64 tokens each, unless asked for more.

    Examples:

    specbench tree --output tree.yaml

    specbench run --method tree.yaml
    """
    check_free(given.get("output"), given["overwrite"])
    from specbench.jobs import tree

    search = tree.TreeSearch(children, nodes, depth, by, repeat)
    tree.start(settings_in(given), search, given.get("output"), given["format"], given["quiet"])
