"""`specbench design-draft`: which depth and width a draft for a target should have, on this machine."""

from dataclasses import replace
from types import EllipsisType
from typing import Annotated, Literal

import typer

from specbench.cli.options import (  # fmt: skip
    DATA,
    MEASURE,
    OWN,
    SAMPLING,
    SEARCH,
    STYLE,
    Given,
    Option,
    of_setting,
    options,
    setting,
)
from specbench.cli.train_options import TEXT, recipe_of, source_of, target_settings
from specbench.errors import UsageError
from specbench.jobs.parsing import parse_counts, parse_size
from specbench.settings import group
from specbench.training.recipe import Recipe

TARGET = ("target", "target_revision", "dtype", "device", "tier")
# Few tokens are to teach small networks much: many small steps at a high rate, and little time for judging.
BRIEF: Given = {"tokens": 400_000, "rows": 4, "length": 128, "rate": 3e-3, "evaluations": 2}
USUAL: Given = {"dataset": "code", "limit": 10, "max_new_tokens": 64, **BRIEF}
RECIPE = tuple(of_setting(one, usual=USUAL.get(one.name)) for one in group("training", Recipe))
DATASET = setting("dataset", "What the trained drafts are measured on: a data set as in `specbench run`.", "code")
MOST_RUNGS, MOST_SHAPES = 8, 256
LEAST_TOKENS = 1000

Budgets = Annotated[
    str, typer.Option(help="Parameters of a draft at most: 1M,2M,4M.", rich_help_panel=SEARCH, show_default=True)
]
Depths = Annotated[str, typer.Option(help="Layers of a draft: 1,2,4,8.", rich_help_panel=SEARCH)]
CountOf = Annotated[
    Literal["all", "layers"],
    typer.Option(
        help="What --budget counts: all parameters, embedding included, as a drafted token reads them; or those in "
        "layers alone, where a large vocabulary would be all of it.",
        rich_help_panel=SEARCH,
    ),
]
Like = Annotated[
    str | None,
    typer.Option(
        help="Take all times from scale models: the target grown to a shape such as llama-7b, drafts as much wider.",
        rich_help_panel=SEARCH,
    ),
]
Rungs = Annotated[
    int,
    typer.Option(
        min=1, max=MOST_RUNGS, help="Rungs of successive halving, each with twice the tokens.", rich_help_panel=SEARCH
    ),
]
KMax = Annotated[int, typer.Option(min=1, max=64, help="Longest lookahead considered.", rich_help_panel=SEARCH)]
Repeat = Annotated[int, typer.Option(min=1, help="How often every shape is timed.", rich_help_panel=MEASURE)]
LEARNED, *OTHER_TEXT = TEXT
FOLDER = replace(OWN["output"], help="Folder of the design; the same command goes on with it. Default: "
                 "results/design-TARGET.")  # fmt: skip
OPTIONS: tuple[str | Option | EllipsisType, ...] = (
    *TARGET,
    ...,
    replace(LEARNED, help="What is learned, as `specbench train draft` takes it. Default: the modules of the Python "
            "that runs this, as text."),
    *OTHER_TEXT,
    *RECIPE,
    DATASET,
    *DATA[1:],
    *SAMPLING,
    "seed",
    FOLDER,
    STYLE,
    "quiet",
)  # fmt: skip


@options(*OPTIONS, usual=USUAL)
def design_draft(
    given: Given,
    budget: Budgets = "1M,2M,4M",
    depths: Depths = "1,2,4,8",
    count: CountOf = "all",
    like: Like = None,
    k_max: KMax = 8,
    repeat: Repeat = 15,
    rungs: Rungs = 3,
) -> None:
    """Find the shape of draft to train: time shapes of equal parameters, train the promising ones, measure the best.

    Every budget is met by a shape of every depth. Latencies and drafts are kept in the folder as they come.

    Examples:

    specbench design-draft --budget 1M,2M --depths 1,2,4
    """
    budgets = sorted({parse_size(text, "--budget") for text in budget.split(",")})
    layers = parse_counts(depths, "--depths", "1,2,4,8")
    if len(budgets) * len(layers) > MOST_SHAPES:
        asked_for = f"{len(budgets)} budgets and {len(layers)} depths"
        raise UsageError(f"{asked_for} are more than {MOST_SHAPES} shapes: ask for fewer")
    recipe = recipe_of(given)
    if recipe.tokens < LEAST_TOKENS:
        raise UsageError(f"--tokens {recipe.tokens}: nothing is learned from so few; give {LEAST_TOKENS} or more")
    from specbench.jobs import design_draft
    from specbench.jobs.design_phases import Asked

    learned = given if given.get("data") else {**given, "data": [python_modules()], "generate": False}
    asked = Asked(budgets, layers, count, like, k_max, repeat, rungs, source_of(learned), recipe)
    design_draft.start(target_settings(given), asked, given.get("output"), given["format"], given["quiet"])


def python_modules() -> str:
    """Text that is on every machine that can run this: the modules of the standard library."""
    import sysconfig

    return f"text:{sysconfig.get_path('stdlib')}/*.py"
