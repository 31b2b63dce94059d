"""Each cell in its own process: a crash costs one cell, and no cell sees memory left by another.

The child process sends all observer events to this one as they happen, so only this process writes the journal.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from threading import Lock, Timer, current_thread, main_thread
from typing import Any

from specbench.measure.group import INTERRUPTED, Failure, Past, ended
from specbench.measure.pair import Measured, Note, Pair, Unusable
from specbench.measure.plan import prepared
from specbench.measure.runner import Unit, local_units
from specbench.models.execution.machine import end_with_parent
from specbench.results.cells import UNFINISHED, Cell, Observer
from specbench.results.samples import Sample
from specbench.spec import RunSpec

PATIENCE = 30.0  # seconds that a process has to save its results after SIGTERM
Event = tuple[str, tuple[Any, ...]]


def apart(pairs: Sequence[Pair]) -> list[Unit]:
    """The cells of all pairs one by one; pairs known to be unusable are kept as they are."""
    found: list[Unit] = []
    for pair in pairs:
        found += [pair] if isinstance(pair, Unusable) else [Apart([spec]) for spec in pair.specs]
    return found


@dataclass(frozen=True)
class Apart:
    """A cell measured by a new process."""

    specs: Sequence[RunSpec]

    def measure(self, observers: Sequence[Observer], past: Past, note: Note) -> Measured:
        """Measure the cell in another process; if that dies, return the results so far."""
        (spec,) = self.specs
        if spec in past and past[spec].status not in UNFINISHED:
            return [past[spec]], None
        known = Known(past.get(spec) or Cell(spec, {}, status="skipped"))
        relay = Relay([*observers, known], note)
        stop = follow(self.specs, past, relay)
        if known.over:
            return [known.cell], stop
        if isinstance(relay.found, Failure):
            return relay.found, stop
        cell = ended(known.cell, INTERRUPTED if stop else Failure("partial", relay.death))
        for observer in observers:
            observer.end(cell)
        return [cell], stop


@dataclass
class Known(Observer):
    """An observer that keeps the state of a cell, for when its process can no longer report it."""

    cell: Cell
    over: bool = False

    def begin(self, cells: Sequence[Cell], prompts: int) -> None:
        (cell,) = cells
        self.cell = replace(self.cell, resolved=cell.resolved, samples=cell.samples)

    def resolved(self, cells: Sequence[Cell]) -> None:
        (cell,) = cells
        self.cell = replace(self.cell, resolved=cell.resolved)

    def turn(self, samples: Mapping[RunSpec, Sequence[Sample]]) -> None:
        for some in samples.values():
            self.cell = replace(self.cell, samples=[*self.cell.samples, *some])

    def end(self, cell: Cell) -> None:
        self.cell, self.over = cell, True


@dataclass
class Relay:
    """Forward events of the other process."""

    observers: Sequence[Observer]
    note: Note
    found: Failure | None = None
    death: str = ""

    def pass_on(self, event: Event) -> None:
        name, arguments = event
        if name == "note":
            self.note(*arguments)
        elif name == "failed":
            (self.found,) = arguments
        else:
            for observer in self.observers:
                getattr(observer, name)(*arguments)


def follow(specs: Sequence[RunSpec], past: Past, relay: Relay) -> KeyboardInterrupt | None:
    """Run the process and forward its events until it ends; returns an interrupt that came meanwhile.

    A fresh interpreter: a fork of a process that has used torch's threads would deadlock.
    """
    fresh = multiprocessing.get_context("spawn")
    ours, theirs = fresh.Pipe(duplex=False)
    process = fresh.Process(target=work, args=(theirs, specs, {spec: past[spec] for spec in specs if spec in past}))
    process.start()
    theirs.close()  # else the pipe would stay open after the process ends
    impatient, stop = Timer(PATIENCE, process.kill), None
    impatient.daemon = True
    try:
        listen(ours, relay)
    except KeyboardInterrupt as interrupt:
        stop = interrupt
        if process.is_alive():
            process.terminate()  # a terminal may have sent the signal too; both count as one
        impatient.start()
        listen(ours, relay)
    process.join()
    impatient.cancel()
    relay.death = how_it_ended(process.exitcode)
    return stop


def listen(pipe: Connection, relay: Relay) -> None:
    """Forward events until the other end is closed."""
    while True:
        try:
            event: Event = pipe.recv()
        except (EOFError, OSError):  # OSError if the process was killed in the middle of a message
            return
        relay.pass_on(event)


def how_it_ended(code: int | None) -> str:
    """The reason for missing numbers, for the row of the cell."""
    if code is not None and code < 0:
        return f"its process was ended by {signal.Signals(-code).name}; continue with --resume"
    return f"its process ended with exit code {code}; continue with --resume"


def work(pipe: Connection, specs: Sequence[RunSpec], past: Past) -> None:
    """Child process: check, load and measure, and send all events."""
    end_with_parent()
    once = Once()
    signal.signal(signal.SIGTERM, once)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # a shell sets this for background jobs
        signal.signal(signal.SIGINT, once)
    telling = Telling(lambda event: whole(event, pipe, once))
    try:
        (unit,) = local_units([prepared(specs)], telling.note)
        found, _ = unit.measure([telling], past, telling.note)
    except KeyboardInterrupt:
        return  # before anything was measured
    if isinstance(found, Failure):
        telling.tell("failed", replace(found, cause=None))


class Once:
    """Raise only the first interrupt; results are saved during later ones."""

    def __init__(self) -> None:
        self._heard = self._waits = self._held = False

    def __call__(self, number: int, frame: Any) -> None:
        if not self._heard:
            self._heard, self._waits = True, self._held
            if not self._held:
                raise KeyboardInterrupt

    @contextmanager
    def held(self) -> Iterator[None]:
        """Defer interrupts to the end of the block; only the main thread is ever interrupted."""
        if current_thread() is not main_thread():
            yield
            return
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self._waits:
            self._waits = False
            raise KeyboardInterrupt


def whole(event: Event, pipe: Connection, once: Once) -> None:
    """Send an event, deferring interrupts: half a message would break the stream. Exit if the reader has ended."""
    with once.held():
        try:
            pipe.send(event)
        except BrokenPipeError:
            os._exit(1)


class Telling(Observer):
    """The child's observer; `send` passes events to the process that records them."""

    def __init__(self, send: Callable[[Event], None]) -> None:
        self._send, self._lock = send, Lock()

    def tell(self, name: str, *arguments: object) -> None:
        with self._lock:  # several threads read weights
            self._send((name, arguments))

    def note(self, line: str) -> None:
        self.tell("note", line)

    def loading(self, what: str, done: int, total: int) -> None:
        self.tell("loading", what, done, total)

    def begin(self, cells: Sequence[Cell], prompts: int) -> None:
        self.tell("begin", cells, prompts)

    def resolved(self, cells: Sequence[Cell]) -> None:
        self.tell("resolved", cells)

    def preparing(self, spec: RunSpec | None) -> None:
        self.tell("preparing", spec)

    def turn(self, samples: Mapping[RunSpec, Sequence[Sample]]) -> None:
        self.tell("turn", samples)

    def comparing(self, done: int, texts: int) -> None:
        self.tell("comparing", done, texts)

    def end(self, cell: Cell) -> None:
        self.tell("end", cell)
