"""How every figure of a report is drawn: palette, type, size, and its two forms, SVG to be inlined and PNG.

Knows matplotlib, never its pyplot (no global state), and numbers as rows have them. Must not know what a figure shows.
The palette is Okabe and Ito's ("Color Universal Design", 2008), and whatever has a colour also has a marker, a dash or
a hatch, so that a figure can be read without colours.
"""

import io
import math
import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
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

from specbench.wording import clean

BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW, INK = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#222222",
)  # fmt: skip
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW)
MARKERS = ("o", "s", "^", "D", "v", "P")
MUTED = "#6f6f6f"
WIDTH, HEIGHT = 4.7, 3.2  # inches: as wide as a phone shows without shrinking the type
DPI = 160
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
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "hatch.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 5.5,
}
_SVG = "{http://www.w3.org/2000/svg}"
_HREF = "{http://www.w3.org/1999/xlink}href"
_USED = re.compile(r"url\(#([^)]+)\)")


@dataclass(frozen=True)
class Picture:
    """A finished figure. `name` is part of a file name; `caption` says how to read it; `tips` are shown on hover."""

    name: str
    title: str
    caption: str
    figure: Figure
    tips: dict[str, str] = field(default_factory=dict)

    def tip(self, artist: Artist, text: str) -> None:
        """Show `text` where the pointer rests on the artist."""
        gid = f"tip{len(self.tips)}"
        artist.set_gid(gid)
        self.tips[gid] = clean(text, 200)


@contextmanager
def style() -> Iterator[None]:
    """matplotlib's settings while a figure is drawn or written; what was set before is set again afterwards."""
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # the reader's own fonts have it
        yield


def blank(
    name: str, title: str, caption: str, x: str, y: str, height: float = HEIGHT, width: float = WIDTH
) -> tuple[Picture, Axes]:
    """An empty figure of one panel with its title and the names of its axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    figure.suptitle(title, x=0.01, horizontalalignment="left")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return Picture(name, title, caption, figure), axes


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
    picture: Picture, axes: Axes, x: Sequence[float], y: Sequence[float], tips: Sequence[str], **look: Any
) -> None:
    """Markers, each with a text of its own; points without a number are left out."""
    for a, b, text in zip(x, y, tips, strict=True):
        if math.isfinite(a) and math.isfinite(b):
            picture.tip(axes.add_line(Line2D([a], [b], linestyle="none", **look)), text)


def float_in(row: Mapping[str, Any], column: str) -> float:
    """A column as a number; NaN where there is none."""
    value = row.get(column)
    try:
        return math.nan if value is None or value == "" else float(value)
    except (TypeError, ValueError):
        return math.nan


def floats_in(rows: Sequence[Mapping[str, Any]], name: str) -> list[float]:
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


def svg(picture: Picture, prefix: str) -> str:
    """The figure as an <svg> element for an HTML page.

    Without namespaces, metadata and document type, which HTML does not need; the ids that are referred to begin with
    `prefix`, so that many figures fit on one page, the others are dropped.
    """
    buffer = io.StringIO()
    with style():
        picture.figure.savefig(buffer, format="svg", metadata={"Date": None})
    root = ET.fromstring(buffer.getvalue())
    _prune(root)
    for element in root.iter():
        if text := picture.tips.get(element.get("id", "")):
            title = ET.Element("title")
            title.text = text
            element.insert(0, title)
    _rename(root, prefix)
    root.attrib = {"viewBox": root.get("viewBox", ""), "role": "img"}
    root.set("aria-label", clean(f"{picture.title}. {picture.caption}", 1000))
    return ET.tostring(root, encoding="unicode")


def _prune(root: ET.Element) -> None:
    """Take out what a page has already: metadata, and a style that would hold for the whole page."""
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in {f"{_SVG}metadata", f"{_SVG}style"}:
                parent.remove(child)


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
        element.attrib = found
