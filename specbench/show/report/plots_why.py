"""Figures of the reasons: the waterfall from the formula to the measurement, and what a pass costs by its width.

Knows rows of results.csv and of calibration.csv; must not know how a figure is written.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from matplotlib.axes import Axes

from specbench.results.calibration import FREE
from specbench.show.number_table import unbroken
from specbench.show.report.plots import (  # fmt: skip
    BLUE,
    COLOURS,
    INK,
    ORANGE,
    Picture,
    Sheet,
    float_in,
    legend,
    line_with_intervals,
    look,
    points,
    spread,
    whole_numbers,
)
from specbench.show.report.plots_sweep import method
from specbench.show.why_table import OF_SOME, STAGES
from specbench.wording import Row, number_in

STEPS = [(unbroken(label), column, whole) for label, column, whole in STAGES]  # in the words of the terminal
DRAFT = "draft"  # the model whose width is a number of tokens drafted one after the other
WATERFALL = Sheet(
    "waterfall",
    "",
    "Diamonds are speedups; a bar is what one measured quantity takes away or adds when it replaces an "
    "assumption of the formula. The bars add up exactly.",
    "speedup over the baseline",
    "",
    height=4.0,
)
DRAFTING = Sheet(
    "cost-of-drafting",
    "Cost of drafting",
    "Median time to draft so many tokens, with quartiles, at each length of the context.",
    "tokens drafted one after the other",
    "milliseconds",
)
PASSING = Sheet(
    "cost-of-a-pass",
    "Cost of a pass",
    f"Median time of one forward pass over so many tokens, with quartiles, at each length of the context. As far as a "
    f"line stays below its dashed one ({FREE:g} × one token), more tokens are nearly free to verify.",
    "tokens in the pass",
    "milliseconds",
)


def waterfall(row: Row) -> Picture | None:
    """From the formula to the measured speedup of one cell; None where its run has no such terms."""
    steps = steps_of([row])
    values = [float_in(row, name) for _, name, _ in steps]
    if not all(map(math.isfinite, values)):
        return None
    sheet = replace(WATERFALL, title=f"From predicted to measured: {method(row)}, K = {row.get('k')}")
    with sheet.drawing() as (picture, axes):
        level = values[0]
        for place, ((label, _, whole), value) in enumerate(zip(steps, values, strict=True)):
            level = step(picture, axes, place, label, value, level, whole=whole)
            if place + 1 < len(steps):
                axes.plot([level, level], [place, place + 1], color="#9a9a9a", linewidth=0.8, zorder=1)
        axes.set_yticks(range(len(steps)), [label for label, _, _ in steps])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        low, high = spread(levels(steps, values), values[0], 0.06)  # from term to term, as small as they are
        axes.set_xlim(low, high + 0.14 * (high - low))  # room for the last label
        if low < 1 < high:
            axes.axvline(1, color=INK, linewidth=1)
    return picture


def step(picture: Picture, axes: Axes, place: int, label: str, value: float, level: float, *, whole: bool) -> float:
    """Draw one line of the waterfall, which has reached `level`; the level after it."""
    after = value if whole else level + value
    if whole:
        points(picture, axes, [after], [place], [f"{label}: {value:.4f}×"], color=BLUE, marker="D", markersize=7)
    else:
        bar_look = {"color": ORANGE, "hatch": "///"} if value < 0 else {"color": COLOURS[2]}
        (bar,) = axes.barh(place, value, 0.6, level, edgecolor="white", **bar_look)  # type: ignore[arg-type]
        picture.tip(bar, f"{label}: {value:+.4f}")
    text = f"{value:.3f}×" if whole else f"{value:+.3f}".replace("-", "−")
    axes.annotate(text, (max(level, after), place), (7, 0), textcoords="offset points", va="center", fontsize=9)
    return after


def steps_of(rows: Sequence[Row]) -> list[tuple[str, str, bool]]:
    """The steps of the waterfalls of some cells, those of nests and of learning only where there are any."""
    return [one for one in STEPS if one[1] not in OF_SOME or any(number_in(row, one[1]) for row in rows)]


def levels(steps: Sequence[tuple[str, str, bool]], values: Sequence[float]) -> list[float]:
    """Every level that the waterfall reaches."""
    found = [values[0]]
    for (_, _, whole), value in zip(steps[1:], values[1:], strict=True):
        found.append(value if whole else found[-1] + value)
    return found


def cost_against_width(rows: Sequence[Row], model: str) -> Picture | None:
    """Milliseconds of a pass of one model against the tokens fed in it, a line for every context length."""
    own = [r for r in rows if r.get("model") == model and math.isfinite(float_in(r, "milliseconds"))]
    if not own:
        return None
    kind = DRAFTING if model == DRAFT else PASSING
    with replace(kind, title=f"{kind.title}: {model}").drawing() as (picture, axes):
        for place, context in enumerate(sorted({float_in(r, "context") for r in own})):
            at = sorted((r for r in own if float_in(r, "context") == context), key=lambda r: float_in(r, "width"))
            curve((picture, axes), at, f"context {context:g}", look(place))
        whole_numbers(axes, sorted({float_in(r, "width") for r in own}))
        axes.set_ylim(bottom=0)
        legend(axes, 3)
    return picture


def curve(drawing: tuple[Picture, Axes], rows: Sequence[Row], label: str, own: Mapping[str, Any]) -> None:
    """The costs at one length of the context; dashed, up to where a pass of the target counts as free."""
    _, axes = drawing
    tips = [f"{label}, {float_in(r, 'width'):g} tokens: {cost_tip(r)}" for r in rows]
    line_with_intervals(
        drawing, rows, "width", "milliseconds", tips, label, own, ("low", "high"), capsize=2, elinewidth=1
    )
    if float_in(rows[0], "width") == 1 and rows[0].get("model") != DRAFT:
        alone = float_in(rows[0], "milliseconds")
        axes.axhline(FREE * alone, color=own["color"], linestyle="--", linewidth=0.9)


def cost_tip(row: Row) -> str:
    return f"{float_in(row, 'milliseconds'):.3f} ms, v = {float_in(row, 'v'):.3f}"
