"""The figure of two runs: the speedup of every cell in both, under each other.

Knows rows of results.csv of two runs; must not know how cells were found to belong together.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from specbench.results.statistics import Interval
from specbench.show.report.figure import (
    INK,
    Picture,
    Sheet,
    bounds,
    cut_ends,
    errors,
    float_in,
    in_view,
    interval_tip,
    legend,
    look,
    points,
    short,
    spread,
)
from specbench.wording import Row

MOST = 40  # cells of one figure
OFFSETS = (-0.16, 0.16)
SHEET = Sheet(
    "two-runs",
    "Speedup in both runs",
    "Measured speedup of every cell that both runs have, with its 95 % interval over prompts. Two intervals that "
    "overlap may still differ: the table tests the difference.",
    "speedup over the baseline",
    "",
)

RowPair = tuple[Row, Row]


def two_runs(names: Sequence[str], cells: Sequence[tuple[str, RowPair]]) -> Picture | None:
    """The cells as (name, rows of both runs); None where no cell has a speedup in both."""
    shown = [one for one in cells if all(math.isfinite(float_in(row, "speedup")) for row in one[1])][:MOST]
    if not shown:
        return None
    with replace(SHEET, height=1.6 + 0.34 * len(shown)).drawing() as (picture, axes):
        axes.axvline(1, color=INK, linewidth=1)
        for place, (name, offset) in enumerate(zip(names, OFFSETS, strict=True)):
            found = [Interval(v, low, high) for low, v, high in (bounds(pair[place]) for _, pair in shown)]
            x, y = [one.value for one in found], [at + offset for at in range(len(shown))]
            bars, own = errors(x, [one.low for one in found], [one.high for one in found]), look(place)
            axes.errorbar(x, y, xerr=bars, color=own["color"], linestyle="none", elinewidth=1.4, capsize=2.5)
            axes.plot([], [], linestyle="none", label=short(name, 60), **own)
            tips = [f"{cell}, {name}: {interval_tip(one)}" for (cell, _), one in zip(shown, found, strict=True)]
            points(picture, axes, x, y, tips, **own)
        axes.set_yticks(range(len(shown)), [short(cell) for cell, _ in shown])
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.set_xlim(spread([v for _, pair in shown for row in pair for v in in_view(row)], 1.0))
        both = [
            (at + offset, row) for at, (_, pair) in enumerate(shown) for offset, row in zip(OFFSETS, pair, strict=True)
        ]
        cut_ends(axes, both)
        axes.grid(visible=False, axis="y")
        legend(axes, 1)
    return picture
