"""Common parts of all report figures: palette, sheets, lines, markers, intervals, and files.

matplotlib is used without pyplot, which has global state. The palette is Okabe and Ito's ("Color Universal Design",
2008). Every colour is paired with a marker, a dash or a hatch, so that figures are readable without colours.
"""

import io
import math
import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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

from specbench.results.statistics import FEWEST
from specbench.wording import Row, clean

BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW, INK = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#222222",
)  # fmt: skip
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW)
MARKERS = ("o", "s", "^", "D", "v", "P")
MUTED, GRID, PAPER = "#6f6f6f", "#e4e4e4", "#ffffff"
FIXED = "#212121"  # ink on a coloured tile, the same on a dark page
WIDTH, HEIGHT = 4.7, 3.2  # inches: as wide as a phone shows without shrinking the type
DPI = 300  # print resolution
DASHED: dict[str, Any] = {"color": INK, "linestyle": "--", "linewidth": 1.2}  # style of the baseline
STYLE: Any = {
    "svg.fonttype": "none",  # text stays text: small, searchable, accessible
    "svg.hashsalt": "specbench",  # deterministic output
    "text.parse_math": False,  # a dollar sign in a name is literal
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
    """A finished figure. `name` is part of a file name; `caption` explains it; `tips` are shown on hover.

    owners: the cell key of each part of the figure, by the part's id, because readers may hide cells.
    """

    name: str
    title: str
    caption: str
    figure: Figure
    tips: dict[str, str] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)

    def tip(self, artist: Artist, text: str, cell: str = "") -> None:
        """Show `text` when hovering over the artist; `cell` owns it."""
        gid = f"tip{len(self.tips)}"
        artist.set_gid(gid)
        self.tips[gid] = clean(text, 200)
        if cell:
            self.owners[gid] = cell

    def own(self, cell: str, artists: Iterable[Artist]) -> None:
        """Assign these artists to one cell."""
        for artist in artists if cell else ():
            gid = f"own{len(self.owners)}"
            artist.set_gid(gid)
            self.owners[gid] = cell


@contextmanager
def style() -> Iterator[None]:
    """Apply matplotlib settings while a figure is drawn or written, and restore the previous ones."""
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # the reader's own fonts have it
        yield


@dataclass(frozen=True)
class Panel:
    """The axes of a picture, with the marks that figures have in common."""

    picture: Picture
    axes: Axes

    def points(
        self, x: Sequence[float], y: Sequence[float], tips: Sequence[str], *, cell: str = "", **look: Any
    ) -> None:
        """Markers of a cell, each with its own tip; points without a number are left out."""
        for a, b, text in zip(x, y, tips, strict=True):
            if math.isfinite(a) and math.isfinite(b):
                self.picture.tip(self.axes.add_line(Line2D([a], [b], linestyle="none", **look)), text, cell)

    def line(
        self,
        rows: Sequence[Row],
        columns: tuple[str, str],
        tip: str | Callable[[Row], str],
        label: str,
        look: Mapping[str, Any],
        *,
        cell: str = "",
        bounds: tuple[str, str] | None = None,
        bars: Mapping[str, Any] | None = None,
    ) -> None:
        """Draw one column of rows over another, given as (x, y), as a line of markers.

        tip: the text of a point, from its row or as a template with the row's numbers and `name`, the line's. bars:
        the style of its interval, `bounds` or `<y>_low` and `<y>_high`; None without one. cell: its owner.
        """
        x, y = (floats_in(rows, name) for name in columns)
        if bars is None:
            self.picture.own(cell, self.axes.plot(x, y, label=label, **look))
        else:
            low, high = bounds or (f"{columns[1]}_low", f"{columns[1]}_high")
            spans = errors(y, floats_in(rows, low), floats_in(rows, high))
            self.picture.own(cell, self.axes.errorbar(x, y, yerr=spans, label=label, **look, **bars).get_children())
        tips = [
            tip(row) if callable(tip) else tip.format(**{n: float_in(row, n) for n in row} | {"name": cell or label})
            for row in rows
        ]
        self.points(x, y, tips, cell=cell, **look)

    def across(self, rows: Sequence[Row], y: Sequence[float], column: str = "speedup", **style: Any) -> list[float]:
        """The intervals of a column at the heights `y`; returns the values, for their markers."""
        low, x, high = (floats_in(rows, f"{column}{end}") for end in ("_low", "", "_high"))
        self.axes.errorbar(x, y, xerr=errors(x, low, high), linestyle="none", **style)
        return x

    def cut_ends(self, cells: Iterable[tuple[float, Row]]) -> None:
        """An arrow at the edge where the interval of a cell, given with its y, continues beyond it."""
        left, right = self.axes.get_xlim()
        for y, row in cells:
            low, _, high = bounds(row)
            for edge, arrow in [(left, "<")] * bool(low < left) + [(right, ">")] * bool(high > right):
                self.axes.plot([edge], [y], color=MUTED, marker=arrow, markersize=6, linestyle="none", clip_on=False)

    def whole_numbers(self, values: Sequence[float]) -> None:
        """Ticks of the x axis at each of a few integers, or at some of many."""
        if len(values) <= 12:
            self.axes.set_xticks(values)
        else:
            self.axes.xaxis.set_major_locator(MaxNLocator(integer=True))

    def legend(self, columns: int = 2) -> None:
        """A legend under the figure, clear of all lines."""
        handles = self.axes.get_legend_handles_labels()
        self.axes.figure.legend(*handles, loc="outside lower left", ncols=columns)


