"""From specs to a finished run folder, printed tables and an exit code: the body of every command that measures.

specs → pairs → jobs → cells → tables → exit code. May import torch.
"""

import json
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any, Literal, Protocol

from rich.console import Console

from specbench.errors import InterruptedRunError, UsageError
from specbench.jobs.apart import apart
from specbench.jobs.description import described, folder_name
from specbench.jobs.growing import grow
from specbench.jobs.output import Output, say
from specbench.jobs.pairs import (
    HOST,
    VERSIONS,
    Unit,
    described_machine,
    device_of,
    measure_pairs,
    pairs_left,
    pairs_of,
    prompts_left,
    refuse_unknown,
    same_host,
    unfinished,
)
from specbench.jobs.progress import Display
from specbench.jobs.spread.ray_cluster import RayCluster
from specbench.jobs.spread.schedule import Spread
from specbench.jobs.trust import NOTHING, Typed, refuse_untyped, refuse_unused
from specbench.measure.engines import beside
from specbench.measure.group import Observer, Past
from specbench.measure.pair import Note, Pair
from specbench.models.execution import processes
from specbench.presets import preset, presets
from specbench.results.cells import Cell, agreements, raise_for_status
from specbench.results.folder import RunFolder
from specbench.results.named_runs import resumed_as, short_name
from specbench.results.reading import DESCRIPTION, Run, read_run
from specbench.show import run_output
from specbench.show.agreement_lines import agreement_lines
from specbench.show.fitting import screen
from specbench.show.published import show_published
from specbench.spec import RunSpec
from specbench.wording import resume_command, text_in

ELSEWHERE: Any = None  # what the first process knows
# Where cells are measured: in this process, each in one of its own, or on the devices of a cluster.
Executor = Literal["local", "process", "ray"]


@dataclass(frozen=True)
class Outcome:
    """What a job left behind: its folder, the command that began it, its cells, and the interrupt that ended it.
    preset: the one that its settings came from, if any."""

    path: Path
    command: str
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


def start(specs: Sequence[RunSpec], output: Output, preset: str = "", executor: Executor = "local") -> None:
    """Measure cells into a new folder and print them; raises what the exit code says."""
    with processes.together():
        done = record(specs, output.parent, Terminal(output), preset, executor)
        if processes.first():
            conclude(done, output)


def resume(
    path: Path, output: Output, executor: Executor = "local", limit: int | None = None, typed: Typed = NOTHING
) -> None:
    """Go on with a run that was killed or interrupted, as it would have gone on by itself; with a larger limit, give it
    more prompts."""
    with processes.together():
        done = record_rest(path, Terminal(output), executor, limit, typed)
        if processes.first():
            conclude(done, output)


def record(
    specs: Sequence[RunSpec], parent: Path, watch: Watch, preset: str = "", executor: Executor = "local"
) -> Outcome:
    """Measure cells into a new folder of `parent`. There is none where the only pair is unusable."""
    refuse_several(executor)
    if not processes.first():
        return follow(pairs_of(specs), {})
    pairs: Sequence[Pair | Spread] = [spread(specs)] if executor == "ray" else pairs_of(specs)
    description = described(specs, device_of(pairs), **({"preset": preset} if preset else {}))
    name = folder_name(specs[0], key=specs[0].key[:8])
    with closing(RunFolder.create(parent, name, description)) as folder:
        return measure_into(folder, pairs, description, watch, executor)


def record_rest(
    path: Path, watch: Watch, executor: Executor = "local", limit: int | None = None, typed: Typed = NOTHING
) -> Outcome:
    """Measure what a folder lacks into it, up to a larger limit where one is given.

    UsageError, before anything that the folder names is opened, where it is of another machine or wants to be trusted.
    """
    refuse_several(executor)
    if not processes.first():
        run, past = processes.agreed(ELSEWHERE)
        return follow(pairs_left(run, past), past)
    with closing(RunFolder.resume(path)) as folder:
        run = read_run(path)
        if executor != "local" and (limit is not None or run.limits):
            raise UsageError(
                f"a run that is given more prompts goes on in one process: leave out --executor {executor}"
            )
        described_machine(run)
        if left := unfinished(run.specs, folder.past) if limit is None else run.specs:
            same_host(run, VERSIONS if executor == "ray" else (*VERSIONS, *HOST))
            refuse_untyped(left, typed, str(path / DESCRIPTION))
        refuse_unused(run.specs, typed)
        if limit is not None:
            grow(folder, run, limit)
            run = read_run(path)
        processes.agreed((run, folder.past))
        pairs: Sequence[Pair | Spread] = [spread_rest(run)] if executor == "ray" else pairs_left(run, folder.past)
        return measure_into(folder, pairs, run.description, watch, executor)


def refuse_several(executor: Executor) -> None:
    """UsageError for cells that go elsewhere while several processes are to measure them together."""
    if processes.joined() > 1 and executor != "local":
        raise UsageError(f"torchrun's processes measure every cell together: leave out --executor {executor}")


def follow(pairs: Sequence[Pair], past: Past) -> Outcome:
    """Take part in what the first process measures, writes and prints."""
    cells, stop = measure_pairs(beside(pairs, silent), [], past, silent)
    return Outcome(Path(), "", cells, stop)


def silent(line: str) -> None:
    return


def spread(specs: Sequence[RunSpec]) -> Spread:
    """Cells for a cluster, whose workers check what they measure."""
    refuse_unknown(specs)
    return Spread(specs, RayCluster())


def spread_rest(run: Run) -> Spread:
    """The same of a run that goes on."""
    return Spread(run.specs, RayCluster())


def measure_into(
    folder: RunFolder,
    pairs: Sequence[Pair | Spread],
    description: dict[str, Any],
    watch: Watch,
    executor: Executor,
) -> Outcome:
    """Measure all pairs one after the other; everything is in the folder before it is displayed."""
    prompts = None if executor == "ray" else prompts_left(pairs, folder.past)
    with watch.begin(description, prompts) as display:
        units = units_of(pairs, executor, watch.note)
        cells, stop = measure_pairs(units, [folder, display], folder.past, watch.note)
    return Outcome(folder.path, text_in(description, "command"), cells, stop, text_in(description, "preset"))


def units_of(pairs: Sequence[Pair | Spread], executor: Executor, note: Note) -> Sequence[Unit]:
    """What is measured one after the other."""
    here = [pair for pair in pairs if not isinstance(pair, Spread)]
    if executor == "local":
        return beside(here, note)
    return apart(here) if executor == "process" else pairs


def conclude(done: Outcome, output: Output) -> None:
    """Print the tables of a run; raises its interrupt or what its exit code says."""
    if done.stop is not None and not any(cell.samples for cell in done.cells):
        raise interrupted(done, "nothing was measured yet; ") from done.stop
    shown = run_output.Shown.of(done.cells, done.command, short_name(done.path), explain=output.explain)
    rows = [cell.row() for cell in done.cells]
    run_output.print_run(rows, output.style, screen(), shown)
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
