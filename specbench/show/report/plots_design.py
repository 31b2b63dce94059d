"""Figures of a draft design: latency against depth at equal parameters, and tokens per round against the cost ratio c.

Knows rows of design.csv; a function returns None where the rows do not hold what it would show.
"""

import math
from collections.abc import Sequence

from specbench.show.report.figure import (  # fmt: skip
    DASHED,
    INK,
    MUTED,
    Picture,
    Sheet,
    draw_line,
    float_in,
    floats_in,
    legend,
    look,
    points,
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
    "lookahead of the best of them. Ringed: the Pareto front, where none is dearer and accepted less than another.",
    "c (drafted token ÷ step of the target)",
    "tokens per round",
)


def figures(rows: Sequence[Row]) -> list[Picture]:
    """All figures that these rows have numbers for."""
    return [picture for picture in (latency_against_depth(rows), tokens_against_c(rows)) if picture is not None]


def by_budget(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of one budget together, each in the order of depth; small budgets first."""
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
