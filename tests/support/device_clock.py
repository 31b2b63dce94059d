"""A device's clock that stands still until a test moves it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch

from specbench.decoding import timing
from specbench.decoding.timing import CudaClock


@dataclass
class DeviceTime:
    """The time of a device that is as fast as its host, in seconds; while `capturing`, laps belong to a graph."""

    now: float = 0.0
    capturing: bool = False
    clock: CudaClock = field(default_factory=lambda: CudaClock(torch.device("cpu")))

    @contextmanager
    def at_hand(self) -> Iterator["DeviceTime"]:
        """Events, host time and synchronisation of `clock` are ours inside."""
        hand = self

        class Event:
            def __init__(self, **_: bool) -> None: ...

            def record(self) -> None:
                self.at = 1000 * hand.now

            def elapsed_time(self, later: "Event") -> float:
                return later.at - self.at

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: self.now))
            patch.setattr(timing, "_running", [])  # the clock that gets the laps of compiled rounds later is another
            patch.setattr(torch.cuda, "Event", Event)
            patch.setattr(torch.cuda, "synchronize", lambda device: None)
            patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.capturing)
            yield self
