"""What a user sees while a run goes on, on stderr: a live bar on a terminal, one plain line per cell elsewhere."""

import math
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from specbench import metrics
from specbench.bench.files import clean
from specbench.bench.record import RunFolder
from specbench.bench.samples import Cell, Sample, timing
from specbench.spec import RunSpec


class Watch:
    """Draws progress and passes every event on to `folder`, which must have it on disk before anything is drawn."""

    def __init__(self, console: Console, folder: RunFolder, quiet: bool) -> None:
        self._console, self._folder, self._quiet = console, folder, quiet
        self._samples: list[Sample] = []
        self._task: TaskID | None = None
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[live]}", markup=False),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            auto_refresh=False,  # it would draw from a thread of its own, beside the loop that is being timed
            disable=quiet or not console.is_terminal,
        )

    def __enter__(self) -> "Watch":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def begin(self, spec: RunSpec, total: int) -> None:
        self._samples = []
        self._task = self._progress.add_task(name_of(spec), total=total, live="warming up")
        self._progress.refresh()

    def sample(self, spec: RunSpec, sample: Sample) -> None:
        self._folder.add(spec.key, sample)
        self._samples.append(sample)
        if self._task is not None:
            self._progress.update(self._task, advance=1, live=live_line(self._samples))
            self._progress.refresh()

    def end(self, cell: Cell) -> None:
        self._folder.end(cell)
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._progress.refresh()
        if not self._quiet:
            done = f"{name_of(cell.spec)}: {cell.status}, {len(cell.samples)} samples"
            self._console.print(
                f"{done}, {live_line(cell.samples)}" if cell.samples else done,
                markup=False,
                highlight=False,
                soft_wrap=True,
            )


def name_of(spec: RunSpec) -> str:
    """A cell as progress calls it."""
    return f"{clean(spec.dataset)} {clean(spec.method)} K={spec.k}"


def live_line(samples: Sequence[Sample]) -> str:
    """α, tokens per second of both arms and the speedup, over the samples so far."""
    counts = metrics.acceptance([r for s in samples for r in s.method.rounds])
    base, ours = timing([s.baseline for s in samples]), timing([s.method for s in samples])
    slow, fast = metrics.ratio(base.tokens, base.seconds), metrics.ratio(ours.tokens, ours.seconds)
    alpha = "–" if math.isnan(counts.alpha) else f"{counts.alpha:.2f}"
    return f"α {alpha}  {slow:.0f} → {fast:.0f} tokens/s  {metrics.ratio(fast, slow):.2f}×"
