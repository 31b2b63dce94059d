"""Signals that ask a process to end: they interrupt it as Ctrl-C does, so that it leaves tables and says how to go on.

Knows signals and the exit codes that shells give them; must not know what is interrupted.
"""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

NAMES = ("SIGTERM", "SIGHUP")  # of a scheduler or a service manager; of a terminal that was closed
GRACE = 1.0  # seconds in which a second one is no further request: both are often sent, one directly after the other
INTERRUPTED = 130  # Ctrl-C


@dataclass
class Heard:
    """The first signal that came; 0 where none did."""

    number: int = 0
    at: float = 0.0

    @property
    def code(self) -> int:
        """The exit code of a command that was interrupted."""
        return 128 + self.number if self.number else INTERRUPTED

    @property
    def what(self) -> str:
        """What ended the command, as a word of its last line."""
        return f"ended by {signal.Signals(self.number).name}" if self.number else "interrupted"

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt, as Python does for Ctrl-C."""
        if not self.number or time.monotonic() - self.at > GRACE:
            self.number, self.at = number, time.monotonic()
            raise KeyboardInterrupt


@contextmanager
def heeded() -> Iterator[Heard]:
    """Signals interrupt meanwhile, except those that whoever began the process has decided about (nohup)."""
    heard = Heard()
    numbers = [signal.Signals[name] for name in NAMES if name in signal.Signals.__members__]
    ours = [number for number in numbers if main_thread() and signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, heard.interrupt)
    try:
        yield heard
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def main_thread() -> bool:
    """Only there can handlers be set."""
    return threading.current_thread() is threading.main_thread()
