"""A cluster as a run sees it: seats, scheduling of cells, and retries after a lost worker.

Events of workers are forwarded as they arrive, so only this process writes the journal.
"""

from collections.abc import Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from specbench.errors import UsageError
from specbench.jobs.subprocess import Event, Known, Relay
from specbench.measure.group import INTERRUPTED, Failure, Past, give_up
from specbench.measure.pair import Measured, Note
from specbench.results.cells import UNFINISHED, Cell, Observer
from specbench.spec import RunSpec

TRIES = 3  # workers that a cell may lose before it fails
SILENT = Failure("error", "its worker ended without an error message")
NOWHERE = Failure("partial", "no node of the cluster is left for it; continue with --resume")


@dataclass(frozen=True)
class Seat:
    """A slot for one timed cell: a GPU of a node, or a whole node for CPU cells."""

    node: str
    host: str
    device: str
    number: int = 0


@dataclass(frozen=True)
class Lost:
    """A worker was lost with its cell; includes the reason."""

    reason: str


@dataclass(frozen=True)
class Over:
    """A worker has finished; `failure` is the error that stopped it, if any."""

    failure: Failure | None = None


class Cluster(Protocol):
    """A place to measure cells. Tasks are opaque handles."""

    def seats(self) -> Sequence[Seat]:
        """The seats of all live nodes."""
        ...

    def send(self, seat: Seat, spec: RunSpec, past: Past) -> Hashable:
        """Start measuring a cell on a seat; returns the task."""
        ...

    def heard(self, tasks: Sequence[Hashable]) -> Sequence[tuple[Hashable, Event | Lost | Over]]:
        """The next events of some tasks; waits for a limited time."""
        ...

    def cancel(self, tasks: Sequence[Hashable]) -> None: ...


def devices_of(seats: Sequence[Seat]) -> frozenset[str]:
    return frozenset(seat.device for seat in seats)


def device_of(spec: RunSpec, devices: frozenset[str]) -> str:
    """The device type for a cell; auto means a GPU if any node has one."""
    if spec.device == "auto":
        return "cuda" if "cuda" in devices else "cpu"
    return spec.device


def refuse_unseated(specs: Sequence[RunSpec], devices: frozenset[str]) -> None:
    """Raise UsageError for a cell on several devices, on a numbered device, or on a kind that no node has."""
    for spec in specs:
        if spec.tensor_parallel is not None or (spec.draft_device or "cpu") != "cpu":
            option = "--tensor-parallel" if spec.tensor_parallel is not None else "--draft-device"
            raise UsageError(f"--executor ray gives every cell one GPU: leave {option} out")
        if (device := device_of(spec, devices)) not in devices:
            known = " and ".join(sorted(devices)) or "nothing"
            raise UsageError(
                f"--device {device}: the cluster offers {known}, and chooses which one itself: use auto, cpu or cuda"
            )


@dataclass(frozen=True)
class Try:
    """A waiting cell, its known results, and the nodes that lost it."""

    spec: RunSpec
    known: Cell | None
    lost_on: tuple[str, ...] = ()

    def fits(self, seat: Seat, devices: frozenset[str]) -> bool:
        return seat.device == device_of(self.spec, devices)


@dataclass
class Running:
    """A cell being measured. where: columns of its row that its worker reported."""

    tried: Try
    seat: Seat
    relay: Relay
    known: Known
    where: Mapping[str, Any] = field(default_factory=dict)

    def hear(self, event: Event) -> None:
        """Forward a worker's event, adding the worker's location to the row of the cell."""
        name, arguments = event
        if name == "where":
            (self.where,) = arguments
        elif name in ("begin", "resolved"):
            cells, *rest = arguments
            self.relay.pass_on((name, ([self._placed(cell) for cell in cells], *rest)))
        elif name == "end":
            self.relay.pass_on((name, (self._placed(arguments[0]),)))
        else:
            self.relay.pass_on(event)

    def _placed(self, cell: Cell) -> Cell:
        return replace(cell, resolved={**cell.resolved, **self.where})


@dataclass(frozen=True)
class Spread:
    """A unit of cells measured on a cluster; the cluster context is entered for it."""

    specs: Sequence[RunSpec]
    cluster: AbstractContextManager[Cluster]

    def measure(self, observers: Sequence[Observer], past: Past, note: Note) -> Measured:
        """Measure the cells on workers, each on its own device. UsageError if no node has a required device."""
        with self.cluster as cluster:
            return Spreading(cluster, self.specs, observers, past, note).cells()


