"""A finished figure as an <svg> element for an HTML page.

Knows SVG and matplotlib's way of writing it; must not know what a figure shows.
"""

import io
import re
import xml.etree.ElementTree as ET

from specbench.show.report import plots
from specbench.show.report.plots import Picture, style
from specbench.wording import clean

_SVG = "{http://www.w3.org/2000/svg}"
_HREF = "{http://www.w3.org/1999/xlink}href"
# What the page has in its own words, as it is light or dark; any other colour is the same on both.
_OF_THE_PAGE = {
    plots.INK: "ink", "#000000": "ink", plots.MUTED: "soft", plots.GRID: "grid", plots.PAPER: "paper",
    plots.BLUE: "blue", plots.ORANGE: "orange", plots.GREEN: "green", plots.PURPLE: "purple", plots.SKY: "sky",
    plots.YELLOW: "yellow",
}  # fmt: skip
_COLOURS = {colour.lower(): f"var(--fig-{name})" for colour, name in _OF_THE_PAGE.items()}
_PAINT = ("fill", "stroke")
_HEX = re.compile(r"#[0-9a-f]{6}\b", re.IGNORECASE)
_USED = re.compile(r"url\(#([^)]+)\)")


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
        if cell := picture.owners.get(element.get("id", "")):
            element.set("data-of", clean(cell, 100))
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
        element.attrib = _coloured(found)


def _coloured(found: dict[str, str]) -> dict[str, str]:
    """The attributes with the colours of the page; these are understood in styles alone."""
    styles = [found.pop("style", "").strip().rstrip(";"), *(f"{k}: {found.pop(k)}" for k in _PAINT if k in found)]
    if text := "; ".join(filter(None, styles)):
        found["style"] = _HEX.sub(lambda hit: _COLOURS.get(hit[0].lower(), hit[0]), text)
    return found
