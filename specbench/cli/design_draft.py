"""`specbench design-draft`: which depth and width a draft for a target should have, on this machine."""

from dataclasses import replace
from typing import Literal

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

# Few tokens are to teach small networks much: many small steps at a high rate, and little time for judging.
BRIEF: Given = {"tokens": 400_000, "rows": 4, "length": 128, "rate": 3e-3, "evaluations": 2}
USUAL: Given = {"dataset": "code", "limit": 10, "max_new_tokens": 64, **BRIEF}
MOST_SHAPES, LEAST_TOKENS = 256, 1000
SHAPES = (
    Option("budget", str, SEARCH, "Parameters of a draft at most: 1M,2M,4M.", absent="1M,2M,4M"),
    Option("depths", str, SEARCH, "Layers of a draft: 1,2,4,8.", absent="1,2,4,8"),
    Option("count", Literal["all", "layers"], SEARCH, "What --budget counts: all parameters, embedding included, as a "
           "drafted token reads them; or those in layers alone, where a large vocabulary would be all of it.",
           absent="all"),
    Option("k_max", int, SEARCH, "Longest lookahead considered. Default: 8.", absent=8, low=1, high=64),
    Option("repeat", int, MEASURE, "How often every shape is timed. Default: 15.", absent=15, low=1),
    Option("rungs", int, SEARCH, "Rungs of successive halving, each with twice the tokens. Default: 3.", absent=3,
           low=1, high=8),
)  # fmt: skip


@options(
    *("target", "target_revision", "dtype", "device", "tier"),
    *SHAPES,
    replace(TEXT[0], help="What is learned, as `specbench train draft` takes it. Default: the modules of the Python "
            "that runs this, as text."),
    *TEXT[1:],
    *(of_setting(one, usual=USUAL.get(one.name)) for one in group("training", Recipe)),
    setting("dataset", "What the trained drafts are measured on: a data set as in `specbench run`.", "code"),
    *DATA[1:],
    *SAMPLING,
    "seed",
    replace(OWN["output"], help="Folder of the design; the same command goes on with it. Default: "
            "results/design-TARGET."),
    STYLE,
    "quiet",
    usual=USUAL,
)  # fmt: skip
def design_draft(given: Given) -> None:
    """Find the shape of draft to train: time shapes of equal parameters, train the promising ones, measure the best.

    Every budget is met by a shape of every depth. Latencies and drafts are kept in the folder as they come.

    Examples:

    specbench design-draft --budget 1M,2M --depths 1,2,4
    """
    budgets = sorted({parse_size(text, "--budget") for text in given["budget"].split(",")})
    depths = parse_counts(given["depths"], "--depths", "1,2,4,8")
    if len(budgets) * len(depths) > MOST_SHAPES:
        asked_for = f"{len(budgets)} budgets and {len(depths)} depths"
        raise UsageError(f"{asked_for} are more than {MOST_SHAPES} shapes: ask for fewer")
    recipe = recipe_of(given)
    if recipe.tokens < LEAST_TOKENS:
        raise UsageError(f"--tokens {recipe.tokens}: nothing is learned from so few; give {LEAST_TOKENS} or more")
    from rich.console import Console

    from specbench.jobs.design import Design, start

    learned = given if given.get("data") else {**given, "data": [python_modules()], "generate": False}
    settings = {name: value for name, value in target_settings(given).items() if name != "repeat"}
    shapes = {name: given[name] for name in ("count", "k_max", "repeat", "rungs")}
    source, err = source_of(learned), Console(stderr=True, quiet=given["quiet"])
    design = Design(
        settings, budgets, depths, **shapes, source=source, recipe=recipe, output=given.get("output"), err=err
    )
    start(design, given["format"])


def python_modules() -> str:
    """Text that is on every machine that can run this: the modules of the standard library."""
    import sysconfig

    return f"text:{sysconfig.get_path('stdlib')}/*.py"
