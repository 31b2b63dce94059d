"""From cells to a finished run folder, printed tables and an exit code: the body of every command that measures.

cells → check (every refusal, no weights) → measure (into the folder and the display) → show → exit code
"""

import json
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import Any, Literal, Protocol

import torch
from rich.console import Console

from specbench.errors import InterruptedRunError, UsageError
from specbench.jobs.cluster import Spread
from specbench.jobs.output import Output, say
from specbench.jobs.progress import Display
from specbench.jobs.subprocess import apart
from specbench.jobs.worker import RayCluster
from specbench.measure import plan
from specbench.measure.group import Past
from specbench.measure.pair import Note, Pair
from specbench.measure.runner import Unit, local_units, measure_units
from specbench.models.execution import machine
from specbench.presets import preset, presets
from specbench.results.cells import Cell, Observer, agreements, raise_for_status
from specbench.results.documents import About
from specbench.results.folder import RunFolder, slug
from specbench.results.machine import command_line, environment, now
from specbench.results.named_runs import resumed_as, short_name
from specbench.results.reading import audited_cells
from specbench.show import run_output
from specbench.show.engines import agreement_lines, published_table
from specbench.show.fitting import draw, screen
from specbench.spec import SCHEMA_VERSION, RunSpec
from specbench.wording import resume_command, text_in

# Where cells are measured: in this process, each in its own process, or on the devices of a cluster.
Executor = Literal["local", "process", "ray"]


def start(
    specs: Sequence[RunSpec], output: Output, preset: str = "", executor: Executor = "local", defaults: str = ""
) -> None:
    """Measure cells into a new folder and print them; raises the error for the exit code. defaults: a line to print."""
    with machine.together():
        checked = check(specs, preset, executor)
        with new_folder(checked, output.parent) as folder:
            say(Console(stderr=True), [defaults] * bool(defaults))
            done = measure(checked, folder, Terminal(output))
        if machine.first():
            conclude(done, output)


def record(
    specs: Sequence[RunSpec], parent: Path, watch: "Watch", preset: str = "", executor: Executor = "local"
) -> "Outcome":
    """Measure cells into a new folder of `parent`. No folder is made if the only pair is unusable."""
    checked = check(specs, preset, executor)
    with new_folder(checked, parent) as folder:
        return measure(checked, folder, watch)


@dataclass(frozen=True)
class Plan:
    """Checked cells by pair, their executor, and the content of their run.json."""

    pairs: Sequence[Pair | Spread]
    executor: Executor
    description: dict[str, Any]
    name: str = ""  # of a new folder

    def units(self, note: Note) -> Sequence[Unit]:
        here = [pair for pair in self.pairs if not isinstance(pair, Spread)]
        elsewhere = [pair for pair in self.pairs if isinstance(pair, Spread)]
        return elsewhere or (apart(here) if self.executor == "process" else local_units(here, note))

    def prompts(self, past: Past) -> int | None:
        """The maximum number of prompts to decode, repetitions included; None if unknown."""
        return None if self.executor == "ray" else sum(pair.left(past) for pair in plan.usable(self.pairs))


def check(specs: Sequence[RunSpec], preset: str, executor: Executor) -> Plan:
    """Plan a new run. Raises every error that can be found before weights are loaded."""
    refuse_several(executor)
    if executor == "ray":
        plan.check_names(specs)  # workers check the rest
    pairs: Sequence[Pair | Spread] = [Spread(specs, RayCluster())] if executor == "ray" else plan.check(specs)
    description = described(specs, plan.device_of(pairs), **({"preset": preset} if preset else {}))
    return Plan(pairs, executor, description, folder_name(specs[0], key=specs[0].key[:8]))


def refuse_several(executor: Executor) -> None:
    """Raise UsageError for a remote executor if several processes measure together."""
    if machine.joined() > 1 and executor != "local":
        raise UsageError(f"torchrun's processes measure every cell together: leave out --executor {executor}")


def new_folder(checked: Plan, parent: Path) -> AbstractContextManager[RunFolder | None]:
    """A folder with run.json; None if another process writes."""
    if not machine.first():
        return nullcontext()
    return closing(RunFolder.create(parent, checked.name, checked.description))


