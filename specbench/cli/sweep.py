"""`specbench sweep-k`, the main job over several lookaheads, and `specbench sweep`, a grid over any settings."""

from pathlib import Path
from typing import Annotated

import typer

from specbench.cli import completion
from specbench.cli.launch import EXECUTION, URLS, launch, read_config
from specbench.cli.options import DATA, MEASURING, PAIR, RESULTS, SAMPLING, Given, options, setting
from specbench.errors import UsageError
from specbench.jobs.asked import USUAL
from specbench.shipped import CONFIGS
from specbench.wording import near

DEFAULT_KS = "1-8"
KS = setting("k", "Lookaheads: 1-8, or 1,2,4, or 1-16+3, also with auto (1-8,auto).", DEFAULT_KS)
METHOD = ("method", KS, "acceptance", *EXECUTION)
HELP = (
    "YAML whose keys are the options of `specbench run`, and pair; a list is an axis. "
    f"Or the name of a shipped grid: {', '.join(completion.grids())}."
)

Grid = Annotated[Path | None, typer.Argument(help=HELP, autocompletion=completion.beginning(completion.grids))]


OPTIONS = (*PAIR, "preset", *METHOD, *DATA, *SAMPLING, *MEASURING)


@options(*OPTIONS, "executor", "yes", "resume", "config", "explain", *RESULTS)
def sweep_k(given: Given) -> None:
    """Find the best lookahead K: every K on the same prompts and weights, interleaved, with one shared baseline.

    Examples:

    specbench sweep-k --k 1-8 --limit 20

    specbench sweep-k --method block --k 2,4,8 --temperature 1

    specbench sweep-k --target llama-7b --draft llama-68m --dataset humaneval --dataset xsum
    """
    launch(given, axes=("dataset", "context", "k", "backend", "batch", "arrivals"), k=DEFAULT_KS, **USUAL)


@options(
    ..., "limit", "max_new_tokens", "device", *URLS, "engine_option", *MEASURING, "executor", "yes", "resume",
    "explain", *RESULTS,
)  # fmt: skip
def sweep(given: Given, grid: Grid = None) -> None:
    """Measure every combination of a grid over pairs, methods, data sets, temperatures, dtypes and K.

    Examples:

    specbench sweep demo

    specbench sweep mine.yaml --limit 20

    specbench sweep --resume latest
    """
    if (grid is None) == ("resume" not in given):
        raise UsageError("name the YAML file of a grid, or a shipped one such as demo, or --resume RUN")
    file = grid_file(grid)
    if file is not None and not read_config(file):
        raise UsageError(f"{file} holds no settings: a grid names its axes, such as k: 1-8")
    launch({**given, "config": file}, axes=None)


def grid_file(grid: Path | None) -> Path | None:
    """The file of a grid: a path, or the name of one in configs/grids. UsageError for a name that is neither."""
    if grid is None or grid.exists():
        return grid
    shipped = CONFIGS / "grids" / f"{grid}.yaml"
    if not shipped.is_file() and not grid.suffix:
        known = list(completion.grids())
        raise UsageError(f"unknown grid {str(grid)[:60]!r}{near(str(grid), known)}: name a file, or {', '.join(known)}")
    return shipped if shipped.is_file() else grid
