"""`specbench sweep-k`, the main job over several lookaheads, and `specbench sweep`, a grid over any settings."""

from pathlib import Path
from typing import Annotated

import typer

from specbench.cli import options as o
from specbench.cli.launch import launch
from specbench.errors import UsageError
from specbench.shipped import CONFIGS

DEFAULT_KS = "1-8"


def sweep_k(
    target: o.Target = None,
    draft: o.Draft = None,
    model: o.Models = None,
    target_revision: o.TargetRevision = None,
    draft_revision: o.DraftRevision = None,
    dtype: o.Dtype = None,
    draft_dtype: o.DraftDtype = None,
    device: o.Device = None,
    method: o.Method = None,
    k: o.Ks = None,
    acceptance: o.Acceptance = None,
    tier: o.Tier = None,
    batch: o.Batch = None,
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
    seed: o.Seed = None,
    warmup: o.Warmup = None,
    repeat: o.Repeat = None,
    until_ci: o.UntilCi = None,
    resume: o.Resume = None,
    config: o.Config = None,
    output_dir: o.OutputDir = None,
    format: o.Format = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = 0,
) -> None:
    """Find the best lookahead K: every K on the same prompts and weights, interleaved, with one shared baseline."""
    launch(locals(), axes=("dataset", "k", "batch"), k=DEFAULT_KS)


def sweep(
    grid: Annotated[Path | None, typer.Argument(help="YAML whose keys are the options of `specbench run`, and pair; a list is an axis. Or the name of a shipped grid: demo.")] = None,
    limit: o.Limit = None,
    max_new_tokens: o.MaxNewTokens = None,
    device: o.Device = None,
    seed: o.Seed = None,
    warmup: o.Warmup = None,
    repeat: o.Repeat = None,
    until_ci: o.UntilCi = None,
    resume: o.Resume = None,
    output_dir: o.OutputDir = None,
    format: o.Format = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = 0,
) -> None:  # fmt: skip
    """Measure every combination of a grid over pairs, methods, data sets, temperatures, dtypes and K."""
    if (grid is None) == (resume is None):
        raise UsageError("name the YAML file of a grid, or a shipped one such as demo, or --resume RUN")
    file = grid_file(grid)
    if file is not None and not o.read_config(file):
        raise UsageError(f"{file} holds no settings: a grid names its axes, such as k: 1-8")
    launch({**locals(), "config": file}, axes=None)


def grid_file(grid: Path | None) -> Path | None:
    """The file of a grid: a path, or the name of one in configs/grids."""
    shipped = CONFIGS / "grids" / f"{grid}.yaml"
    return shipped if grid is not None and not grid.exists() and shipped.is_file() else grid