@dataclass(frozen=True)
class Sheet:
    """A figure of one panel before drawing: its name, title, caption and the names of its axes."""

    name: str
    title: str
    caption: str
    x: str
    y: str = ""
    height: float = HEIGHT
    width: float = WIDTH

    @contextmanager
    def drawing(self) -> Iterator[Panel]:
        """The picture with its axes, ready for drawing in the style of the report."""
        with self.begun(self.height) as picture:
            axes = picture.figure.subplots()
            axes.set_xlabel(self.x)
            axes.set_ylabel(self.y)
            yield Panel(picture, axes)

    @contextmanager
    def panels(self, names: Sequence[str]) -> Iterator[list[Panel]]:
        """A panel for every name, small and on the same scale, two per line."""
        down = -(-len(names) // 2)
        with self.begun(1.0 + 1.5 * down) as picture:
            grid = picture.figure.subplots(down, 2, sharex=True, sharey=True, squeeze=False)
            picture.figure.supylabel(self.y, fontsize=10)
            for axes in grid[-1]:
                axes.set_xlabel(self.x.partition(" (")[0], fontsize=9)  # short enough for a panel
            found = list(grid.flat)
            for axes, name in zip(found, names, strict=False):
                axes.set_title(clean(name, 34), fontsize=9, loc="left")
            for axes in found[len(names) :]:
                axes.set_visible(False)
            yield [Panel(picture, axes) for axes in found[: len(names)]]

    @contextmanager
    def begun(self, height: float) -> Iterator[Picture]:
        with style():
            figure = Figure(figsize=(self.width, height), layout="constrained")
            figure.suptitle(self.title, x=0.01, horizontalalignment="left")
            yield Picture(self.name, self.title, self.caption, figure)


def look(place: int) -> dict[str, Any]:
    """Colour and marker of the line at a position: distinct among the first thirty-six."""
    turn = place // len(COLOURS)
    return {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[(place + turn) % len(MARKERS)]}


def float_in(row: Row, column: str) -> float:
    """A column as a number; NaN if missing."""
    value = row.get(column)
    try:
        return math.nan if value is None or value == "" else float(value)
    except (TypeError, ValueError):
        return math.nan


def floats_in(rows: Sequence[Row], name: str) -> list[float]:
    return [float_in(row, name) for row in rows]


def errors(value: Sequence[float], low: Sequence[float], high: Sequence[float]) -> list[list[float]]:
    """Distances down and up for error bars; NaN without an interval."""
    down = [v - a if v >= a else math.nan for v, a in zip(value, low, strict=True)]
    return [down, [b - v if b >= v else math.nan for v, b in zip(value, high, strict=True)]]


def spread(values: Sequence[float], around: float, room: float = 0.08) -> tuple[float, float]:
    """Axis limits that include all finite values and `around`, with a margin."""
    finite = [v for v in values if math.isfinite(v)] + [around]
    pad = room * ((max(finite) - min(finite)) or abs(around) or 1.0)
    return min(finite) - pad, max(finite) + pad


def bounds(row: Row) -> list[float]:
    """A speedup with its interval: low, value, high."""
    return [float_in(row, f"speedup{end}") for end in ("_low", "", "_high")]


def in_view(row: Row) -> list[float]:
    """The axis range of a speedup: its interval, except with few prompts, where it may span decades."""
    return bounds(row) if float_in(row, "draws") >= FEWEST else [float_in(row, "speedup")]


def interval_tip(row: Row) -> str:
    """A speedup in words, with its interval if known."""
    low, value, high = bounds(row)
    return f"{value:.3f}×" if math.isnan(low) else f"{value:.3f}× [{low:.3f}, {high:.3f}]"


def short(name: object, most: int = 34) -> str:
    """A name short enough for the figure."""
    text = clean(name, 200)
    return text if len(text) <= most else text[: most - 1] + "…"


# --- files ------------------------------------------------------------------------------------------------------------

UNDATED: dict[str, dict[str, Any]] = {  # no dates, so that equal figures give equal bytes
    "png": {"dpi": DPI, "metadata": {"Software": None}},
    "pdf": {"metadata": {"CreationDate": None}},
    "svg": {"metadata": {"Date": None}},
}


def write(picture: Picture, file: Path | io.BytesIO, form: str) -> None:
    """Write the figure as png, pdf or svg, without a timestamp."""
    with style():
        picture.figure.savefig(file, format=form, **UNDATED[form])


_SVG = "{http://www.w3.org/2000/svg}"
_HREF = "{http://www.w3.org/1999/xlink}href"
# Colours that the page replaces, as it is light or dark; other colours are fixed.
_OF_THE_PAGE = {
    INK: "ink", "#000000": "ink", MUTED: "soft", GRID: "grid", PAPER: "paper",
    BLUE: "blue", ORANGE: "orange", GREEN: "green", PURPLE: "purple", SKY: "sky",
    YELLOW: "yellow",
}  # fmt: skip
_COLOURS = {colour.lower(): f"var(--fig-{name})" for colour, name in _OF_THE_PAGE.items()}
_PAINT = ("fill", "stroke")
_HEX = re.compile(r"#[0-9a-f]{6}\b", re.IGNORECASE)
_USED = re.compile(r"url\(#([^)]+)\)")


def svg(picture: Picture, prefix: str) -> str:
    """The figure as an <svg> element for an HTML page.

    Namespaces, metadata and document type are dropped, as HTML does not need them; ids in use get the
    `prefix`, so that many figures fit on one page, and others are dropped.
    """
    buffer = io.BytesIO()
    write(picture, buffer, "svg")
    root = ET.fromstring(buffer.getvalue())
    # metadata, and styles that would apply to the whole page
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in {f"{_SVG}metadata", f"{_SVG}style"}:
                parent.remove(child)
    for element in root.iter():
        if text := picture.tips.get(element.get("id", "")):
            title = ET.Element("title")
            title.text = text
            element.insert(0, title)
        if cell := picture.owners.get(element.get("id", "")):
            element.set("data-of", clean(cell, 100))
    _rename(root, prefix)
    root.attrib = {"viewBox": root.get("viewBox", ""), "role": "img"}
    root.set("aria-label", clean(f"{picture.title}. {picture.caption}", 1000))
    return ET.tostring(root, encoding="unicode")


def _rename(root: ET.Element, prefix: str) -> None:
    used = {i for e in root.iter() for v in e.attrib.values() for i in _USED.findall(v)}
    used |= {e.attrib[_HREF].removeprefix("#") for e in root.iter() if _HREF in e.attrib}
    for element in root.iter():
        element.tag = element.tag.removeprefix(_SVG)
        found = {k: _USED.sub(rf"url(#{prefix}\1)", v) for k, v in element.attrib.items()}
        if (own := found.pop("id", None)) in used:
            found["id"] = f"{prefix}{own}"
        if link := found.pop(_HREF, None):
            found["href"] = f"#{prefix}{link.removeprefix('#')}"
        if "font-family" in found.get("style", ""):
            found["style"] = re.sub(r"\s*font-family:[^;]*;", "", found["style"])  # the page's own type
        styles = [found.pop("style", "").strip().rstrip(";"), *(f"{k}: {found.pop(k)}" for k in _PAINT if k in found)]
        if text := "; ".join(filter(None, styles)):
            found["style"] = _HEX.sub(lambda hit: _COLOURS.get(hit[0].lower(), hit[0]), text)
        element.attrib = found
