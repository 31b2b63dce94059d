"""What a user sees while a draft is trained, on stderr: a bar with loss, speed, what is held out, and the time left.

Knows rich and how far a run is; must not know what is trained.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from specbench.jobs.output import say
from specbench.training.curve import Point
from specbench.training.curve import Progress as Learning
from specbench.training.recipe import Recipe

PLAIN = 30.0  # seconds between two lines where there is no terminal


class Shown:
    """Draws or says how far a training run is; every evaluation is a line of its own. `now` reads seconds."""

    def __init__(self, console: Console, bar: Progress | None, now: Callable[[], float] = time.monotonic) -> None:
        self.console, self.bar, self.now = console, bar, now
        self.task = bar.add_task("training", total=None) if bar is not None else None
        self.seen, self.due = 0, now() + PLAIN
        self.began: tuple[float, int] | None = None

    def __call__(self, progress: Learning, recipe: Recipe) -> None:
        if self.began is None:
            self.began = self.now(), progress.tokens
        line = f"{self.state(progress)}{self.speed(progress, recipe)}"
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=progress.tokens, total=recipe.tokens, description=line)
        if len(progress.curve) > self.seen:
            self.seen = len(progress.curve)
            self.due = self.now() + PLAIN
            say(self.console, [evaluated(progress.curve[-1], recipe)])
        elif self.bar is None and self.now() >= self.due:
            self.due = self.now() + PLAIN
            say(self.console, [line])

    def state(self, progress: Learning) -> str:
        """The loss, and what was held out last."""
        loss = "" if progress.loss is None else f"loss {progress.loss:.3f}, "
        last = progress.curve[-1]
        return f"{loss}α {last.alpha:.3f}, {last.accepted:.2f} tokens per round"

    def speed(self, progress: Learning, recipe: Recipe) -> str:
        """Tokens per second since this process began, and the minutes that are left at that."""
        assert self.began is not None
        seconds, learned = self.now() - self.began[0], progress.tokens - self.began[1]
        if learned <= 0 or seconds <= 0:
            return ""
        left = (recipe.tokens - progress.tokens) * seconds / learned / 60
        return f", {learned / seconds:.0f} tokens/s, about {max(left, 0):.0f} min left"


def evaluated(point: Point, recipe: Recipe) -> str:
    """An evaluation in one line."""
    loss = "before any training" if point.loss is None else f"loss {point.loss:.3f}"
    share = point.tokens / recipe.tokens
    return (
        f"{point.tokens:,} tokens ({share:.0%}): {loss}, held out α {point.alpha:.3f}, "
        f"{point.accepted:.2f} tokens per round at K {recipe.k}"
    )


@contextmanager
def shown(console: Console) -> Iterator[Shown]:
    """A `Shown` on a console, which is drawn where that is a terminal."""
    if not console.is_terminal or console.quiet:
        yield Shown(console, None)
        return
    text = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis"))
    with Progress(text, BarColumn(bar_width=16), TimeRemainingColumn(), console=console, transient=True) as bar:
        yield Shown(console, bar)
