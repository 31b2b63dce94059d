"""The figure of a method that learns: its numbers from request to request, beside those of methods that do not.

Knows rows of `stretches.smoothed`; must not know how a figure is written.
"""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from specbench.results.stretches import WINDOW
from specbench.show.report.plots import INK, MUTED, WIDTH, Picture, floats_in, legend, look, style
from specbench.show.report.plots_prompts import short
from specbench.wording import Row, grouped

TITLE = "Request by request"
CAPTION = (
    f"Every point is over a request and those of its phase before it, {WINDOW} at most. A vertical line is where the "
    "topic changes. The speedup counts the updates of a draft that learns; dotted is what it would be if they ran "
    "elsewhere."
)
PANELS = (("alpha", "alpha"), ("tokens_per_round", "tokens per round"), ("speedup", "speedup"))
ELSEWHERE = "speedup_elsewhere"
MOST = 4  # cells of one figure

Lines = Mapping[str, Sequence[Row]]  # the rows of every cell, by its name


def over_requests(found: Lines, learning: Sequence[str]) -> Picture | None:
    """Acceptance, tokens per round and speedup over the requests, a line per cell; None for fewer than two requests.

    `learning` are the names of the cells whose drafts learn; the others are dashed.
    """
    shown = {name: rows for name, rows in [*found.items()][:MOST] if len(rows) > 1}
    if not shown:
        return None
    with style():
        figure = Figure(figsize=(WIDTH, 6.2), layout="constrained")
        panels = figure.subplots(len(PANELS), sharex=True)
        figure.suptitle(TITLE, x=0.01, horizontalalignment="left")
        for axes, (column, label) in zip(panels, PANELS, strict=True):
            panel(axes, shown, column, learning)
            axes.set_ylabel(label)
        mark_phases(panels, next(iter(shown.values())))
        panels[-1].axhline(1, color=INK, linewidth=1)
        panels[-1].set_xlabel("request")
        panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
        legend(panels[0], 1)
    return Picture("over-requests", TITLE, CAPTION, figure)


def panel(axes: Axes, found: Lines, column: str, learning: Sequence[str]) -> None:
    """One number of every cell."""
    for place, (name, rows) in enumerate(found.items()):
        colour, x = look(place)["color"], floats_in(rows, "request")
        line = "-" if name in learning else "--"
        axes.plot(x, floats_in(rows, column), color=colour, linestyle=line, label=short(name, 60))
        if column == "speedup" and name in learning:
            axes.plot(x, floats_in(rows, ELSEWHERE), color=colour, linestyle=":", linewidth=1.1)


def mark_phases(panels: Sequence[Axes], rows: Sequence[Row]) -> None:
    """A line before the first request of every phase but the first, and the names of all above the figure."""
    starts = [group[0] for group in grouped(rows, lambda row: row["phase"])]
    if len(starts) < 2:
        return
    for row in starts[1:]:
        for axes in panels:
            axes.axvline(float(row["request"]) - 0.5, color=MUTED, linewidth=1)
    for row in starts:
        where = (float(row["request"]), 1.0)
        panels[0].annotate(
            short(row["phase"], 24), where, (2, 3), xycoords=("data", "axes fraction"), textcoords="offset points",
            fontsize=8, color=MUTED,
        )  # fmt: skip
