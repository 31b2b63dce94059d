"""Figures over the batch size: throughput of both arms, and the speedup with the batch at which nothing is won.

Knows rows of results.csv that differ in their batch and their lookahead alone.
"""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator, ScalarFormatter

from specbench.show.cell_text import lookahead
from specbench.show.plots import INK, Picture, blank, errors, float_in, floats_in, legend, points, style
from specbench.show.plots_sweep import Lines, looks
from specbench.wording import Row, grouped


def by_lookahead(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The measured rows by lookahead, each in the order of the batch."""
    measured = [row for row in rows if math.isfinite(float_in(row, "speedup"))]
    groups = grouped(sorted(measured, key=lambda row: float_in(row, "batch")), lookahead)
    return {f"K = {lookahead(group[0])}": group for group in groups}


def figures(rows: Sequence[Row]) -> list[Picture]:
    """Throughput and speedup; none where fewer than two batches have numbers."""
    found = by_lookahead(rows)
    if len({row["batch"] for group in found.values() for row in group}) < 2:
        return []
    with style():
        return [throughput_against_batch(found), speedup_against_batch(found)]


def over_batch(name: str, title: str, caption: str, y: str, found: Lines) -> tuple[Picture, Axes]:
    picture, axes = blank(name, title, caption, "batch (rows decoded together)", y)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted({float_in(row, "batch") for rows in found.values() for row in rows}))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    return picture, axes


def throughput_against_batch(found: Lines) -> Picture:
    """Tokens per second of both arms."""
    picture, axes = over_batch(
        "throughput-against-batch",
        "Throughput against batch",
        "New tokens per second of all rows together, decode only. The dashed line is the baseline in the same batch.",
        "tokens per second",
        found,
    )
    for name, rows, colour, marker in looks(found):
        x, y = floats_in(rows, "batch"), floats_in(rows, "tokens_per_second")
        axes.plot(x, y, color=colour, marker=marker, label=name)
        tips = [f"{name}, batch {a:g}: {b:.1f} tokens/s" for a, b in zip(x, y, strict=True)]
        points(picture, axes, x, y, tips, color=colour, marker=marker)
    level = max(found.values(), key=len)  # the baseline is the same for every K
    x, y = floats_in(level, "batch"), floats_in(level, "baseline_tokens_per_second")
    axes.plot(x, y, color=INK, linestyle="--", linewidth=1.2, label="baseline")
    axes.set_ylim(bottom=0)
    legend(axes, 3)
    return picture


def speedup_against_batch(found: Lines) -> Picture:
    """The measured speedup with its interval, and where the costs of the largest batch say that it will be 1."""
    picture, axes = over_batch(
        "speedup-against-batch",
        "Speedup against batch",
        "Measured, with its 95 % interval. Dotted: the break-even batch, at which the costs measured in the largest "
        "batch make it 1 if all rows are full; where rows stood idle (table), a short stream loses sooner.",
        "speedup over the baseline",
        found,
    )
    axes.axhline(1, color=INK, linewidth=1)
    for name, rows, colour, marker in looks(found):
        x, y = floats_in(rows, "batch"), floats_in(rows, "speedup")
        bars = errors(y, floats_in(rows, "speedup_low"), floats_in(rows, "speedup_high"))
        axes.errorbar(x, y, yerr=bars, color=colour, marker=marker, capsize=3, label=name)
        tips = [f"{name}, batch {a:g}: {b:.3f}×" for a, b in zip(x, y, strict=True)]
        points(picture, axes, x, y, tips, color=colour, marker=marker)
        if math.isfinite(even := float_in(rows[-1], "break_even_batch")) and even > 0:
            axes.axvline(even, color=colour, linestyle=":", linewidth=1.3, label=f"{name}: break-even at {even:.1f}")
    legend(axes)
    return picture
