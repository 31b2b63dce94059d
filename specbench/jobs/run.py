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
from specbench.show import run_output
from specbench.show.engines import agreement_lines, show_published
from specbench.show.fitting import screen
from specbench.spec import SCHEMA_VERSION, RunSpec
from specbench.wording import resume_command, text_in

# Where cells are measured: in this process, each in one of its own, or on the devices of a cluster.
Executor = Literal["local", "process", "ray"]


def start(
    specs: Sequence[RunSpec], output: Output, preset: str = "", executor: Executor = "local", defaults: str = ""
) -> None:
    """Measure cells into a new folder and print them; raises what the exit code says. defaults: a line on those."""
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
    """Measure cells into a new folder of `parent`. There is none where the only pair is unusable."""
    checked = check(specs, preset, executor)
    with new_folder(checked, parent) as folder:
        return measure(checked, folder, watch)


@dataclass(frozen=True)
class Plan:
    """Cells that have been checked, by their pairs, who measures them, and the content of their run.json."""

    pairs: Sequence[Pair | Spread]
    executor: Executor
    description: dict[str, Any]
    name: str = ""  # of a new folder

    def units(self, note: Note) -> Sequence[Unit]:
        """What is measured one after the other."""
        here = [pair for pair in self.pairs if not isinstance(pair, Spread)]
        elsewhere = [pair for pair in self.pairs if isinstance(pair, Spread)]
        return elsewhere or (apart(here) if self.executor == "process" else local_units(here, note))

    def prompts(self, past: Past) -> int | None:
        """How many prompts are decoded at most, repetitions counted; None where nobody knows."""
        return None if self.executor == "ray" else sum(pair.left(past) for pair in plan.usable(self.pairs))


def check(specs: Sequence[RunSpec], preset: str, executor: Executor) -> Plan:
    """The plan of a new run. Raises everything that can be refused before a weight is read."""
    refuse_several(executor)
    if executor == "ray":
        plan.check_names(specs)  # the rest is for workers to check
    pairs: Sequence[Pair | Spread] = [Spread(specs, RayCluster())] if executor == "ray" else plan.check(specs)
    description = described(specs, plan.device_of(pairs), **({"preset": preset} if preset else {}))
    return Plan(pairs, executor, description, folder_name(specs[0], key=specs[0].key[:8]))


def refuse_several(executor: Executor) -> None:
    """UsageError for cells that go elsewhere while several processes are to measure them together."""
    if machine.joined() > 1 and executor != "local":
        raise UsageError(f"torchrun's processes measure every cell together: leave out --executor {executor}")


def new_folder(checked: Plan, parent: Path) -> AbstractContextManager[RunFolder | None]:
    """A folder with run.json in it; none where another process writes."""
    if not machine.first():
        return nullcontext()
    return closing(RunFolder.create(parent, checked.name, checked.description))


def measure(checked: Plan, folder: RunFolder | None, watch: "Watch", past: Past | None = None) -> "Outcome":
    """Measure all pairs one after the other; everything is in the folder before it is displayed.

    Without a folder: take part in what the first process measures, writes and prints; `past` is what it goes on with.
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
    """What a job left behind: its folder, which run that is, its cells, and
    the interrupt that ended it. preset: the one that its settings came from, if any."""

    path: Path
    about: About
    cells: Sequence[Cell]
    stop: KeyboardInterrupt | None
    preset: str = ""


class Watch(Protocol):
    """Who looks on while cells are measured."""

    def begin(self, description: dict[str, Any], prompts: int | None) -> AbstractContextManager[Observer]:
        """A run begins: its run.json, and how many prompts it decodes at most, where that is known beforehand."""
        ...

    def note(self, line: str) -> None:
        """Something that a user should know about the run."""
        ...


@dataclass
class Terminal:
    """What a user of the commands sees on stderr."""

    output: Output
    console: Console = field(default_factory=lambda: Console(stderr=True))
    said: set[str] = field(default_factory=set)  # what is true of all pairs is said of the first

    def begin(self, description: dict[str, Any], prompts: int | None) -> Display:
        if self.output.verbose and not self.output.quiet:
            say(self.console, json.dumps(description, indent=2).splitlines())
        return Display(self.console, self.output.quiet, prompts)

    def note(self, line: str) -> None:
        if not self.output.quiet and line not in self.said:
            self.said.add(line)
            say(self.console, [f"note: {line}"])


def conclude(done: Outcome, output: Output) -> None:
    """Print the tables of a run; raises its interrupt or what its exit code says."""
    if done.stop is not None and not any(cell.samples for cell in done.cells):
        raise interrupted(done, "nothing was measured yet; ") from done.stop
    shown = run_output.Shown.of(done.cells, done.about.command, short_name(done.path), explain=output.explain)
    rows = [cell.row() for cell in done.cells]
    run_output.print_run(rows, output.style, screen(), replace(shown, about=done.about))
    if done.preset in presets():
        show_published(preset(done.preset), rows, output.style, screen())
    if not output.quiet:
        say(Console(stderr=True), [f"check: {line}" for line in agreement_lines(agreements(done.cells))])
    say_more(done, output)
    say_where(done, output)
    raise_for_status(done.cells)


def say_more(done: Outcome, output: Output) -> None:
    """The command that explains the numbers, to a reader who has a terminal."""
    if output.style == "table" and not (output.quiet or output.explain) and sys.stderr.isatty():
        say(Console(stderr=True), [f"why: specbench verdict {quote(short_name(done.path))} --explain"])


def say_where(done: Outcome, output: Output) -> None:
    """Name the folder of a run; raises the interrupt that ended it, as an error that says how to go on."""
    if not output.quiet:
        say(Console(stderr=True), [f"results: {done.path}"])
    if done.stop is not None:
        raise interrupted(done) from done.stop


def interrupted(done: Outcome, before: str = "") -> InterruptedRunError:
    """How an interrupt ends a command."""
    return InterruptedRunError(f"{before}{resume_command(resumed_as(done.path))} goes on with it")


# --- description ------------------------------------------------------------------------------------------------------
# What stands in run.json before anything is measured, and how the folder of a run is called.


def described(specs: Sequence[RunSpec], device: torch.device, **more: Any) -> dict[str, Any]:
    """The content of run.json: what was asked for, how, and on which machine."""
    return {
        "schema_version": SCHEMA_VERSION,
        "started": now(),
        "command": command_line(),
        "specs": [spec.model_dump(mode="json") for spec in specs],
        "environment": environment(device),
        **more,
    }


def folder_name(spec: RunSpec, kind: str = "", key: str = "") -> str:
    """Time, target and draft, with the kind of a job before them and a key after them."""
    parts = (now(), kind, slug(spec.target), slug(spec.draft or "none"), key)
    return "_".join(part for part in parts if part)
