"""Clocks: timed regions, and laps inside them that measure each phase.

Every part of a method has its own view of the clock (`under`), so that the verify pass of an
inner speculation is "draft/verify"; a phase includes those under it.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from specbench.decoding.tokens import TokenTree, ancestors, constant
from specbench.decoding.types import Context


class Laps(Protocol):
    """A clock as seen by a part of a method."""

    def lap(self, phase: str, after: Tensor | None = None) -> None:
        """Assign the time since the last lap to `phase`. `after` is the result of that phase: a
        compiled round must have computed it before the lap, and reads it only after it."""

    def under(self, phase: str) -> "Laps":
        """The same clock for a part whose phases belong to `phase`."""


class Clock(Laps, Protocol):
    """Measures one region at a time."""

    def start(self) -> None:
        """Begin a region with the device idle, forgetting earlier laps."""

    def stop(self) -> tuple[float, dict[str, float]]:
        """(seconds of the region, seconds by phase), with the device idle again."""


class NullClock:
    """Measures nothing, costs nothing."""

    def lap(self, phase: str, after: Tensor | None = None) -> None:
        return

    def under(self, phase: str) -> Laps:
        return self

    def start(self) -> None:
        return

    def stop(self) -> tuple[float, dict[str, float]]:
        return 0.0, {}


@dataclass(frozen=True)
class Under:
    """The view of a part whose phases belong to `phase`."""

    clock: Laps
    phase: str

    def lap(self, phase: str, after: Tensor | None = None) -> None:
        self.clock.lap(f"{self.phase}/{phase}", after)

    def under(self, phase: str) -> Laps:
        return Under(self, phase)


def by_phase(laps: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Seconds of laps summed by phase; "draft/first" counts as "draft" too."""
    spans: dict[str, float] = {}
    for path, seconds in laps:
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            name = "/".join(parts[:depth])
            spans[name] = spans.get(name, 0.0) + seconds
    return spans


_running: list[Clock] = []  # the clock that was started last; it gets the laps inside a compiled round


class WallClock:
    """Host time; exact for a device that runs synchronously with the host. Tests inject `now`."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._laps: list[tuple[str, float]] = []
        self._began = 0.0

    def lap(self, phase: str, after: Tensor | None = None) -> None:
        if torch.compiler.is_compiling() or _marking:
            torch.ops.specbench.lap(after, phase)
        else:
            self._laps.append((phase, self._now()))

    def under(self, phase: str) -> Laps:
        return Under(self, phase)

    def start(self) -> None:
        _running[:] = [self]
        self._laps = []
        self._began = self._now()

    def stop(self) -> tuple[float, dict[str, float]]:
        ended = self._now()
        times = [self._began, *(at for _, at in self._laps)]
        laps = [(phase, at - before) for (phase, at), before in zip(self._laps, times, strict=False)]
        return ended - self._began, by_phase(laps)


_marking: list[bool] = []  # whether laps are recorded as operators


@contextmanager
def marking() -> Iterator[None]:
    """Record laps as operators only, so that they appear in a recorded graph."""
    _marking.append(True)
    try:
        yield
    finally:
        _marking.pop()


_operators = torch.library.Library("specbench", "DEF")  # type: ignore[no-untyped-call]
_operators.define("lap(Tensor(a!) after, str phase) -> ()")  # type: ignore[no-untyped-call]
LAP = torch.ops.specbench.lap.default


@torch.library.impl(_operators, "lap", "CompositeExplicitAutograd")
def _lap(after: Tensor, phase: str) -> None:
    """A no-op; its declared mutation keeps it between the code that computes `after` and the code that reads it."""
    if not _marking:
        lap(phase)


def lap(phase: str) -> None:
    """A lap of the clock that was started last."""
    for clock in _running:
        clock.lap(phase)


@torch.library.register_fake("specbench::lap")  # type: ignore[untyped-decorator]
def _no_lap(after: Tensor, phase: str) -> None:
    return


class CudaClock:
    """Host time between two synchronisations for the region, device events for the laps: no wait inside the region.

    Laps during a capture become events of the graph, which every replay records again; the
    replaying code decides when they may be read.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[tuple[str, torch.cuda.Event]] = []
        self._captured: list[tuple[str, torch.cuda.Event]] = []
        self._replayed: list[tuple[str, float]] = []
        self._ended: list[tuple[str, torch.cuda.Event]] = []  # the end of the last replay
        self._began = self._idle = 0.0

    def lap(self, phase: str, after: Tensor | None = None) -> None:
        if torch.compiler.is_compiling() or _marking:
            torch.ops.specbench.lap(after, phase)
            return
        inside = torch.cuda.is_current_stream_capturing()
        event = torch.cuda.Event(enable_timing=True, external=inside)  # type: ignore[no-untyped-call]
        event.record()
        (self._captured if inside else self._marks).append((phase, event))

    def captured(self) -> list[tuple[str, torch.cuda.Event]]:
        """The laps of the capture that has just ended; the first one is its beginning."""
        laps, self._captured = self._captured, []
        return laps

    def replayed(self, laps: list[tuple[str, torch.cuda.Event]], idle: bool = False) -> None:
        """A replay with these laps has ended: read them before it is started again. If it was idle, the
        region is shorter by the time since the replay before it had ended."""
        if idle:
            self._idle += sum(seconds for _, seconds in between([*self._ended, *laps[-1:]]))
        else:
            self._replayed += between(laps)
        self._ended = laps[-1:]

    def under(self, phase: str) -> Laps:
        return Under(self, phase)

    def start(self) -> None:
        _running[:] = [self]
        self._marks, self._replayed, self._idle = [], [], 0.0
        torch.cuda.synchronize(self._device)
        self._began = time.perf_counter()
        self.lap("")

    def stop(self) -> tuple[float, dict[str, float]]:
        torch.cuda.synchronize(self._device)
        seconds = time.perf_counter() - self._began - self._idle
        return seconds, by_phase([*between(self._marks), *self._replayed])


