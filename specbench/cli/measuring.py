"""From settings to a finished run folder and a printed table: the command's body, which may import torch."""

import json
import shlex
import sys
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.console import Console

from specbench.backends.native import Native
from specbench.bench import report
from specbench.bench.environment import environment, now
from specbench.bench.files import clean
from specbench.bench.prompts import PromptSet, load_prompts
from specbench.bench.record import RunFolder, slug
from specbench.bench.runner import Job, measure
from specbench.bench.samples import Cell
from specbench.cli.progress import Watch
from specbench.errors import CellsFailedError, NotLosslessError, UsageError
from specbench.models import pairs
from specbench.spec import RunSpec

DEFAULT_DATASETS = ("code", "articles")
DEFAULT_LIMIT = 20
BESIDES = ("format", "output_dir")  # settings that change no number


def run(settings: dict[str, Any], quiet: bool, verbose: int) -> None:
    """Measure and print; raises what the exit code says (see the README)."""
    out, err = Console(width=None if sys.stdout.isatty() else 110), Console(stderr=True)
    style = settings.pop("format", "table")
    if style not in report.FORMATS:
        raise UsageError(f"unknown --format {style!r}: choose one of {', '.join(report.FORMATS)}")
    parent = Path(str(settings.pop("output_dir", "results")))
    specs = specs_of(settings)
    backend = Native(specs[0])
    prompts = [prompts_of(spec, backend) for spec in specs]  # bad data ends the run before any weight is read
    backend.load()
    jobs = [Job(spec, found, resolved(backend, found)) for spec, found in zip(specs, prompts, strict=True)]
    description = describe(specs, backend)
    if not quiet:
        say(err, [f"note: {warning}" for warning in backend.warnings])
        say(err, json.dumps(description, indent=2).splitlines() if verbose else [])
    folder = RunFolder(parent, folder_name(specs), description)
    with closing(folder), Watch(err, folder, quiet) as watch:
        cells, stopped = measure(jobs, backend, backend.scores, watch)
    report.show([cell.row() for cell in cells], style, out)
    if not quiet:
        say(err, [f"results: {folder.path}"])
    if stopped is not None:
        raise stopped
    judge(cells)


def specs_of(settings: Mapping[str, Any]) -> list[RunSpec]:
    """One spec per data set; the pair's own K and the shipped data sets where nothing else is asked."""
    datasets = settings.get("dataset") or list(DEFAULT_DATASETS)
    rest = {name: value for name, value in settings.items() if name != "dataset"}
    if not settings.get("dataset"):
        rest.setdefault("limit", DEFAULT_LIMIT)
    try:
        first = RunSpec(**rest)
        rest["draft"] = first.draft or pairs.default_draft(first.target)
        if "k" not in rest and rest["draft"] and (known := pairs.default_k(first.target, rest["draft"])):
            rest["k"] = known
        return list(dict.fromkeys(RunSpec(**rest, dataset=name) for name in datasets))
    except ValidationError as error:
        raise UsageError(one_line(error)) from None


def one_line(error: ValidationError) -> str:
    """The first thing pydantic found wrong, in the words of the command line."""
    first = error.errors()[0]
    name = "--" + "-".join(str(part) for part in first["loc"]).replace("_", "-")
    if first["type"] == "extra_forbidden":
        return f"unknown setting {name[2:]}; known are {', '.join(sorted([*RunSpec.model_fields, *BESIDES]))}"
    return f"{name} {first.get('input')!r}: {first['msg']}"


def prompts_of(spec: RunSpec, backend: Native) -> PromptSet:
    """The prompts of a cell that leave room in the context for the new tokens and a draft behind them."""
    longest = backend.context - spec.max_new_tokens - spec.k - 1
    return load_prompts(
        spec.dataset,
        backend.encode,
        limit=spec.limit,
        seed=spec.seed,
        longest=longest,
        column=spec.column,
        template=spec.template,
    )


def resolved(backend: Native, prompts: PromptSet) -> dict[str, Any]:
    """What the names of a spec stood for, as columns of its row."""
    left_out = ", ".join(f"{count} {reason}" for reason, count in prompts.rejected.items() if count)
    data = {"rejected": left_out, "prompts_sha256": prompts.sha256, "dataset_revision": prompts.revision}
    return {**data, **roles(backend)}


def roles(backend: Native) -> dict[str, Any]:
    """What the pair resolved to, as columns."""
    found: dict[str, Any] = {}
    for name, role in backend.roles.items():
        prefix = "" if name == "target" else f"{name}_"
        found |= {
            f"{name}_source": role.checkpoint.source,
            f"{name}_commit": backend.commits.get(name) or role.checkpoint.revision,
            f"{prefix}dtype_resolved": str(role.dtype).removeprefix("torch."),
        }
    machine = environment(backend.device)
    return found | {name: machine[name] for name in ("device_name", "threads", "torch", "transformers", "specbench")}


def folder_name(specs: list[RunSpec]) -> str:
    first = specs[0]
    return f"{now()}_{slug(first.target)}_{slug(first.draft or 'none')}_{first.key[:8]}"


def describe(specs: list[RunSpec], backend: Native) -> dict[str, Any]:
    """run.json: written before anything is measured."""
    return {
        "schema_version": 1,
        "started": now(),
        "command": shlex.join(["specbench", *sys.argv[1:]]),
        "specs": [spec.model_dump(mode="json") for spec in specs],
        "environment": environment(backend.device),
        "resolved": roles(backend),
    }


def say(console: Console, lines: Iterable[str]) -> None:
    """Plain lines, neither wrapped nor coloured, without control characters."""
    for line in lines:
        console.print(clean(line, 2000), markup=False, highlight=False, soft_wrap=True)


def judge(cells: list[Cell]) -> None:
    """The exit code of a run that was not interrupted."""
    broken = [c for c in cells if c.lossless.verdict == "MISMATCH"]
    if broken:
        names = ", ".join(c.spec.dataset for c in broken)
        raise NotLosslessError(
            f"greedy output differs from the baseline's beyond numerical noise on {names} "
            f"(top-2 gap {broken[0].lossless.gap:.3g}, noise {broken[0].lossless.noise:.3g}): these numbers are void"
        )
    failed = [c for c in cells if c.status != "ok"]
    if failed:
        raise CellsFailedError(f"{len(failed)} of {len(cells)} cells ended without numbers: {failed[0].error}")
