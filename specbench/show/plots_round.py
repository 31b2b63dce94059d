"""Figures of the rounds: where the time of a mean round goes, and acceptance by position of the draft.

Knows rows of results.csv; a function returns None where the rows do not hold what it would show.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from matplotlib import colormaps
from matplotlib.axes import Axes

from specbench.show.plots import (  # fmt: skip
    BLUE,
    DASHED,
    MARKERS,
    PURPLE,
    SKY,
    YELLOW,
    Picture,
    Sheet,
    float_in,
    floats_in,
    legend,
    marked_line,
)
from specbench.show.plots_sweep import K, Lines, is_sweep, looks, mean_of_all, method, over_k
from specbench.wording import Row

PHASES = (
    ("draft", "round_draft_ms", BLUE, ""),
    ("verify", "round_verify_ms", SKY, "//"),
    ("accept", "round_accept_ms", YELLOW, "xx"),
    ("host", "round_host_ms", "#bdbdbd", "--"),
    ("update", "round_update_ms", PURPLE, ".."),
)
UPDATES = "round_update_ms"  # of drafts that learn; not shown of others
MEAN_ROUND = Sheet(
    "round-against-k",
    "Mean time of a round",
    "One round = draft K tokens, verify them in one pass of the target, accept, and what the host adds. "
    "The dashed line is one baseline step.",
    K,
    "milliseconds",
)
BY_PHASE = Sheet(
    "phases",
    "Where the time of a round goes",
    "Phases of the mean round of each cell; they add up to its time. The dashed line is one baseline step.",
    "milliseconds",
    "",
)
BY_POSITION = Sheet(
    "acceptance-by-position",
    "Acceptance by position",
    "Share of tokens accepted at a position of the draft, given that all before it were; the formula assumes "
    "that it is the same everywhere. n = how often the position was tested, all cells together.",
    "position in the draft",
    "accepted ÷ tested",
)
MOST = 24  # cells of which the phases are shown


def round_against_k(found: Lines) -> Picture | None:
    """Milliseconds of a mean round against K: its phases where there is one method, its total where there are more."""
    if not is_sweep(found):
        return None
    with over_k(MEAN_ROUND, found) as (picture, axes):
        for name, rows, look in looks(found):
            x, y = floats_in(rows, "k"), floats_in(rows, "round_ms")
            if len(found) == 1:
                stacked(picture, axes, rows, x)
            else:
                tips = [f"{name}, K = {a:g}: {b:.3f} ms" for a, b in zip(x, y, strict=True)]
                marked_line((picture, axes), x, y, tips, name, **look)
        axes.axhline(mean_of_all(found, "baseline_step_ms"), label="baseline step", **DASHED)
        axes.set_ylim(bottom=0)
        axes.grid(visible=False, axis="x")
        legend(axes, 3)
    return picture


def stacked(picture: Picture, axes: Axes, rows: Sequence[Row], x: Sequence[float], *, flat: bool = False) -> None:
    """The phases of the mean round of each row, one on the other, from draft to host and what a draft learns."""
    base = [0.0] * len(rows)
    draw = axes.barh if flat else axes.bar
    learns = any(float_in(row, UPDATES) > 0 for row in rows)
    for phase, name, colour, hatch in (one for one in PHASES if learns or one[1] != UPDATES):
        parts = [v if v > 0 else 0.0 for v in floats_in(rows, name)]  # unknown, or a clock's rounding below zero
        look = {"color": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0.5, "label": phase}
        bars = draw(x, parts, 0.72, base, **look)  # type: ignore[arg-type]
        for bar, row, part in zip(bars, rows, parts, strict=True):
            picture.tip(bar, f"K = {row.get('k')}, {phase}: {part:.3f} ms of {float_in(row, 'round_ms'):.3f} ms")
        base = [a + b for a, b in zip(base, parts, strict=True)]


def phases(found: Lines) -> Picture | None:
    """The phases of the mean round of every cell, where the figure over K does not show them."""
    rows = [row for rows in found.values() for row in rows]
    if not any(map(math.isfinite, floats_in(rows, "round_draft_ms"))) or (is_sweep(found) and len(found) == 1):
        return None
    rows = rows[:MOST]
    with replace(BY_PHASE, height=1.7 + 0.28 * len(rows)).drawing() as (picture, axes):
        stacked(picture, axes, rows, range(len(rows)), flat=True)
        axes.axvline(mean_of_all({"": rows}, "baseline_step_ms"), label="baseline step", **DASHED)
        axes.set_yticks(range(len(rows)), [f"{method(row)}, K = {row.get('k')}" for row in rows])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        legend(axes, 3)
    return picture


def acceptance_by_position(found: Lines, tested: Sequence[int]) -> Picture | None:
    """Conditional acceptance at each position of the draft, a line for every cell.

    `tested[i]` says how often position i + 1 was tested over all rows; it may be empty.
    """
    rows = [row for rows in found.values() for row in rows if math.isfinite(float_in(row, "acceptance_at_1"))]
    if not rows:
        return None
    with BY_POSITION.drawing() as (picture, axes):
        for place, row in enumerate(rows):
            name = f"K = {row.get('k')}" if len(found) == 1 else f"{method(row)}, K = {row.get('k')}"
            cell_by_position((picture, axes), row, name, place, len(rows))
        position_ticks(axes, max(len(positions(row)) for row in rows), tested)
        axes.set_ylim(0, 1.02)
        if len(rows) <= 12:
            legend(axes, 4 if len(found) == 1 else 2)
    return picture


def cell_by_position(drawing: tuple[Picture, Axes], row: Row, name: str, place: int, cells: int) -> None:
    """The line of one of so many cells; the shades of all of them go from dark to light."""
    shade = colormaps["cividis"](0.3 + 0.5 * place / max(cells - 1, 1))  # seen on light pages and on dark ones
    marker = MARKERS[place % len(MARKERS)]
    y = positions(row)
    x = range(1, len(y) + 1)
    tips = [f"{name}, position {a}: {b:.3f}" for a, b in zip(x, y, strict=True)]
    marked_line(drawing, x, y, tips, name, color=shade, marker=marker, markersize=4, linewidth=1.1)


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
