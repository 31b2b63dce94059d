"""Figures over the batch size: throughput of both arms, and the speedup with the break-even batch.

Knows rows of results.csv that differ in their batch and their lookahead alone; must not know how a figure is written.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator, ScalarFormatter

from specbench.show.cell_text import lookahead
from specbench.show.report.plots import (  # fmt: skip
    DASHED,
    INK,
    Picture,
    Sheet,
    float_in,
    floats_in,
    legend,
    line_with_intervals,
    marked_line,
)
from specbench.show.report.plots_sweep import Lines, looks
from specbench.wording import Row, grouped

BATCH = "batch (rows decoded together)"
THROUGHPUT = Sheet(
    "throughput-against-batch",
    "Throughput against batch",
    "New tokens per second of all rows together, decode only. The dashed line is the baseline in the same batch.",
    BATCH,
    "tokens per second",
)
SPEEDUP = Sheet(
    "speedup-against-batch",
    "Speedup against batch",
    "Measured, with its 95 % interval. Dotted: the break-even batch, at which the costs measured in the largest "
    "batch make it 1 if all rows are full; where rows stood idle (table), a short stream loses sooner.",
    BATCH,
    "speedup over the baseline",
)


def figures(rows: Sequence[Row]) -> list[Picture]:
    """Throughput and speedup; empty where fewer than two batches have numbers."""
    found = by_lookahead(rows)
    if len({row["batch"] for group in found.values() for row in group}) < 2:
        return []
    return [throughput_against_batch(found), speedup_against_batch(found)]


def by_lookahead(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The measured rows by lookahead, each in the order of the batch."""
    measured = [row for row in rows if math.isfinite(float_in(row, "speedup"))]
    groups = grouped(sorted(measured, key=lambda row: float_in(row, "batch")), lookahead)
    return {f"K = {lookahead(group[0])}": group for group in groups}


@contextmanager
def over_batch(sheet: Sheet, found: Lines) -> Iterator[tuple[Picture, Axes]]:
    with sheet.drawing() as (picture, axes):
        axes.set_xscale("log", base=2)
        axes.set_xticks(sorted({float_in(row, "batch") for rows in found.values() for row in rows}))
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.xaxis.set_minor_locator(NullLocator())
        yield picture, axes


def throughput_against_batch(found: Lines) -> Picture:
    """Tokens per second of both arms."""
    with over_batch(THROUGHPUT, found) as (picture, axes):
        for name, rows, look in looks(found):
            x, y = floats_in(rows, "batch"), floats_in(rows, "tokens_per_second")
            tips = [f"{name}, batch {a:g}: {b:.1f} tokens/s" for a, b in zip(x, y, strict=True)]
            marked_line((picture, axes), x, y, tips, name, **look)
        longest = max(found.values(), key=len)  # the baseline is the same for every K
        x, y = floats_in(longest, "batch"), floats_in(longest, "baseline_tokens_per_second")
        axes.plot(x, y, label="baseline", **DASHED)
        axes.set_ylim(bottom=0)
        legend(axes, 3)
    return picture


def speedup_against_batch(found: Lines) -> Picture:
    """The measured speedup with its interval, and where the costs of the largest batch say that it will be 1."""
    with over_batch(SPEEDUP, found) as (picture, axes):
        axes.axhline(1, color=INK, linewidth=1)
        for name, rows, look in looks(found):
            tips = [f"{name}, batch {float_in(r, 'batch'):g}: {float_in(r, 'speedup'):.3f}×" for r in rows]
            line_with_intervals((picture, axes), rows, "batch", "speedup", tips, name, look, capsize=3)
            even = float_in(rows[-1], "break_even_batch")
            if math.isfinite(even) and even > 0:
                label = f"{name}: break-even at {even:.1f}"
                axes.axvline(even, color=look["color"], linestyle=":", linewidth=1.3, label=label)
        legend(axes)
    return picture
