"""`specbench check`: whether a pair could be measured here, before anything large is fetched or loaded."""

from typing import Annotated

import typer

from specbench.cli.launch import EXECUTION, IN_FILES, cells_of, settings_of
from specbench.cli.options import DATA, METHOD, PAIR, SAMPLING, STYLE, Given, options
from specbench.errors import UsageError
from specbench.jobs.asked import USUAL, with_lists

Target = Annotated[str | None, typer.Argument(metavar="[TARGET]", help="The same as --target.", show_default=False)]
Draft = Annotated[str | None, typer.Argument(metavar="[DRAFT]", help="The same as --draft.", show_default=False)]


@options(..., *PAIR, *METHOD, *EXECUTION, *DATA, *SAMPLING, "config", STYLE, "quiet")
def check(given: Given, for_target: Target = None, for_draft: Draft = None) -> None:
    """Say what a pair lacks on this machine, whether it fits together, and whether memory is enough for a run.

    Takes the options of run, and lists of K and batches. Reads configurations and tokenizers, no weights. Exit code 4
    where a run could not begin.

    Examples:

    specbench check

    specbench check qwen3-8b qwen3-0.6b --dataset humaneval --k 1-8 --batch 1,8
    """
    named = {"target": for_target, "draft": for_draft}
    if twice := [name for name, value in named.items() if value is not None and name in given]:
        raise UsageError(f"the {twice[0]} is named twice, as an argument and by --{twice[0]}: name it once")
    arguments = {name: value for name, value in named.items() if value is not None}
    settings = with_lists({**USUAL, **settings_of({**given, **arguments})})
    from specbench.jobs import check

    cells = cells_of({n: value for n, value in settings.items() if n not in IN_FILES}, given)
    check.start(cells, given["format"], given["quiet"], method="method" in settings)
