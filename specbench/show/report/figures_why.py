"""Explanatory figures: waterfall, cost of a pass, categories, prompts over time, predicted acceptance."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from matplotlib.ticker import MaxNLocator

from specbench.results.calibration import FREE
from specbench.results.statistics import FEWEST
from specbench.show.details import amount, several, stages_of
from specbench.show.report.figure import (
    BLUE,
    COLOURS,
    DASHED,
    INK,
    MARKERS,
    MUTED,
    ORANGE,
    YELLOW,
    Panel,
    Picture,
    Sheet,
    float_in,
    floats_in,
    look,
    short,
    spread,
)
from specbench.show.report.figures_by_k import method
from specbench.show.table import unbroken
from specbench.show.text import NOTHING, cell_text
from specbench.wording import Row, text_in

Curve = tuple[str, Row, Sequence[Row]]  # name and row of a cell, and its tokens by predicted acceptance
DRAFT = "draft"  # for this model, width is the number of tokens drafted sequentially
WATERFALL = Sheet(
    "waterfall",
    "",
    "Diamonds are speedups; a bar is what one measured quantity takes away or adds when it replaces an "
    "assumption of the formula. The bars add up exactly.",
    "speedup over the baseline",
    height=4.0,
)
DRAFTING = Sheet(
    "cost-of-drafting",
    "Cost of drafting",
    "Median time to draft a number of tokens, with quartiles, at each length of the context.",
    "tokens drafted one after the other",
    "milliseconds",
)
PASSING = Sheet(
    "cost-of-a-pass",
    "Cost of a pass",
    f"Median time of a pass over a number of tokens, with quartiles, at each length of the context. As far as a "
    f"line stays below its dashed one ({FREE:g} × one token), more tokens are nearly free to verify.",
    "tokens in the pass",
    "milliseconds",
)


# --- the waterfall ----------------------------------------------------------------------------------------------------


def waterfall(row: Row) -> Picture | None:
    """From the formula to the measured speedup of one cell; None if its run lacks these terms."""
    steps = steps_of([row])
    values = [float_in(row, name) for _, name, _ in steps]
    if not all(map(math.isfinite, values)):
        return None
    sheet = replace(WATERFALL, title=f"From predicted to measured: {method(row)}, K = {row.get('k')}")
    with sheet.drawing() as panel:
        level, axes = values[0], panel.axes
        for place, ((label, _, whole), value) in enumerate(zip(steps, values, strict=True)):
            level = step(panel, place, label, value, level, whole=whole)
            if place + 1 < len(steps):
                axes.plot([level, level], [place, place + 1], color="#9a9a9a", linewidth=0.8, zorder=1)
        axes.set_yticks(range(len(steps)), [label for label, _, _ in steps])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        low, high = spread(levels(steps, values), values[0], 0.06)  # zoomed to the terms, which are small
        axes.set_xlim(low, high + 0.14 * (high - low))  # room for the last label
        if low < 1 < high:
            axes.axvline(1, color=INK, linewidth=1)
    return panel.picture


def step(panel: Panel, place: int, label: str, value: float, level: float, *, whole: bool) -> float:
    """Draw one line of the waterfall from `level`; returns the next level."""
    after = value if whole else level + value
    if whole:
        panel.points([after], [place], [f"{label}: {value:.4f}×"], color=BLUE, marker="D", markersize=7)
    else:
        bar_look = {"color": ORANGE, "hatch": "///"} if value < 0 else {"color": COLOURS[2]}
        (bar,) = panel.axes.barh(place, value, 0.6, level, edgecolor="white", **bar_look)  # type: ignore[arg-type]
        panel.picture.tip(bar, f"{label}: {value:+.4f}")
    text, right = f"{value:.3f}×" if whole else amount(value, whole), (max(level, after), place)
    panel.axes.annotate(text, right, (7, 0), textcoords="offset points", va="center", fontsize=9)
    return after


def steps_of(rows: Sequence[Row]) -> list[tuple[str, str, bool]]:
    """The steps of some cells' waterfalls, in the words of the terminal."""
    return [(unbroken(label), column, whole) for label, column, whole in stages_of(rows)]


def levels(steps: Sequence[tuple[str, str, bool]], values: Sequence[float]) -> list[float]:
    """Every level that the waterfall reaches."""
    found = [values[0]]
    for (_, _, whole), value in zip(steps[1:], values[1:], strict=True):
        found.append(value if whole else found[-1] + value)
    return found


# --- the cost of a pass -----------------------------------------------------------------------------------------------


