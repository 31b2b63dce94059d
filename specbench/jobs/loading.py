"""Fetching and loading models as a user sees it, on stderr: bytes in a bar, or a line where it takes a while.

Whoever loads may call from several threads.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Lock

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from specbench.backends.base import Backend, Held
from specbench.jobs.output import say
from specbench.measure.fit import fit_of, refuse_too_large
from specbench.spec import RunSpec
from specbench.wording import gigabytes

REDRAW = 0.1  # seconds between two pictures
SOON, AGAIN = 3.0, 30.0  # seconds until the first line where there is no terminal, and until the next


class Bytes:
    """How far a model is, drawn or said. `draw` is None where there is no terminal; `now` reads seconds."""

    def __init__(
        self,
        draw: Callable[[RenderableType], None] | None,
        tell: Callable[[str], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._draw, self._tell, self._now = draw, tell, now
        columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=16), DownloadColumn())
        self._bar = Progress(*columns, TimeRemainingColumn(), get_time=now, auto_refresh=False)
        self._task = self._bar.add_task("")
        self._what, self._drawn, self._due, self._lock = "", 0.0, 0.0, Lock()

    def __call__(self, what: str, done: int, total: int) -> None:
        with self._lock:
            now = self._now()
            if what != self._what:
                self._bar.reset(self._task, description=what, total=total)
                self._what, self._drawn, self._due = what, now - REDRAW, now + SOON
            self._bar.update(self._task, completed=done, total=total)
            if self._draw is not None and now - self._drawn >= REDRAW:
                self._draw(self._bar)
                self._drawn = now
            if self._draw is None and now >= self._due:
                self._tell(f"{what}: {gigabytes(done)} of {gigabytes(total)}")
                self._due = now + AGAIN


@contextmanager
def shown(console: Console) -> Iterator[Bytes]:
    """A `Bytes` that shows itself on a console, unless that is quiet."""
    if console.is_terminal and not console.quiet:
        with Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False) as live:
            yield Bytes(partial(live.update, refresh=True), console.print)
    else:
        yield Bytes(None, lambda line: say(console, [line]))


def load(backend: Backend, spec: RunSpec, longest: int, console: Console) -> None:
    """Read the weights for the only cell of a job, whose prompts have up to `longest` tokens; say what is to be known.

    UnusableModelError, before anything is read, where memory is not enough.
    """
    refuse_too_large(fit_of(backend, [Held([spec], longest)]))
    with shown(console) as watch:
        backend.load(watch=watch)
    say(console, [f"note: {warning}" for warning in backend.warnings])
