"""From cells to a finished run folder and printed tables: the body of every command that measures. May import torch."""

import json
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from specbench.errors import CellsFailedError, NotLosslessError, UsageError
from specbench.jobs.output import Output
from specbench.jobs.progress import Watch
from specbench.measure import grid
from specbench.measure.failures import Failure, attempt
from specbench.measure.pair import Prepared, same_ground
from specbench.measure.runner import INTERRUPTED, give_up, measure
from specbench.results.cells import UNFINISHED, Cell
from specbench.results.environment import command_line, environment, now
from specbench.results.folder import RunFolder, slug
from specbench.results.reading import DESCRIPTION, read_run
from specbench.show import run_table
from specbench.show.fitting import screen
from specbench.spec import SCHEMA_VERSION, RunSpec
from specbench.wording import clean, text_in

Pairs = list[tuple[Sequence[RunSpec], Prepared | Failure]]


def start(specs: Sequence[RunSpec], output: Output) -> list[Cell]:
    """Measure cells into a new folder; raises what the exit code says (see the README)."""
    groups = grid.by_pair(specs)
    pairs: Pairs = [(group, prepared(group, alone=len(groups) == 1)) for group in groups]
    description = describe(specs, [pair for _, pair in pairs])
    folder = RunFolder.create(output.parent, folder_name(specs), description)
    with closing(folder):
        return carry_out(folder, pairs, description, output)


def resume(path: Path, output: Output) -> list[Cell]:
    """Go on with a run that was killed or interrupted as it would have gone on by itself."""
    folder = RunFolder.resume(path)
    with closing(folder):
        run = read_run(path)
        description, specs = run.description, run.specs
        if not isinstance(description.get("environment"), dict):
            raise UsageError(f"{path / DESCRIPTION} is damaged (it has no environment): start a new run")
        pairs: Pairs = []
        groups = grid.by_pair(specs)
        for group in groups:
            left = [s for s in group if s not in folder.past or folder.past[s].status in UNFINISHED]
            pair = prepared(group, alone=len(groups) == 1) if left else Failure("skipped", "")
            if isinstance(pair, Prepared):
                same_ground(description, pair, folder.past)
            pairs.append((group, pair))
        return carry_out(folder, pairs, description, output)


def prepared(group: Sequence[RunSpec], alone: bool) -> Prepared | Failure:
    """A pair with its prompts; among several pairs one that is unusable ends its own cells only."""
    return Prepared(group) if alone else attempt(lambda: Prepared(group))


def carry_out(folder: RunFolder, pairs: Pairs, description: dict[str, Any], output: Output) -> list[Cell]:
    """Measure all pairs one after the other, print the tables, and judge."""
    err = Console(stderr=True)
    if not output.quiet and output.verbose:
        say(err, json.dumps(description, indent=2).splitlines())
    turns = sum(pair.turns(folder.past) for _, pair in pairs if isinstance(pair, Prepared))
    cells: list[Cell] = []
    stop: KeyboardInterrupt | None = None
    with Watch(err, folder, output.quiet, turns) as watch:
        for group, pair in pairs:
            if stop is not None:
                cells += give_up(group, INTERRUPTED, watch, folder.past)
                continue
            found, stop = measure_pair(group, pair, folder, watch, len(pairs) == 1, None if output.quiet else err)
            cells += found
            if isinstance(pair, Prepared) and not output.quiet:
                say(err, [f"note: {warning}" for warning in pair.backend.warnings])
    run_table.show([cell.row() for cell in cells], output.style, screen(), text_in(description, "command"))
    if not output.quiet:
        say(err, [f"results: {folder.path}"])
    if stop is not None:
        raise stop
    judge(cells)
    return cells


def measure_pair(
    group: Sequence[RunSpec],
    pair: Prepared | Failure,
    folder: RunFolder,
    watch: Watch,
    alone: bool,
    err: Console | None = None,
) -> tuple[list[Cell], KeyboardInterrupt | None]:
    """The cells of one pair. One that cannot be loaded ends the command if it is the only one, else its cells."""
    if isinstance(pair, Failure):
        return give_up(group, pair, watch, folder.past), None
    try:
        jobs = pair.load(folder.past) if alone else attempt(lambda: pair.load(folder.past))
        if isinstance(jobs, Failure):
            return give_up(group, jobs, watch, folder.past), None
        if err is not None:
            say(err, [f"note: tier {pair.backend.tier.name}: {pair.backend.why}"])
        return measure(jobs, pair.backend, pair.backend.scores, watch, folder.past)
    finally:
        pair.unload()


def folder_name(specs: Sequence[RunSpec]) -> str:
    first = specs[0]
    return f"{now()}_{slug(first.target)}_{slug(first.draft or 'none')}_{first.key[:8]}"


def describe(specs: Sequence[RunSpec], pairs: Sequence[Prepared | Failure]) -> dict[str, Any]:
    """run.json: written before anything is measured."""
    devices = [pair.backend.device for pair in pairs if isinstance(pair, Prepared)]
    return {
        "schema_version": SCHEMA_VERSION,
        "started": now(),
        "command": command_line(),
        "specs": [spec.model_dump(mode="json") for spec in specs],
        "environment": environment(devices[0] if devices else torch.device("cpu")),
    }


def say(console: Console, lines: Iterable[str]) -> None:
    """Plain lines, neither wrapped nor coloured, without control characters."""
    for line in lines:
        console.print(clean(line, 2000), markup=False, highlight=False, emoji=False, soft_wrap=True)


def judge(cells: Sequence[Cell]) -> None:
    """The exit code of a run that was not interrupted."""
    broken = [c for c in cells if c.lossless.verdict == "MISMATCH"]
    if broken:
        names = ", ".join(dict.fromkeys(f"{c.spec.dataset} (K {c.spec.k})" for c in broken))
        raise NotLosslessError(
            f"greedy output differs from the baseline's beyond numerical noise on {names} "
            f"(top-2 gap {broken[0].lossless.gap:.3g}, noise {broken[0].lossless.noise:.3g}): these numbers are void"
        )
    failed = [c for c in cells if c.status != "ok"]
    if failed:
        raise CellsFailedError(f"{len(failed)} of {len(cells)} cells ended without numbers: {failed[0].error}")
