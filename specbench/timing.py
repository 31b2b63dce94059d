"""Clocks: what a timed region is, and spans inside it that say which phase took how long.

A clock knows seconds and phase names; it must not know what is decoded. Nested spans are named by their path, so the
verify pass of an inner speculation is "draft/verify".
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import torch


class Clock(Protocol):
    """Measures one region at a time; `spans` holds the seconds by phase of the region that ended last."""

    def span(self, phase: str) -> AbstractContextManager[None]:
        """Attribute the time inside to `phase`."""
        ...

    def start(self) -> None:
        """Begin a region with the device idle, forgetting earlier spans."""
        ...

    def stop(self) -> tuple[float, dict[str, float]]:
        """(seconds of the region, seconds by phase), with the device idle again."""
        ...


class NullClock:
    """Measures nothing, costs nothing."""

    def span(self, phase: str) -> AbstractContextManager[None]:
        return nullcontext()

    def start(self) -> None:
        return

    def stop(self) -> tuple[float, dict[str, float]]:
        return 0.0, {}


class WallClock:
    """Host time; exact for a device that runs synchronously with the host. Tests inject `now`."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._path: list[str] = []
        self._spans: dict[str, float] = {}
        self._began = 0.0

    def _read(self) -> float:
        return self._now()

    @contextmanager
    def span(self, phase: str) -> Iterator[None]:
        self._path.append(phase)
        began = self._read()
        try:
            yield
        finally:
            name = "/".join(self._path)
            self._spans[name] = self._spans.get(name, 0.0) + self._read() - began
            self._path.pop()

    def start(self) -> None:
        self._spans = {}
        self._began = self._read()

    def stop(self) -> tuple[float, dict[str, float]]:
        return self._read() - self._began, dict(self._spans)


class CudaClock:
    """Host time between two synchronisations for the region, device events for the spans: no wait inside the region."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._path: list[str] = []
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        self._began = 0.0

    def _mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    @contextmanager
    def span(self, phase: str) -> Iterator[None]:
        self._path.append(phase)
        began = self._mark()
        try:
            yield
        finally:
            self._events.append(("/".join(self._path), began, self._mark()))
            self._path.pop()

    def start(self) -> None:
        self._events = []
        torch.cuda.synchronize(self._device)
        self._began = time.perf_counter()

    def stop(self) -> tuple[float, dict[str, float]]:
        torch.cuda.synchronize(self._device)
        seconds = time.perf_counter() - self._began
        spans: dict[str, float] = {}
        for name, began, ended in self._events:
            spans[name] = spans.get(name, 0.0) + began.elapsed_time(ended) / 1000
        return seconds, spans


def clock_for(device: torch.device) -> Clock:
    """The clock that measures `device` truthfully."""
    return CudaClock(device) if device.type == "cuda" else WallClock()
