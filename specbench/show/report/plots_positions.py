"""Figures of acceptance by position of the draft: lines of few cells, a map with its numbers of many.

Knows rows of results.csv; a function returns None where the rows do not hold what it would show.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from specbench.show.report.plots import FIXED, MARKERS, Picture, Sheet, float_in, legend, marked_line
from specbench.show.report.plots_methods import name_rows
from specbench.show.report.plots_sweep import Lines, method
from specbench.wording import Row, text_in

BY_POSITION = Sheet(
    "acceptance-by-position",
    "Acceptance by position",
    "Share of tokens accepted at a position of the draft, given that all before it were; the formula assumes "
    "that it is the same everywhere. n = how often the position was tested, all cells together.",
    "position in the draft",
    "accepted ÷ tested",
)
OF_A_MAP = " Methods by speedup; darker is more."
MOST_LINES = 6  # cells that are lines; of more, lines would hide each other
MOST = 60  # cells of the map
NUMBERED = 12  # positions that leave room for numbers


def acceptance_by_position(found: Lines, tested: Sequence[int]) -> Picture | None:
    """Conditional acceptance at each position of the draft, a line for every cell.

    `tested[i]` says how often position i + 1 was tested over all rows; it may be empty.
    """
    rows = [row for rows in found.values() for row in rows if math.isfinite(float_in(row, "acceptance_at_1"))]
    if not rows:
        return None
    if len(rows) > MOST_LINES:
        return map_of(rows[:MOST], tested)
    with BY_POSITION.drawing() as (picture, axes):
        for place, row in enumerate(rows):
            name = f"K = {row.get('k')}" if len(found) == 1 else f"{method(row)}, K = {row.get('k')}"
            cell_by_position((picture, axes), row, name, place, len(rows))
        position_ticks(axes, max(len(positions(row)) for row in rows), tested)
        axes.set_ylim(0, 1.02)
        legend(axes, 4 if len(found) == 1 else 2)
    return picture


def map_of(rows: Sequence[Row], tested: Sequence[int]) -> Picture:
    """A line of tiles for every cell, a tile for every position."""
    longest = max(len(positions(row)) for row in rows)
    sheet = replace(BY_POSITION, caption=BY_POSITION.caption + OF_A_MAP, y="", height=1.3 + 0.26 * len(rows))
    with sheet.drawing() as (picture, axes):
        axes.grid(visible=False)
        axes.set(xlim=(0.5, longest + 0.5))
        for place, row in enumerate(rows):
            tiles((picture, axes), row, place, numbered=longest <= NUMBERED)
        name_rows(picture, axes, rows)
        position_ticks(axes, longest, tested)
    return picture


def tiles(drawing: tuple[Picture, Axes], row: Row, place: int, *, numbered: bool) -> None:
    """The line of one cell: light where little is accepted, dark where much is."""
    picture, axes = drawing
    for position, value in enumerate(positions(row), start=1):
        shade = colormaps["YlGnBu"](0.5 * min(max(value, 0.0), 1.0))  # light enough for its number
        tile = axes.add_patch(Rectangle((position - 0.48, place - 0.46), 0.96, 0.92, facecolor=shade, linewidth=0))
        name = f"{method(row)}, K = {row.get('k')}"
        picture.tip(tile, f"{name}, position {position}: {value:.3f}", text_in(row, "cell"))
        if numbered:
            style: dict[str, Any] = {"ha": "center", "va": "center", "color": FIXED, "fontsize": 8}
            picture.own(text_in(row, "cell"), [axes.text(position, place, f"{value:.2f}", **style)])


def cell_by_position(drawing: tuple[Picture, Axes], row: Row, name: str, place: int, cells: int) -> None:
    """The line of one of so many cells; the shades of all of them go from dark to light."""
    shade = colormaps["cividis"](0.3 + 0.5 * place / max(cells - 1, 1))  # seen on light pages and on dark ones
    marker = MARKERS[place % len(MARKERS)]
    y = positions(row)
    x = range(1, len(y) + 1)
    tips = [f"{name}, position {a}: {b:.3f}" for a, b in zip(x, y, strict=True)]
    look = {"color": shade, "marker": marker, "markersize": 4, "linewidth": 1.1}
    marked_line(drawing, x, y, tips, name, text_in(row, "cell"), **look)


def position_ticks(axes: Axes, longest: int, tested: Sequence[int]) -> None:
    """Ticks at the positions, or at some of many, each with how often it was tested."""
    ticks = range(1, longest + 1, 1 if longest <= 12 else -(-longest // 10))
    axes.set_xticks(ticks, [f"{t}\nn {tested[t - 1]:,}" if t <= len(tested) else str(t) for t in ticks], fontsize=8)


def positions(row: Row) -> list[float]:
    """acceptance_at_1, _2, … of a row, as far as it has them."""
    found: list[float] = []
    while math.isfinite(value := float_in(row, f"acceptance_at_{len(found) + 1}")):
        found.append(value)
    return found