def cost_against_width(rows: Sequence[Row], model: str) -> Picture | None:
    """Milliseconds of a pass of one model against its number of tokens, a line for every context length."""
    own = [r for r in rows if r.get("model") == model and math.isfinite(float_in(r, "milliseconds"))]
    if not own:
        return None
    kind = DRAFTING if model == DRAFT else PASSING
    with replace(kind, title=f"{kind.title}: {model}").drawing() as panel:
        for place, context in enumerate(sorted({float_in(r, "context") for r in own})):
            at = sorted((r for r in own if float_in(r, "context") == context), key=lambda r: float_in(r, "width"))
            curve(panel, at, f"context {context:g}", look(place))
        panel.whole_numbers(sorted({float_in(r, "width") for r in own}))
        panel.axes.set_ylim(bottom=0)
        panel.legend(3)
    return panel.picture


def curve(panel: Panel, rows: Sequence[Row], label: str, own: Mapping[str, Any]) -> None:
    """The costs at one context length; dashed, up to where a target pass counts as free."""
    tip, bars = "{name}, {width:g} tokens: {milliseconds:.3f} ms, v = {v:.3f}", {"capsize": 2, "elinewidth": 1}
    panel.line(rows, ("width", "milliseconds"), tip, label, own, bounds=("low", "high"), bars=bars)
    if float_in(rows[0], "width") == 1 and rows[0].get("model") != DRAFT:
        alone = float_in(rows[0], "milliseconds")
        panel.axes.axhline(FREE * alone, color=own["color"], linestyle="--", linewidth=0.9)


# --- categories of prompts --------------------------------------------------------------------------------------------


MOST = 60  # maximum number of categories
CELLS = len(MARKERS)  # maximum number of cells: as many as have distinct colours and markers
NOTE = (
    "Ratio of totals over the prompts of a category, with its 95 % interval over them; the number of prompts is in "
    f"brackets. A category with one prompt is not drawn. An interval that leaves the figure has fewer than {FEWEST} "
    "prompts and is not reliable."
)
CATEGORIES = {  # by their columns
    "speedup": Sheet("by-category", "Speedup by category", NOTE, "speedup over the baseline"),
    "tokens_per_round": Sheet("tokens-by-category", "Tokens per round by category", NOTE, "tokens per round"),
}


def by_category(lines: Mapping[str, Sequence[Row]], column: str = "speedup") -> Picture | None:
    """One row of markers per category, a marker per cell; None for fewer than two drawable categories."""
    shown = {
        name: [row for row in several(rows) if math.isfinite(float_in(row, column))]
        for name, rows in [*lines.items()][:CELLS]
    }
    prompts = {str(row["category"]): row["prompts"] for rows in shown.values() for row in rows}
    kinds = sorted(prompts)[:MOST]
    if len(kinds) < 2:
        return None
    step = 0.26 * max(len(shown), 1) + 0.12  # inches per category
    with replace(CATEGORIES[column], height=1.4 + step * len(kinds)).drawing() as panel:
        for place, (name, rows) in enumerate(shown.items()):
            middle = (place - (len(shown) - 1) / 2) * 0.8 / len(shown)
            own = [row for row in rows if row["category"] in kinds]
            heights = [kinds.index(row["category"]) + middle for row in own]
            one_cell(panel, own, heights, column, short(name), look(place))
        panel.axes.set_yticks(range(len(kinds)), [f"{short(kind)} ({prompts[kind]})" for kind in kinds])
        panel.axes.axvline(1, color=INK, linewidth=1)
        panel.axes.set_xlim(spread([x for rows in shown.values() for row in rows for x in reach(row, column)], 1.0))
        panel.axes.invert_yaxis()
        panel.axes.grid(visible=False, axis="y")
        if len(shown) > 1:
            panel.legend(1)
    return panel.picture


def reach(row: Row, column: str) -> list[float]:
    """The x range of a category: its interval, except with few prompts, where it may span decades."""
    ends = ("_low", "", "_high") if row["draws"] >= FEWEST else ("",)
    return [float_in(row, f"{column}{end}") for end in ends]


def one_cell(
    panel: Panel, rows: Sequence[Row], heights: Sequence[float], column: str, name: str, own: Mapping[str, Any]
) -> None:
    x = panel.across(rows, heights, column, color=own["color"], elinewidth=1.2, capsize=2.5)
    panel.axes.plot([], [], linestyle="none", label=name, **own)
    tips = [f"{short(row['category'])}, {name}: {value(row, column)}, {row['prompts']} prompts" for row in rows]
    panel.points(x, heights, tips, **own)


