"""How every figure of a report is drawn: palette, type, size, lines and markers.

Knows matplotlib, never its pyplot (no global state), and numbers as rows have them. Must not know what a figure shows.
The palette is Okabe and Ito's ("Color Universal Design", 2008), and whatever has a colour also has a marker, a dash or
a hatch, so that a figure can be read without colours.
"""

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from specbench.wording import Row, clean

BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW, INK = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#222222",
)  # fmt: skip
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW)
MARKERS = ("o", "s", "^", "D", "v", "P")
MUTED, GRID, PAPER = "#6f6f6f", "#e4e4e4", "#ffffff"
FIXED = "#212121"  # ink on a coloured tile, which is the same on a dark page
WIDTH, HEIGHT = 4.7, 3.2  # inches: as wide as a phone shows without shrinking the type
DPI = 300  # fit to print
DASHED: dict[str, Any] = {"color": INK, "linestyle": "--", "linewidth": 1.2}  # the baseline
STYLE: Any = {
    "svg.fonttype": "none",  # text stays text: small, searchable, read aloud
    "svg.hashsalt": "specbench",  # the same numbers give the same bytes
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "font.size": 10,
    "figure.titlesize": 11,
    "figure.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": MUTED,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "hatch.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 5.5,
}


@dataclass(frozen=True)
class Picture:
    """A finished figure. `name` is part of a file name; `caption` says how to read it; `tips` are shown on hover.

    owners: the cell, by its key, that a part of the figure is of, by the part's id: readers may hide cells.
    """

    name: str
    title: str
    caption: str
    figure: Figure
    tips: dict[str, str] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)

    def tip(self, artist: Artist, text: str, cell: str = "") -> None:
        """Show `text` where the pointer rests on the artist; `cell` owns it."""
        gid = f"tip{len(self.tips)}"
        artist.set_gid(gid)
        self.tips[gid] = clean(text, 200)
        if cell:
            self.owners[gid] = cell

    def own(self, cell: str, artists: Iterable[Artist]) -> None:
        """These parts are of one cell."""
        for artist in artists if cell else ():
            gid = f"own{len(self.owners)}"
            artist.set_gid(gid)
            self.owners[gid] = cell


@contextmanager
def style() -> Iterator[None]:
    """matplotlib's settings while a figure is drawn or written; what was set before is set again afterwards."""
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # the reader's own fonts have it
        yield


@dataclass(frozen=True)
class Sheet:
    """A figure of one panel before anything is drawn on it: its name, title, caption and the names of its axes."""

    name: str
    title: str
    caption: str
    x: str
    y: str
    height: float = HEIGHT
    width: float = WIDTH

    @contextmanager
    def drawing(self) -> Iterator[tuple[Picture, Axes]]:
        """The picture and its axes, to be drawn on in the style of the report."""
        with style():
            figure = Figure(figsize=(self.width, self.height), layout="constrained")
            axes = figure.subplots()
            figure.suptitle(self.title, x=0.01, horizontalalignment="left")
            axes.set_xlabel(self.x)
            axes.set_ylabel(self.y)
            yield Picture(self.name, self.title, self.caption, figure), axes

    @contextmanager
    def panels(self, names: Sequence[str]) -> Iterator[tuple[Picture, list[Axes]]]:
        """The picture and a panel for every name, small and on the same scale, two beside each other."""
        down = -(-len(names) // 2)
        with style():
            figure = Figure(figsize=(self.width, 1.0 + 1.5 * down), layout="constrained")
            grid = figure.subplots(down, 2, sharex=True, sharey=True, squeeze=False)
            figure.suptitle(self.title, x=0.01, horizontalalignment="left")
            figure.supylabel(self.y, fontsize=10)
            for axes in grid[-1]:
                axes.set_xlabel(self.x.partition(" (")[0], fontsize=9)  # as much as a panel has room for
            found = list(grid.flat)
            for axes, name in zip(found, names, strict=False):
                axes.set_title(clean(name, 34), fontsize=9, loc="left")
            for axes in found[len(names) :]:
                axes.set_visible(False)
            yield Picture(self.name, self.title, self.caption, figure), found[: len(names)]


def look(place: int) -> dict[str, Any]:
    """Colour and marker of the line at a place: no two of the first thirty-six are alike."""
    turn = place // len(COLOURS)
    return {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[(place + turn) % len(MARKERS)]}


def whole_numbers(axes: Axes, values: Sequence[float]) -> None:
    """Ticks of the x axis at each of a few whole numbers, or at some of many."""
    if len(values) <= 12:
        axes.set_xticks(sorted(values))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def legend(axes: Axes, columns: int = 2) -> None:
    """The names of the lines under the figure, where no line can run."""
    axes.figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=columns)


