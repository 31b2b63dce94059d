"""Figures of a draft design: latency against depth at equal parameters, and tokens per round against cost ratio c."""

import math
from collections.abc import Sequence
from dataclasses import replace

from specbench.results.statistics import Interval
from specbench.show.report.figure import (
    DASHED,
    INK,
    MUTED,
    Picture,
    Sheet,
    bounds,
    cut_ends,
    draw_line,
    errors,
    float_in,
    floats_in,
    in_view,
    interval_tip,
    legend,
    look,
    points,
    short,
    spread,
    whole_numbers,
)
from specbench.wording import Row, grouped, text_in

TAR = "compared_tokens_per_round"
LATENCY = Sheet(
    "latency-against-depth",
    "Latency against depth",
    "Milliseconds per drafted token, each line at equal parameters (the widest shape within the budget), with "
    "quartiles over turns. The dashed line is a step of the target.",
    "layers of the draft",
    "ms per drafted token",
)
TOKENS = Sheet(
    "tokens-against-c",
    "Tokens per round against cost",
    "Every trained shape, with its number of layers, after the first rung, when all have learned as much, at the best "
    "lookahead of the best of them. Ringed: the Pareto front, where no shape is dearer and less accepted than another.",
    "c (drafted token ÷ step of the target)",
    "tokens per round",
)


def figures(rows: Sequence[Row]) -> list[Picture]:
    """All figures for which these rows have data."""
    return [picture for picture in (latency_against_depth(rows), tokens_against_c(rows)) if picture is not None]


def by_budget(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows by budget, each group in the order of depth; small budgets first."""
    ordered = sorted(rows, key=lambda row: (float_in(row, "budget"), float_in(row, "layers")))
    return grouped(ordered, lambda row: float_in(row, "budget"))


def latency_against_depth(rows: Sequence[Row]) -> Picture | None:
    """A line per budget."""
    found = [row for row in rows if math.isfinite(float_in(row, "latency_ms"))]
    if not found:
        return None
    with LATENCY.drawing() as (picture, axes):
        whole_numbers(axes, sorted(set(floats_in(found, "layers"))))
        for place, some in enumerate(by_budget(found)):
            bounds = ("latency_low_ms", "latency_high_ms")
            name = f"{float_in(some[0], 'budget') / 1e6:g} M parameters"
            draw_line(
                (picture, axes), some, ("layers", "latency_ms"), latency_tip, name, look(place), bounds=bounds,
                bars={"capsize": 3},
            )  # fmt: skip
        axes.axhline(float_in(found[0], "target_step_ms"), label="step of the target", **DASHED)
        axes.set_ylim(bottom=0)
        legend(axes)
    return picture


def latency_tip(row: Row) -> str:
    return f"{text_in(row, 'name')}: {float_in(row, 'latency_ms'):.3g} ms per token"


def tokens_against_c(rows: Sequence[Row]) -> Picture | None:
    """A point per trained shape, and the front."""
    found = [row for row in rows if math.isfinite(float_in(row, TAR))]
    if not found:
        return None
    front = sorted((row for row in found if text_in(row, "on_front") == "True"), key=lambda row: float_in(row, "c"))
    with TOKENS.drawing() as (picture, axes):
        axes.set_ylabel(f"{TOKENS.y} at K = {float_in(found[0], 'compared_k'):g}")
        x, y = floats_in(front, "c"), floats_in(front, TAR)
        axes.plot(x, y, color=MUTED, linewidth=1, linestyle=":")
        axes.plot(x, y, linestyle="none", marker="o", markersize=13, fillstyle="none", color=INK, label="Pareto front")
        for place, some in enumerate(by_budget(found)):
            tips = [
                f"{text_in(r, 'name')}: c = {float_in(r, 'c'):.3f}, {float_in(r, TAR):.3f} tokens per round"
                for r in some
            ]
            across, up = floats_in(some, "c"), floats_in(some, TAR)
            name = f"{float_in(some[0], 'budget') / 1e6:g} M parameters"
            axes.plot(across, up, linestyle="none", label=name, **look(place))
            points(picture, axes, across, up, tips, **look(place))
            for row, at in zip(some, zip(across, up, strict=True), strict=True):
                axes.annotate(text_in(row, "layers"), at, xytext=(5, 4), textcoords="offset points", fontsize=8)
        axes.margins(0.12)
        axes.set_xlim(left=0)
        legend(axes)
    return picture


# --- plots pair -------------------------------------------------------------------------------------------------------
# The figure of two runs: the speedup of every cell in both, one below the other.

MOST_PAIRS = 40  # maximum number of cells
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
    """The cells as (name, rows of both runs); None if no cell has a speedup in both."""
    shown = [one for one in cells if all(math.isfinite(float_in(row, "speedup")) for row in one[1])][:MOST_PAIRS]
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
