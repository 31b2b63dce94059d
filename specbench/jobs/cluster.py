"""A cluster as a run sees it: seats, which cell goes where, and what becomes of one whose worker is lost.

What workers say is passed on as it comes, so the one journal is written here.
"""

from collections.abc import Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from specbench.errors import UsageError
from specbench.jobs.subprocess import Event, Known, Told
from specbench.measure.group import INTERRUPTED, Failure, Past, give_up
from specbench.measure.pair import Measured, Note
from specbench.results.cells import UNFINISHED, Cell, Observer
from specbench.spec import RunSpec

TRIES = 3  # workers that a cell may lose, before it is given up
UNTOLD = Failure("error", "its worker ended without a word about it")
NOWHERE = Failure("partial", "no node of the cluster is left for it; go on with --resume")


@dataclass(frozen=True)
class Seat:
    """A place for one timed cell: a GPU of a node, or a node as a whole for cells on the CPU."""

    node: str
    host: str
    device: str
    number: int = 0


@dataclass(frozen=True)
class Lost:
    """A worker is gone with its cell, and why."""

    reason: str


@dataclass(frozen=True)
class Over:
    """A worker has said everything; `failure` is what broke it, if anything did."""

    failure: Failure | None = None


class Cluster(Protocol):
    """Where cells are measured. A task is whatever it calls one that it works on."""

    def seats(self) -> Sequence[Seat]:
        """The places of all nodes that live now."""
        ...

    def send(self, seat: Seat, spec: RunSpec, past: Past) -> Hashable:
        """Have a cell measured there; returns the task."""
        ...

    def heard(self, tasks: Sequence[Hashable]) -> Sequence[tuple[Hashable, Event | Lost | Over]]:
        """What some of the tasks say next; waits for it, but not for ever."""
        ...

    def cancel(self, tasks: Sequence[Hashable]) -> None:
        """End tasks at once."""
        ...


def devices_of(seats: Sequence[Seat]) -> frozenset[str]:
    return frozenset(seat.device for seat in seats)


def device_of(spec: RunSpec, devices: frozenset[str]) -> str:
    """The kind of device that a cell is measured on; auto is a GPU where any node has one."""
    if spec.device == "auto":
        return "cuda" if "cuda" in devices else "cpu"
    return spec.device


def refuse_unseated(specs: Sequence[RunSpec], devices: frozenset[str]) -> None:
    """UsageError for a cell that is to be measured on a device which
    no node has, or which is the cluster's choice, or on more than one."""
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
    """A cell that waits, what is known of it, and the nodes that lost it."""

    spec: RunSpec
    known: Cell | None
    lost_on: tuple[str, ...] = ()

    def fits(self, seat: Seat, devices: frozenset[str]) -> bool:
        return seat.device == device_of(self.spec, devices)


@dataclass
class Running:
    """A cell that is being measured. where: columns of its row, as its worker has said them."""

    tried: Try
    seat: Seat
    told: Told
    known: Known
    where: Mapping[str, Any] = field(default_factory=dict)

    def hear(self, event: Event) -> None:
        """Pass on what its worker says, with the place of the worker in the cell's row."""
        name, arguments = event
        if name == "where":
            (self.where,) = arguments
        elif name in ("begin", "resolved"):
            cells, *rest = arguments
            self.told.pass_on((name, ([self._placed(cell) for cell in cells], *rest)))
        elif name == "end":
            self.told.pass_on((name, (self._placed(arguments[0]),)))
        else:
            self.told.pass_on(event)

    def _placed(self, cell: Cell) -> Cell:
        return replace(cell, resolved={**cell.resolved, **self.where})


@dataclass(frozen=True)
class Spread:
    """Cells that are measured on a cluster, which is entered for that."""

    specs: Sequence[RunSpec]
    cluster: AbstractContextManager[Cluster]

    def measure(self, observers: Sequence[Observer], past: Past, note: Note) -> Measured:
        """The cells as workers measured them, each on a device of its own. UsageError for devices that nobody has."""
        with self.cluster as cluster:
            return Spreading(cluster, self.specs, observers, past, note).cells()


@dataclass
class Spreading:
    """The cells of a run on a cluster: those that wait, those that are being measured, and those that have ended."""

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
        """Measure them all; after an interrupt, those that had not ended are given up with what they have."""
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
            self.give_up(NOWHERE)  # whatever waits

    def begin(self, tried: Try, seat: Seat) -> None:
        """Send a cell to a seat."""
        self.waiting.remove(tried)
        known = Known(tried.known or Cell(tried.spec, {}, status="skipped"))
        past = {} if tried.known is None else {tried.spec: tried.known}
        task = self.cluster.send(seat, tried.spec, past)
        self.running[task] = Running(tried, seat, Told([*self.observers, known], self.note), known)

    def hear(self, task: Hashable, said: Event | Lost | Over) -> None:
        """One thing that a worker has said, or that was said of it."""
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
        """Keep a cell that has ended, or end one that could not be measured."""
        if one.known.over:
            self.ended[one.tried.spec] = one.known.cell
        else:
            self.end(one, one.told.found or said.failure or UNTOLD)

    def lose(self, one: Running, lost: Lost) -> None:
        """Have a cell measured elsewhere, or end it where it has lost too many workers."""
        if one.known.over:
            self.ended[one.tried.spec] = one.known.cell
            return
        spec, lost_on = one.tried.spec, (*one.tried.lost_on, one.seat.node)
        what = f"{spec.method}, K = {spec.k}, {spec.dataset}: its worker on {one.seat.host} was lost ({lost.reason})"
        if len(lost_on) == TRIES:
            self.end(one, Failure("partial", f"it lost {TRIES} workers, the last ({lost.reason}); go on with --resume"))
            return
        self.note(f"{what}; measured again elsewhere, {len(lost_on)} of {TRIES - 1}")
        known = one.known.cell if one.known.cell.resolved else one.tried.known
        self.waiting.insert(0, Try(spec, known, lost_on))

    def end(self, one: Running, failure: Failure) -> None:
        """End a cell that was begun, with what is known of it."""
        self.abandon(Try(one.tried.spec, one.known.cell), failure)

    def abandon(self, tried: Try, failure: Failure) -> None:
        """End a cell that nobody works on any more."""
        past = {} if tried.known is None else {tried.spec: tried.known}
        (self.ended[tried.spec],) = give_up([tried.spec], failure, self.observers, past)

    def give_up(self, failure: Failure) -> None:
        """End all that have not ended; what is being measured is cut off."""
        self.cluster.cancel(list(self.running))
        for one in self.running.values():
            if one.known.over:
                self.ended[one.tried.spec] = one.known.cell
            else:
                self.end(one, failure)
        for tried in self.waiting:
            self.abandon(tried, failure)
        self.running, self.waiting = {}, []
