"""Figures of the rounds: where the time of a mean round goes.

Knows rows of results.csv; a function returns None where the rows do not hold what it would show.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from matplotlib.axes import Axes

from specbench.show.report.plots import (  # fmt: skip
    BLUE,
    DASHED,
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
from specbench.show.report.plots_methods import name_rows
from specbench.show.report.plots_sweep import K, Lines, across, is_sweep, mean_of_all, method, over_k
from specbench.wording import Row, text_in

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
MOST = 60  # cells of which the phases are shown


def round_against_k(found: Lines) -> Picture | None:
    """Milliseconds of a mean round against K: its phases where there is one method, its total where there are more."""
    if not is_sweep(found):
        return None
    with over_k(MEAN_ROUND, found) as (picture, curves):
        for one in curves:
            x, y = floats_in(one.rows, "k"), floats_in(one.rows, "round_ms")
            if len(found) == 1:
                stacked(picture, one.axes, one.rows, x)
            else:
                tips = [f"{one.name}, K = {a:g}: {b:.3f} ms" for a, b in zip(x, y, strict=True)]
                marked_line((picture, one.axes), x, y, tips, one.label, one.name, **one.look)
        across(curves, mean_of_all(found, "baseline_step_ms"), label="baseline step", **DASHED)
        curves[0].axes.set_ylim(bottom=0)
        curves[0].axes.grid(visible=False, axis="x")
        legend(curves[0].axes, 3)
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
            text = f"K = {row.get('k')}, {phase}: {part:.3f} ms of {float_in(row, 'round_ms'):.3f} ms"
            picture.tip(bar, f"{method(row)}, {text}" if flat else text, text_in(row, "cell"))
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
        name_rows(picture, axes, rows)
        axes.grid(visible=False, axis="y")
        legend(axes, 3)
    return picture
