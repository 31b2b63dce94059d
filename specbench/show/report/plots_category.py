"""Figures of methods by the category of their prompts: a number of each in each, with its interval.

Knows rows of categories.csv; must not know how a figure is written. What rests on one prompt is not drawn.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from matplotlib.axes import Axes

from specbench.results.statistics import FEWEST, Interval
from specbench.show.category_table import several
from specbench.show.cell_text import NOTHING, cell_text
from specbench.show.report.plots import INK, MARKERS, Picture, Sheet, errors, float_in, legend, look, points, spread
from specbench.show.report.plots_prompts import short
from specbench.wording import Row

MOST = 60  # categories of one figure
LINES = len(MARKERS)  # cells of one figure: as many as have a colour and a marker of their own
NOTE = (
    "Ratio of totals over the prompts of a category, with its 95 % interval over them; the number of prompts stands in "
    "brackets. A category with one prompt is not drawn: one prompt is no category. An interval that leaves the figure "
    f"is one of fewer than {FEWEST} prompts, which says little."
)
SHEETS = {  # by their columns
    "speedup": Sheet("by-category", "Speedup by category", NOTE, "speedup over the baseline", ""),
    "tokens_per_round": Sheet("tokens-by-category", "Tokens per round by category", NOTE, "tokens per round", ""),
}

Lines = Mapping[str, Sequence[Row]]  # the rows by category of a cell, by its name


def by_category(lines: Lines, column: str = "speedup") -> Picture | None:
    """One row of markers per category, a marker per cell; None for fewer than two categories that can be drawn.

    column: one of `SHEETS`.
    """
    shown = {name: drawable(rows, column) for name, rows in [*lines.items()][:LINES]}
    prompts = {str(row["category"]): row["prompts"] for rows in shown.values() for row in rows}
    kinds = sorted(prompts)[:MOST]
    if len(kinds) < 2:
        return None
    step = 0.26 * max(len(shown), 1) + 0.12  # inches of a category
    with replace(SHEETS[column], height=1.4 + step * len(kinds)).drawing() as (picture, axes):
        for place, (name, rows) in enumerate(shown.items()):
            middle = (place - (len(shown) - 1) / 2) * 0.8 / len(shown)
            own = [(kinds.index(row["category"]) + middle, row) for row in rows if row["category"] in kinds]
            one_cell((picture, axes), own, column, name, place)
        axes.set_yticks(range(len(kinds)), [f"{short(kind)} ({prompts[kind]})" for kind in kinds])
        axes.axvline(1, color=INK, linewidth=1)
        axes.set_xlim(spread([x for rows in shown.values() for row in rows for x in reach(row, column)], 1.0))
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        if len(shown) > 1:
            legend(axes, 1)
    return picture


def drawable(rows: Sequence[Row], column: str) -> list[Row]:
    """The categories with several prompts and a number; a speedup is blank where prompts shared their time."""
    return [row for row in several(rows) if math.isfinite(float_in(row, column))]


def reach(row: Row, column: str) -> list[float]:
    """What the x axis must hold of a category: its interval, but that of a few prompts, which may span decades."""
    ends = ("_low", "", "_high") if row["draws"] >= FEWEST else ("",)
    return [float_in(row, f"{column}{end}") for end in ends]


def one_cell(
    drawing: tuple[Picture, Axes], rows: Sequence[tuple[float, Row]], column: str, name: str, place: int
) -> None:
    """The markers of a cell, given as (y, row), with their intervals."""
    picture, axes = drawing
    found = [Interval(*(float_in(row, f"{column}{end}") for end in ("", "_low", "_high"))) for _, row in rows]
    x, y = [one.value for one in found], [at for at, _ in rows]
    bars, own = errors(x, [one.low for one in found], [one.high for one in found]), look(place)
    axes.errorbar(x, y, xerr=bars, color=own["color"], linestyle="none", elinewidth=1.2, capsize=2.5)
    axes.plot([], [], linestyle="none", label=short(name), **own)
    points(picture, axes, x, y, [tip(row, name, column) for _, row in rows], **own)


def tip(row: Row, name: str, column: str) -> str:
    return f"{short(row['category'])}, {short(name)}: {value(row, column)}, {row['prompts']} prompts"


def value(row: Row, column: str) -> str:
    """A number with its interval."""
    shown, interval = cell_text(row, column), cell_text(row, f"{column}_interval")
    return shown if interval == NOTHING else f"{shown} [{interval}]"