def measure(checked: Plan, folder: RunFolder | None, watch: "Watch", past: Past | None = None) -> "Outcome":
    """Measure all pairs one after the other; results are in the folder before they are displayed.

    Without a folder: take part in the measurement while the first process writes and prints, starting from `past`.
    """
    if folder is None:
        silent: Note = lambda line: None  # noqa: E731
        cells, stop = measure_units(checked.units(silent), [], past or {}, silent)
        return Outcome(Path(), About(), cells, stop)
    about = checked.description
    with watch.begin(about, checked.prompts(folder.past)) as display:
        cells, stop = measure_units(checked.units(watch.note), [folder, display], folder.past, watch.note)
    return Outcome(folder.path, About.of(folder.path, about), cells, stop, text_in(about, "preset"))


@dataclass(frozen=True)
class Outcome:
    """The results of a job: folder, run description, cells, and, if any, the interrupt that ended it and the preset."""

    path: Path
    about: About
    cells: Sequence[Cell]
    stop: KeyboardInterrupt | None
    preset: str = ""


class Watch(Protocol):
    """An observer of the whole measurement."""

    def begin(self, description: dict[str, Any], prompts: int | None) -> AbstractContextManager[Observer]:
        """Called at the start of a run, with its run.json and its maximum number of prompts, if known."""
        ...

    def note(self, line: str) -> None:
        """Report a note about the run to the user."""
        ...


@dataclass
class Terminal:
    """The terminal output on stderr."""

    output: Output
    console: Console = field(default_factory=lambda: Console(stderr=True))
    said: set[str] = field(default_factory=set)  # notes on all pairs are printed once

    def begin(self, description: dict[str, Any], prompts: int | None) -> Display:
        if self.output.verbose and not self.output.quiet:
            say(self.console, json.dumps(description, indent=2).splitlines())
        return Display(self.console, self.output.quiet, prompts, self.output.parent)

    def note(self, line: str) -> None:
        if not self.output.quiet and line not in self.said:
            self.said.add(line)
            say(self.console, [f"note: {line}"])


def conclude(done: Outcome, output: Output) -> None:
    """Print the tables of a run; raises its interrupt or the error for its exit code."""
    if done.stop is not None and not any(cell.samples for cell in done.cells):
        raise interrupted(done, "nothing was measured yet; ") from done.stop
    cells = audited_cells(done.cells, done.path)
    shown = run_output.Shown.of(cells, done.about.command, short_name(done.path), explain=output.explain)
    rows = [cell.row() for cell in cells]
    run_output.print_run(rows, output.style, screen(), replace(shown, about=done.about))
    if done.preset in presets():
        published = preset(done.preset)
        console = screen()
        if output.style == "table":
            draw(console, published_table(published, rows).drawn())
        elif output.style == "md":
            console.file.write("\n" + published_table(published, rows).markdown())
    if not output.quiet:
        say(Console(stderr=True), [f"check: {line}" for line in agreement_lines(agreements(done.cells))])
    say_more(done, output)
    say_where(done, output)
    raise_for_status(done.cells)


def say_more(done: Outcome, output: Output) -> None:
    """Print the command that explains the numbers, if stdout is a terminal."""
    if output.style == "table" and not (output.quiet or output.explain) and sys.stderr.isatty():
        say(Console(stderr=True), [f"why: specbench verdict {quote(short_name(done.path))} --explain"])


def say_where(done: Outcome, output: Output) -> None:
    """Print the folder of a run; raises its interrupt as an error with the resume command."""
    if not output.quiet:
        say(Console(stderr=True), [f"results: {done.path}"])
    if done.stop is not None:
        raise interrupted(done) from done.stop


def interrupted(done: Outcome, before: str = "") -> InterruptedRunError:
    return InterruptedRunError(f"{before}{resume_command(resumed_as(done.path))} continues it")


# --- description ------------------------------------------------------------------------------------------------------
# The content of run.json before the measurement, and the name of the run folder.


def described(specs: Sequence[RunSpec], device: torch.device, **more: Any) -> dict[str, Any]:
    """The content of run.json: the requested cells, the options and the machine."""
    return {
        "schema_version": SCHEMA_VERSION,
        "started": now(),
        "command": command_line(),
        "specs": [spec.model_dump(mode="json") for spec in specs],
        "environment": environment(device),
        **more,
    }


def folder_name(spec: RunSpec, kind: str = "", key: str = "") -> str:
    """Time, target and draft, with the kind of the job before them and a key after them."""
    parts = (now(), kind, slug(spec.target), slug(spec.draft or "none"), key)
    return "_".join(part for part in parts if part)