@dataclass
class Spreading:
    """The cells of a run on a cluster: waiting, running and ended."""

    cluster: Cluster
    specs: Sequence[RunSpec]
    observers: Sequence[Observer]
    past: Past
    note: Note
    waiting: list[Try] = field(init=False)
    running: dict[Hashable, Running] = field(default_factory=dict, init=False)
    ended: dict[RunSpec, Cell] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        over = {s: self.past[s] for s in self.specs if s in self.past and self.past[s].status not in UNFINISHED}
        self.ended |= over
        self.waiting = [Try(spec, self.past.get(spec)) for spec in self.specs if spec not in over]

    def cells(self) -> Measured:
        """Measure all cells; after an interrupt, unfinished ones end with their partial results."""
        refuse_unseated([tried.spec for tried in self.waiting], devices_of(self.cluster.seats()))
        stop: KeyboardInterrupt | None = None
        try:
            while self.waiting or self.running:
                self.seat()
                for task, said in self.cluster.heard(list(self.running)):
                    self.hear(task, said)
        except KeyboardInterrupt as interrupt:
            stop = interrupt
            self.give_up(INTERRUPTED)
        return [self.ended[spec] for spec in self.specs], stop

    def seat(self) -> None:
        """Give every free seat the first cell that may be measured there."""
        seats = self.cluster.seats()
        devices, taken = devices_of(seats), {one.seat for one in self.running.values()}
        for tried in list(self.waiting):
            able = [seat for seat in seats if tried.fits(seat, devices)]
            elsewhere = [seat for seat in able if seat.node not in tried.lost_on]
            free = [seat for seat in elsewhere or able if seat not in taken]
            if free:
                taken.add(free[0])
                self.begin(tried, free[0])
        if not self.running:
            self.give_up(NOWHERE)  # all waiting cells

    def begin(self, tried: Try, seat: Seat) -> None:
        self.waiting.remove(tried)
        known = Known(tried.known or Cell(tried.spec, {}, status="skipped"))
        past = {} if tried.known is None else {tried.spec: tried.known}
        task = self.cluster.send(seat, tried.spec, past)
        self.running[task] = Running(tried, seat, Relay([*self.observers, known], self.note), known)

    def hear(self, task: Hashable, said: Event | Lost | Over) -> None:
        """Handle an event from or about a worker."""
        one = self.running[task]
        if isinstance(said, Lost):
            del self.running[task]
            self.lose(one, said)
        elif isinstance(said, Over):
            del self.running[task]
            self.finish(one, said)
        else:
            one.hear(said)

    def finish(self, one: Running, said: Over) -> None:
        """Keep an ended cell; end one that could not be measured."""
        if one.known.over:
            self.ended[one.tried.spec] = one.known.cell
        else:
            self.end(one, one.relay.found or said.failure or SILENT)

    def lose(self, one: Running, lost: Lost) -> None:
        """Retry a lost cell elsewhere, or end it after too many lost workers."""
        if one.known.over:
            self.ended[one.tried.spec] = one.known.cell
            return
        spec, lost_on = one.tried.spec, (*one.tried.lost_on, one.seat.node)
        what = f"{spec.method}, K = {spec.k}, {spec.dataset}: its worker on {one.seat.host} was lost ({lost.reason})"
        if len(lost_on) == TRIES:
            self.end(
                one, Failure("partial", f"it lost {TRIES} workers, the last ({lost.reason}); continue with --resume")
            )
            return
        self.note(f"{what}; measured again elsewhere, {len(lost_on)} of {TRIES - 1}")
        known = one.known.cell if one.known.cell.resolved else one.tried.known
        self.waiting.insert(0, Try(spec, known, lost_on))

    def end(self, one: Running, failure: Failure) -> None:
        """End a started cell with its results so far."""
        self.abandon(Try(one.tried.spec, one.known.cell), failure)

    def abandon(self, tried: Try, failure: Failure) -> None:
        """End a cell that no worker is measuring any more."""
        past = {} if tried.known is None else {tried.spec: tried.known}
        (self.ended[tried.spec],) = give_up([tried.spec], failure, self.observers, past)

    def give_up(self, failure: Failure) -> None:
        """End all unfinished cells and cancel the running ones."""
        self.cluster.cancel(list(self.running))
        for one in self.running.values():
            if one.known.over:
                self.ended[one.tried.spec] = one.known.cell
            else:
                self.end(one, failure)
        for tried in self.waiting:
            self.abandon(tried, failure)
        self.running, self.waiting = {}, []
