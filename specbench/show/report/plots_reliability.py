"""The reliability curve: what schedules believed of drafted tokens across, what was accepted of them up.

Knows rows of `Cell.belief_rows`; must not know how a figure is written.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specbench.show.report.plots import DASHED, MARKERS, WIDTH, Picture, floats_in, legend, look, marked_line, style
from specbench.show.report.plots_prompts import short
from specbench.wording import Row

TITLE = "What was believed, and what was accepted"
CAPTION = (
    "Drafted tokens that were judged, by what the schedule held the chance of their acceptance to be, in tenths: the "
    "mean belief across, the share accepted up, and below how many they are. On the dashed line a belief is exact; "
    "above it, too small. ECE: the mean distance from that line; in brackets, what luck makes of it where beliefs are "
    "exact."
)
MOST = len(MARKERS)  # cells of one figure


@dataclass(frozen=True)
class Curve:
    """The curve of a cell: the cell's name and key, its calibration error, and that of as many exact beliefs."""

    name: str
    cell: str
    error: float
    if_exact: float
    rows: Sequence[Row]


def reliability(curves: Sequence[Curve]) -> Picture | None:
    """The curves of some cells and their tests below, the first few; None where there are none."""
    if not curves:
        return None
    with style():
        figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
        upper, lower = figure.subplots(2, sharex=True, height_ratios=(3, 1))
        figure.suptitle(TITLE, x=0.01, horizontalalignment="left")
        picture = Picture("reliability", TITLE, CAPTION, figure)
        upper.plot((0, 1), (0, 1), **DASHED)
        for place, one in enumerate(curves[:MOST]):
            draw_curve(picture, upper, lower, one, place)
        upper.set(xlim=(0, 1.02), ylim=(0, 1.02), ylabel="accepted")
        lower.set(ylabel="tokens", xlabel="believed chance of acceptance")
        lower.set_ylim(bottom=0)
        legend(upper, 1)
    return picture


def draw_curve(picture: Picture, upper: Axes, lower: Axes, one: Curve, place: int) -> None:
    """The curve of one cell, every point with its numbers, and how many tests are behind each."""
    own, x = look(place), floats_in(one.rows, "believed")
    label = f"{short(one.name, 40)}: ECE {one.error:.3f} ({one.if_exact:.3f})"
    marked_line((picture, upper), x, floats_in(one.rows, "accepted"), tips(one), label, one.cell, **own)
    picture.own(one.cell, lower.plot(x, floats_in(one.rows, "tests"), **own))


def tips(one: Curve) -> list[str]:
    """What every point says."""
    return [
        f"{short(one.name, 60)}, {row['low']:.1f}–{row['high']:.1f}: {row['believed']:.3f} believed, "
        f"{row['accepted']:.3f} accepted, {row['tests']:,} tokens"
        for row in one.rows
    ]