def points(
    picture: Picture,
    axes: Axes,
    x: Sequence[float],
    y: Sequence[float],
    tips: Sequence[str],
    *,
    cells: Sequence[str] = (),
    **look: Any,
) -> None:
    """Markers, each with a text of its own, and owned by its cell; points without a number are left out."""
    for a, b, text, cell in zip(x, y, tips, cells or [""] * len(tips), strict=True):
        if math.isfinite(a) and math.isfinite(b):
            picture.tip(axes.add_line(Line2D([a], [b], linestyle="none", **look)), text, cell)


def marked_line(
    drawing: tuple[Picture, Axes],
    x: Sequence[float],
    y: Sequence[float],
    tips: Sequence[str],
    label: str,
    owner: str = "",
    **look: Any,
) -> None:
    """A line of markers, each with a text of its own."""
    picture, axes = drawing
    picture.own(owner, axes.plot(x, y, label=label, **look))
    points(picture, axes, x, y, tips, cells=[owner] * len(tips), **look)


def line_with_intervals(
    drawing: tuple[Picture, Axes],
    rows: Sequence[Row],
    x: str,
    y: str,
    tips: Sequence[str],
    label: str,
    look: Mapping[str, Any],
    bounds: tuple[str, str] | None = None,
    owner: str = "",
    **bars: Any,
) -> None:
    """A column of rows over another as a line of markers with its interval, `bounds` or `<y>_low` and `<y>_high`."""
    picture, axes = drawing
    low, high = bounds or (f"{y}_low", f"{y}_high")
    across, up = floats_in(rows, x), floats_in(rows, y)
    spans = errors(up, floats_in(rows, low), floats_in(rows, high))
    picture.own(owner, axes.errorbar(across, up, yerr=spans, label=label, **look, **bars).get_children())
    points(picture, axes, across, up, tips, cells=[owner] * len(tips), **look)


def float_in(row: Row, column: str) -> float:
    """A column as a number; NaN where there is none."""
    value = row.get(column)
    try:
        return math.nan if value is None or value == "" else float(value)
    except (TypeError, ValueError):
        return math.nan


def floats_in(rows: Sequence[Row], name: str) -> list[float]:
    return [float_in(row, name) for row in rows]


def errors(value: Sequence[float], low: Sequence[float], high: Sequence[float]) -> list[list[float]]:
    """Distances down and up, as error bars want them; none where there is no interval."""
    down = [v - a if v >= a else math.nan for v, a in zip(value, low, strict=True)]
    return [down, [b - v if b >= v else math.nan for v, b in zip(value, high, strict=True)]]


def spread(values: Sequence[float], around: float, room: float = 0.08) -> tuple[float, float]:
    """Limits of an axis that hold all finite values and `around`, with some room."""
    finite = [v for v in values if math.isfinite(v)] + [around]
    pad = room * ((max(finite) - min(finite)) or abs(around) or 1.0)
    return min(finite) - pad, max(finite) + pad


def write_png(picture: Picture, path: Path) -> None:
    """The figure as a PNG, without the time at which it was written."""
    with style():
        picture.figure.savefig(path, format="png", dpi=DPI, metadata={"Software": None})


def write_pdf(picture: Picture, path: Path) -> None:
    """The figure as a PDF, without the time at which it was written."""
    with style():
        picture.figure.savefig(path, format="pdf", metadata={"CreationDate": None})


def write_svg(picture: Picture, path: Path) -> None:
    """The figure as an SVG file; equal figures give equal bytes."""
    with style():
        picture.figure.savefig(path, format="svg", metadata={"Date": None})