def value(row: Row, column: str) -> str:
    shown, interval = cell_text(row, column), cell_text(row, f"{column}_interval")
    return shown if interval == NOTHING else f"{shown} [{interval}]"


# --- prompts over time ------------------------------------------------------------------------------------------------


FLAGS = (("", BLUE, "o", "usual"), ("mild", YELLOW, "^", "mild outlier"), ("severe", ORANGE, "X", "severe outlier"))
OVER_TIME = Sheet(
    "over-time",
    "Speedup of every prompt, in time",
    "Baseline ÷ method seconds per token, one point per decoded prompt. A trend, steps or a rising load average show "
    "that the machine was not steady. Outliers are marked, never dropped.",
    "turn (prompts in the order in which they were decoded)",
    "speedup",
)


def over_time(samples: Sequence[Row]) -> Picture | None:
    """The speedup of every prompt of one cell in the order of decoding, and the load of the machine."""
    shown = sorted((s for s in samples if math.isfinite(float_in(s, "speedup"))), key=lambda s: float_in(s, "turn"))
    if len(shown) < 2:
        return None
    with OVER_TIME.drawing() as panel:
        for flag, colour, marker, label in FLAGS:
            own = [s for s in shown if (s.get("outlier") or "") == flag]
            x, y = floats_in(own, "turn"), floats_in(own, "speedup")
            names = [f"turn {s.get('turn')}, {short(s.get('prompt'), 60)}" for s in own]
            tips = [f"{name}: {speedup:.3f}×, {label}" for name, speedup in zip(names, y, strict=True)]
            panel.points(x, y, tips, color=colour, marker=marker)
            if own:
                panel.axes.plot([], [], color=colour, marker=marker, linestyle="none", label=label)
        panel.axes.axhline(1, color=INK, linewidth=1)
        panel.axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        load(panel, shown)
        panel.legend(3)
    return panel.picture


def load(panel: Panel, samples: Sequence[Row]) -> None:
    """The load average as a grey line with its own axis, if recorded."""
    values = floats_in(samples, "load_average")
    if any(map(math.isfinite, values)):
        style: dict[str, Any] = {"color": MUTED, "linewidth": 1, "linestyle": ":"}
        other = panel.axes.twinx()
        other.plot(floats_in(samples, "turn"), values, **style)
        panel.axes.plot([], [], label="load average (right)", **style)
        other.set_ylabel("load average", color=MUTED)
        other.set_ylim(0, max(1.0, 1.6 * max(v for v in values if math.isfinite(v))))
        other.grid(visible=False)
        other.spines["right"].set_visible(True)


# --- beliefs ----------------------------------------------------------------------------------------------------------


RELIABILITY = Sheet(
    "reliability",
    "Predicted and observed acceptance",
    "Judged drafted tokens by the acceptance that the schedule predicted, in tenths: the mean prediction across, the "
    "share accepted up, and the number of tokens below. On the dashed line a prediction is exact; above it, too low. "
    "ECE: the mean distance from that line; in brackets, the ECE that chance gives to exact predictions.",
    "predicted chance of acceptance",
    "accepted",
    height=4.6,
)


def belief_tip(name: str, row: Row) -> str:
    return (
        f"{name}, {row['low']:.1f}–{row['high']:.1f}: {row['believed']:.3f} predicted, "
        f"{row['accepted']:.3f} accepted, {row['tests']:,} tokens"
    )


def reliability(curves: Sequence[Curve]) -> Picture | None:
    """The curves of the first few cells with their tests below; None without curves."""
    if not curves:
        return None
    with RELIABILITY.begun(RELIABILITY.height) as picture:
        upper, lower = (Panel(picture, axes) for axes in picture.figure.subplots(2, sharex=True, height_ratios=(3, 1)))
        upper.axes.plot((0, 1), (0, 1), **DASHED)
        for place, (name, row, bins) in enumerate(curves[:CELLS]):
            own, cell, tip = look(place), text_in(row, "cell"), partial(belief_tip, short(name, 60))
            label = f"{short(name, 40)}: ECE {row['belief_ece']:.3f} ({row['belief_ece_if_exact']:.3f})"
            upper.line(bins, ("believed", "accepted"), tip, label, own, cell=cell)
            picture.own(cell, lower.axes.plot(floats_in(bins, "believed"), floats_in(bins, "tests"), **own))
        upper.axes.set(xlim=(0, 1.02), ylim=(0, 1.02), ylabel=RELIABILITY.y)
        lower.axes.set(ylabel="tokens", xlabel=RELIABILITY.x)
        lower.axes.set_ylim(bottom=0)
        upper.legend(1)
    return picture
