"""The figure of methods by the category of their prompts: the speedup of each in each, with its interval.

Knows rows of categories.csv; must not know how a figure is written. What rests on one prompt is not drawn.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from matplotlib.axes import Axes

from specbench.results.statistics import FEWEST, Interval
from specbench.show.category_table import several
from specbench.show.plots import INK, MARKERS, Picture, Sheet, errors, float_in, legend, look, points, spread
from specbench.show.plots_prompts import interval_tip, short
from specbench.wording import Row

MOST = 60  # categories of one figure
LINES = len(MARKERS)  # cells of one figure: as many as have a colour and a marker of their own
SHEET = Sheet(
    "by-category",
    "Speedup by category",
    "Ratio of totals over the prompts of a category, with its 95 % interval over them; the number of prompts stands in "
    "brackets. A category with one prompt is not drawn: one prompt is no category. An interval that leaves the figure "
    f"is one of fewer than {FEWEST} prompts, which says little.",
    "speedup over the baseline",
    "",
)

Lines = Mapping[str, Sequence[Row]]  # the rows by category of a cell, by its name


def by_category(lines: Lines) -> Picture | None:
    """One row of markers per category, a marker per cell; None for fewer than two categories that can be drawn."""
    shown = {name: drawable(rows) for name, rows in [*lines.items()][:LINES]}
    prompts = {str(row["category"]): row["prompts"] for rows in shown.values() for row in rows}
    kinds = sorted(prompts)[:MOST]
    if len(kinds) < 2:
        return None
    step = 0.26 * max(len(shown), 1) + 0.12  # inches of a category
    with replace(SHEET, height=1.4 + step * len(kinds)).drawing() as (picture, axes):
        for place, (name, rows) in enumerate(shown.items()):
            middle = (place - (len(shown) - 1) / 2) * 0.8 / len(shown)
            own = [(kinds.index(row["category"]) + middle, row) for row in rows if row["category"] in kinds]
            one_cell(picture, axes, own, name, place)
        axes.set_yticks(range(len(kinds)), [f"{short(kind)} ({prompts[kind]})" for kind in kinds])
        axes.axvline(1, color=INK, linewidth=1)
        axes.set_xlim(spread([x for rows in shown.values() for row in rows for x in reach(row)], 1.0))
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        if len(shown) > 1:
            legend(axes, 1)
    return picture


def drawable(rows: Sequence[Row]) -> list[Row]:
    """The categories with several prompts and a speedup; it is blank where prompts shared their time."""
    return [row for row in several(rows) if math.isfinite(float_in(row, "speedup"))]


def reach(row: Row) -> list[float]:
    """What the x axis must hold of a category: its interval, but that of a few prompts, which may span decades."""
    ends = ("_low", "", "_high") if row["draws"] >= FEWEST else ("",)
    return [float_in(row, f"speedup{end}") for end in ends]


def one_cell(picture: Picture, axes: Axes, rows: Sequence[tuple[float, Row]], name: str, place: int) -> None:
    """The markers of a cell, given as (y, row), with their intervals."""
    found = [Interval(*(float_in(row, f"speedup{end}") for end in ("", "_low", "_high"))) for _, row in rows]
    x, y = [one.value for one in found], [at for at, _ in rows]
    bars, own = errors(x, [one.low for one in found], [one.high for one in found]), look(place)
    axes.errorbar(x, y, xerr=bars, color=own["color"], linestyle="none", elinewidth=1.2, capsize=2.5)
    axes.plot([], [], linestyle="none", label=short(name), **own)
    tips = [
        f"{short(row['category'])}, {short(name)}: {interval_tip(one)}, {row['prompts']} prompts"
        for one, (_, row) in zip(found, rows, strict=True)
    ]
    points(picture, axes, x, y, tips, **own)
