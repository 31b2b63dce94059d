"""Figures of the rounds: where the time of a mean round goes, and acceptance by position of the draft.

Knows rows of results.csv; a function returns None where the rows do not hold what it would show.
"""

import math
from collections.abc import Sequence

from matplotlib import colormaps
from matplotlib.axes import Axes

from specbench.show.plots import (  # fmt: skip
    BLUE,
    INK,
    MARKERS,
    SKY,
    YELLOW,
    Picture,
    blank,
    float_in,
    floats_in,
    legend,
    points,
    style,
)
from specbench.show.plots_sweep import Lines, is_sweep, looks, method, over_k
from specbench.wording import Row

PHASES = (
    ("draft", "round_draft_ms", BLUE, ""),
    ("verify", "round_verify_ms", SKY, "//"),
    ("accept", "round_accept_ms", YELLOW, "xx"),
    ("host", "round_host_ms", "#bdbdbd", "--"),
)


def round_against_k(found: Lines) -> Picture | None:
    """Milliseconds of a mean round against K: its phases where there is one method, its total where there are more."""
    if not is_sweep(found):
        return None
    with style():
        picture, axes = over_k(
            "round-against-k",
            "Mean time of a round",
            "One round = draft K tokens, verify them in one pass of the target, accept, and what the host adds. "
            "The dashed line is one baseline step.",
            "milliseconds",
            found,
        )
        for name, rows, colour, marker in looks(found):
            if len(found) == 1:
                stacked(picture, axes, rows, floats_in(rows, "k"))
            else:
                x, y = floats_in(rows, "k"), floats_in(rows, "round_ms")
                axes.plot(x, y, color=colour, marker=marker, label=name)
                tips = [f"{name}, K = {a:g}: {b:.3f} ms" for a, b in zip(x, y, strict=True)]
                points(picture, axes, x, y, tips, color=colour, marker=marker)
        step = floats_in([row for rows in found.values() for row in rows], "baseline_step_ms")
        axes.axhline(sum(step) / len(step), color=INK, linestyle="--", linewidth=1.2, label="baseline step")
        axes.set_ylim(bottom=0)
        axes.grid(visible=False, axis="x")
        legend(axes, 3)
    return picture


def stacked(picture: Picture, axes: Axes, rows: Sequence[Row], x: Sequence[float], *, flat: bool = False) -> None:
    """The phases of the mean round of each row, one on the other, from draft to host."""
    base = [0.0] * len(rows)
    draw = axes.barh if flat else axes.bar
    for phase, name, colour, hatch in PHASES:
        parts = [v if v > 0 else 0.0 for v in floats_in(rows, name)]  # unknown, or a clock's rounding below zero
        look = {"color": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0.5, "label": phase}
        bars = draw(x, parts, 0.72, base, **look)  # type: ignore[arg-type]
        for bar, row, part in zip(bars, rows, parts, strict=True):
            picture.tip(bar, f"K = {row.get('k')}, {phase}: {part:.3f} ms of {float_in(row, 'round_ms'):.3f} ms")
        base = [a + b for a, b in zip(base, parts, strict=True)]


def phases(found: Lines) -> Picture | None:
    """The phases of the mean round of every cell, where the figure over K does not show them."""
    rows = [row for rows in found.values() for row in rows]
    if not any(math.isfinite(v) for v in floats_in(rows, "round_draft_ms")) or (is_sweep(found) and len(found) == 1):
        return None
    rows = rows[:24]
    with style():
        picture, axes = blank(
            "phases",
            "Where the time of a round goes",
            "Phases of the mean round of each cell; they add up to its time. The dashed line is one baseline step.",
            "milliseconds",
            "",
            height=1.7 + 0.28 * len(rows),
        )
        stacked(picture, axes, rows, range(len(rows)), flat=True)
        step = floats_in(rows, "baseline_step_ms")
        axes.axvline(sum(step) / len(step), color=INK, linestyle="--", linewidth=1.2, label="baseline step")
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
    with style():
        picture, axes = blank(
            "acceptance-by-position",
            "Acceptance by position",
            "Share of tokens accepted at a position of the draft, given that all before it were; the formula assumes "
            "that it is the same everywhere. n = how often the position was tested, all cells together.",
            "position in the draft",
            "accepted ÷ tested",
        )
        shades = colormaps["cividis"]
        longest = 1
        for i, row in enumerate(rows):
            shade = shades(0.9 * i / max(len(rows) - 1, 1))
            y = positions(row)
            x = range(1, len(y) + 1)
            longest = max(longest, len(y))
            name = f"K = {row.get('k')}" if len(found) == 1 else f"{method(row)}, K = {row.get('k')}"
            axes.plot(x, y, color=shade, marker=MARKERS[i % len(MARKERS)], markersize=4, linewidth=1.1, label=name)
            tips = [f"{name}, position {a}: {b:.3f}" for a, b in zip(x, y, strict=True)]
            points(picture, axes, x, y, tips, color=shade, marker=MARKERS[i % len(MARKERS)], markersize=4)
        ticks = range(1, longest + 1) if longest <= 12 else range(1, longest + 1, -(-longest // 10))
        axes.set_xticks(ticks, [f"{t}\nn {tested[t - 1]:,}" if t <= len(tested) else str(t) for t in ticks], fontsize=8)
        axes.set_ylim(0, 1.02)
        if len(rows) <= 12:
            legend(axes, 4 if len(found) == 1 else 2)
    return picture


def positions(row: Row) -> list[float]:
    """acceptance_at_1, _2, … of a row, as far as it has them."""
    found: list[float] = []
    while math.isfinite(value := float_in(row, f"acceptance_at_{len(found) + 1}")):
        found.append(value)
    return found