def between(laps: list[tuple[str, torch.cuda.Event]]) -> list[tuple[str, float]]:
    """Seconds from every lap to the next, by the phase of the later one."""
    return [(phase, a.elapsed_time(b) / 1000) for (_, a), (phase, b) in pairwise(laps)]


def clock_for(device: torch.device) -> Clock:
    """The clock that measures `device` truthfully."""
    return CudaClock(device) if device.type == "cuda" else WallClock()


# --- spans ------------------------------------------------------------------------------------------------------------
# Spans of a sequence between opening and closing tokens, such as those in which a model reasons.


@dataclass(frozen=True)
class Spans:
    """From after a token of `opens` up to and including the next of `closes`; from the
    beginning, too, if sequences have `begun` inside."""

    opens: Sequence[int] = ()
    closes: Sequence[int] = ()
    begun: bool = False

    def inside(self, context: Context) -> Tensor:
        """[B] bool: whether the token after the last committed one is inside. The prompt
        counts: chat templates may open or close a span in it."""
        place = torch.arange(context.seq.shape[1], device=context.seq.device)
        marks = self._marks(context.seq) * (place <= context.pos.unsqueeze(1))
        last = (2 * (place + 1) * (marks != 0) + (marks > 0)).amax(1)
        return torch.where(last > 0, last % 2 == 1, self.begun)

    def at_nodes(self, context: Context, tree: TokenTree) -> Tensor:
        """[B, n + 1] bool: the same for the token after the last committed one (row 0), and after every node."""
        root = self.inside(context).unsqueeze(1)
        if not tree.size:
            return root
        marks = self._marks(tree.ids)
        depths = constant(tree.topology.depths, marks.device)
        above = ancestors(tree.parents, marks.device)  # every node is its own ancestor
        last = (above * (2 * depths * (marks != 0) + (marks > 0)).unsqueeze(1)).amax(-1)
        return torch.cat([root, torch.where(last > 0, last % 2 == 1, root)], 1)

    def _marks(self, ids: Tensor) -> Tensor:
        """1 for tokens that open a span, -1 for those that close one, else 0."""
        opens, closes = (constant(tuple(some), ids.device) for some in (self.opens, self.closes))
        return torch.isin(ids, opens).long() - torch.isin(ids, closes).long()


EVERYWHERE = Spans(begun=True)
