"""Figures of prompts and of whole cells: prompt by prompt in time, and intervals side by side.

Knows samples, rows and intervals; must not know how a figure is written.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from specbench.results.statistics import FEWEST, Interval
from specbench.show.methods_table import is_lossy
from specbench.show.report.plots import (  # fmt: skip
    BLUE,
    INK,
    MUTED,
    ORANGE,
    WIDTH,
    YELLOW,
    Picture,
    Sheet,
    errors,
    float_in,
    floats_in,
    legend,
    look,
    points,
    spread,
)
from specbench.wording import Row, clean

MOST = 60  # lines of one figure
FLAGS = (("", BLUE, "o", "usual"), ("mild", YELLOW, "^", "mild outlier"), ("severe", ORANGE, "X", "severe outlier"))
OVER_TIME = Sheet(
    "over-time",
    "Speedup of every prompt, in time",
    "Baseline ÷ method seconds per token, one point per decoded prompt. A trend, steps or a rising load "
    "average say that the machine was not steady. Outliers are marked, never dropped.",
    "turn (prompts in the order in which they were decoded)",
    "speedup",
)
INTERVALS = Sheet(
    "intervals",
    "All cells side by side",
    "Measured speedup of every cell with its 95 % interval over prompts; hollow: lossy. Two intervals "
    "that overlap may still differ.",
    "speedup over the baseline",
    "",
    width=WIDTH * 1.25,
)


def interval_tip(interval: Interval) -> str:
    if math.isnan(interval.low):
        return f"{interval.value:.3f}×"
    return f"{interval.value:.3f}× [{interval.low:.3f}, {interval.high:.3f}]"


def short(name: object, most: int = 34) -> str:
    """A name that leaves room for the figure."""
    text = clean(name, 200)
    return text if len(text) <= most else text[: most - 1] + "…"


def over_time(samples: Sequence[Row]) -> Picture | None:
    """The speedup of every prompt of one cell in the order in which they were decoded, and the load of the machine."""
    shown = sorted((s for s in samples if math.isfinite(float_in(s, "speedup"))), key=lambda s: float_in(s, "turn"))
    if len(shown) < 2:
        return None
    with OVER_TIME.drawing() as (picture, axes):
        for flag, colour, marker, label in FLAGS:
            own = [s for s in shown if (s.get("outlier") or "") == flag]
            x, y = floats_in(own, "turn"), floats_in(own, "speedup")
            points(picture, axes, x, y, [prompt_tip(s, label) for s in own], color=colour, marker=marker)
            if own:
                axes.plot([], [], color=colour, marker=marker, linestyle="none", label=label)
        axes.axhline(1, color=INK, linewidth=1)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        load(axes, shown)
        legend(axes, 3)
    return picture


def prompt_tip(sample: Row, flag: str) -> str:
    return f"turn {sample.get('turn')}, {short(sample.get('prompt'), 60)}: {float_in(sample, 'speedup'):.3f}×, {flag}"


def load(axes: Axes, samples: Sequence[Row]) -> None:
    """The load average as a grey line with its own axis, where it was recorded."""
    values = floats_in(samples, "load_average")
    if any(map(math.isfinite, values)):
        other = axes.twinx()
        other.plot(floats_in(samples, "turn"), values, color=MUTED, linewidth=1, linestyle=":")
        axes.plot([], [], color=MUTED, linewidth=1, linestyle=":", label="load average (right)")
        other.set_ylabel("load average", color=MUTED)
        other.set_ylim(0, max(1.0, 1.6 * max(v for v in values if math.isfinite(v))))
        other.grid(visible=False)
        other.spines["right"].set_visible(True)


def intervals(cells: Sequence[tuple[str, str, Row]]) -> Picture | None:
    """The speedup of every cell with its interval, given as (run, label, row); None for fewer than two."""
    shown = [cell for cell in cells if math.isfinite(float_in(cell[2], "speedup"))][:MOST]
    if len(shown) < 2:
        return None
    with replace(INTERVALS, height=1.3 + 0.26 * len(shown)).drawing() as (picture, axes):
        runs = list(dict.fromkeys(run for run, _, _ in shown))
        for place, run in enumerate(runs):
            own = [(y, *cell[1:]) for y, cell in enumerate(shown) if cell[0] == run]
            one_run(picture, axes, own, run, place)
        axes.set_yticks(range(len(shown)), [short(label) for _, label, _ in shown])
        axes.axvline(1, color=INK, linewidth=1)
        axes.set_xlim(spread([bound for *_, row in shown for bound in in_view(row)], 1.0))
        cut_ends(axes, [(y, row) for y, (*_, row) in enumerate(shown)])
        axes.set_ylim(len(shown) - 0.5, -0.5)
        if len(runs) > 1:
            legend(axes, 1)
    return picture


def bounds(row: Row) -> list[float]:
    """A speedup with its interval: low, value, high."""
    return [float_in(row, f"speedup{end}") for end in ("_low", "", "_high")]


def in_view(row: Row) -> list[float]:
    """What an axis must hold of a speedup: its interval, but that of a few prompts, which may span decades."""
    return bounds(row) if float_in(row, "draws") >= FEWEST else [float_in(row, "speedup")]


def cut_ends(axes: Axes, cells: Sequence[tuple[float, Row]]) -> None:
    """An arrow at the edge where the interval of a cell, given with its y, goes on beyond it."""
    left, right = axes.get_xlim()
    for y, row in cells:
        low, _, high = bounds(row)
        for edge, arrow, beyond in ((left, "<", low < left), (right, ">", high > right)):
            if beyond:
                axes.plot([edge], [y], color=MUTED, marker=arrow, markersize=6, linestyle="none", clip_on=False)


def one_run(picture: Picture, axes: Axes, cells: Sequence[tuple[int, str, Row]], run: str, place: int) -> None:
    """The cells of one run, given as (y, label, row), in its own colour."""
    rows, own = [row for *_, row in cells], look(place)
    x, y = floats_in(rows, "speedup"), [float(at) for at, *_ in cells]
    bars = errors(x, floats_in(rows, "speedup_low"), floats_in(rows, "speedup_high"))
    name = short(run, 60)
    axes.errorbar(x, y, xerr=bars, color=own["color"], linestyle="none", elinewidth=1.4, capsize=3, label=name)
    found = [Interval(value, low, high) for low, value, high in map(bounds, rows)]
    tips = [f"{label}: {interval_tip(one)}" for (_, label, _), one in zip(cells, found, strict=True)]
    for at, (place_of, _, row) in enumerate(cells):
        fill = "none" if is_lossy(row) else "full"
        points(picture, axes, [x[at]], [place_of], [tips[at]], fillstyle=fill, **own)
