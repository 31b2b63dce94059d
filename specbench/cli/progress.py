"""What a user sees while a run goes on, on stderr: a live bar on a terminal, one plain line per cell elsewhere."""

import math
from collections.abc import Mapping, Sequence
from types import TracebackType

from rich.console import Console

from specbench import metrics
from specbench.bench.files import clean
from specbench.bench.record import RunFolder
from specbench.bench.samples import Cell, Sample, timing
from specbench.spec import RunSpec


class Watch:
    """Passes every event on to `folder`, which must have it on disk before anything is drawn."""

    def __init__(self, console: Console, folder: RunFolder, quiet: bool, turns: int | None = None) -> None:
        self._console, self._folder, self._quiet = console, folder, quiet

    def __enter__(self) -> "Watch":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def begin(self, cells: Sequence[Cell], turns: int) -> None:
        self._folder.begin(cells, turns)

    def turn(self, samples: Mapping[RunSpec, Sample]) -> None:
        self._folder.turn(samples)

    def end(self, cell: Cell) -> None:
        self._folder.end(cell)
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
