"""A cluster as a schedule sees it: seats for timed cells, and what is heard of the workers on them.

Knows seats, and on which kind of them a cell is measured; must not know what kind of cluster it is.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

from specbench.errors import UsageError
from specbench.jobs.apart import Event
from specbench.measure.failures import Failure
from specbench.measure.group import Past
from specbench.spec import RunSpec


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
    """UsageError for a cell that is to be measured on a device which no node has, or which is the cluster's choice, or
    on more than one."""
    for spec in specs:
        if spec.tensor_parallel is not None or (spec.draft_device or "cpu") != "cpu":
            option = "--tensor-parallel" if spec.tensor_parallel is not None else "--draft-device"
            raise UsageError(f"--executor ray gives every cell one GPU: leave {option} out")
        if (device := device_of(spec, devices)) not in devices:
            known = " and ".join(sorted(devices)) or "nothing"
            raise UsageError(
                f"--device {device}: the cluster offers {known}, and chooses which one itself: use auto, cpu or cuda"
            )
