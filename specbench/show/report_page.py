"""`report.html`: the parts of a report as one file that needs no network, runs no script and loads nothing.

Knows jinja2, escaping and files; must not know how a number came to be. Text from models, data and settings is
hostile: every value that a template prints is stripped of control characters and escaped, whoever wrote the template.
"""

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined, Undefined
from markupsafe import Markup

from specbench import __version__
from specbench.errors import UsageError
from specbench.results import folder, writing
from specbench.results.cells import MEASURED
from specbench.show import batch_table, levels_table, plots, plots_svg, report_parts, token_view, verdict_lines
from specbench.show.cell_text import cell_text
from specbench.show.number_table import unbroken
from specbench.show.plots import Picture
from specbench.show.plots_why import steps_of
from specbench.show.report_calibration import COLUMNS, CalibrationPart, calibration_part, is_calibration
from specbench.show.report_parts import RunPart, run_part
from specbench.show.table_lines import lines_of
from specbench.wording import Row, clean, first_line, text_in

LONGEST = 2000  # characters of one text on the page
FOLDER = "plots"


def write_report(paths: Sequence[Path], output: Path | None = None, *, png: bool = True) -> Path:
    """Write the report on run and calibration folders, and its figures as PNG beside it; the file.

    Default: report.html in the first folder. UsageError if a folder is none or the file cannot be written.
    """
    parts = [calibration_part(path) if is_calibration(path) else run_part(path) for path in paths]
    file = output or paths[0] / "report.html"
    album = Album()
    page = rendered(parts, album)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        writing.replace_text(file, page)
        if png and album.pictures:
            (file.parent / FOLDER).mkdir(exist_ok=True)
            for name, picture in album.pictures.items():
                plots.write_png(picture, file.parent / FOLDER / f"{name}.png")
    except OSError as error:
        reason = error.strerror or first_line(error)
        raise UsageError(f"cannot write {clean(file, 300)}: {reason}; choose another --output") from error
    return file


class Album:
    """The figures of a page, each under a name that no other has: of its file, and of its ids on the page."""

    def __init__(self) -> None:
        self.pictures: dict[str, Picture] = {}

    def add(self, picture: Picture, *places: str) -> Markup:
        """The figure as SVG to be inlined; `places` (run, data set) make its name."""
        stem = "-".join([*(folder.slug(place) for place in places if place), picture.name])
        names = (stem if n == 1 else f"{stem}-{n}" for n in range(1, 10_000))
        name = next(name for name in names if name not in self.pictures)
        self.pictures[name] = picture
        return Markup(plots_svg.svg(picture, f"f{len(self.pictures)}-"))


def rendered(parts: Sequence[RunPart | CalibrationPart], album: Album) -> str:
    """The page. Equal parts give equal bytes: nothing on it depends on when or where it was made."""
    runs = [part for part in parts if isinstance(part, RunPart)]
    return (
        environment()
        .get_template("report.html.jinja")
        .render(
            title=title(runs),
            parts=parts,
            side_by_side=report_parts.side_by_side(runs),
            several=len(parts) > 1,
            draw=album.add,
            version=__version__,
        )
    )


@cache
def environment() -> Environment:
    """Templates of the package; autoescape on, and `shown` around everything that they print."""
    found = Environment(
        loader=PackageLoader("specbench", "assets/report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.globals |= {
        "css": Markup(source(found, "report.css") + token_view.STYLE),
        "glossary": yaml.safe_load(source(found, "glossary.yaml")),
        "lines_of": lines_of,
        "steps_of": steps_of,
        "level_labels": list(map(unbroken, levels_table.HEADER)),
        "level_lines": level_lines,
        "measured": measured,
        "interval": interval,
        "exact": exact,
        "point": point,
        "point_columns": COLUMNS,
        "verdict": verdict_lines,
        "columns": writing.column_names,
        "batch_labels": [unbroken(label) for label, _ in batch_table.COLUMNS],
        "batch_line": batch_line,
        "label": report_parts.label,
        "token_view": token_view.fragment,
    }
    return found


def title(runs: Sequence[RunPart]) -> str:
    """The pairs of the page, the first few by name."""
    pairs = list(
        dict.fromkeys(f"{text_in(r, 'target')} ← {text_in(r, 'draft') or 'no draft'}" for p in runs for r in p.rows)
    )
    return ", ".join(pairs[:3]) + (f" and {len(pairs) - 3} more" if len(pairs) > 3 else "") or "calibration"


def source(found: Environment, name: str) -> str:
    assert found.loader is not None
    return found.loader.get_source(found, name)[0]


def shown(value: object) -> object:
    """What a template prints: markup as it is, everything else as one line of printable characters."""
    if isinstance(value, Markup | Undefined):
        return value
    whole = str(value)
    return clean(whole, LONGEST) + ("…" if len(whole) > LONGEST else "")


def measured(row: Row, column: str) -> Markup:
    """A column of a row as the tables show it."""
    return number(row.get(column), cell_text(row, column), column, text_in(row, "cell"))


def interval(row: Row, name: str) -> Markup:
    """The bounds of a number."""
    if cell_text(row, f"{name}_interval") == "–":
        return Markup("–")
    return Markup("{} – {}").format(*(measured(row, f"{name}_{bound}") for bound in ("low", "high")))


def exact(row: Row, column: str) -> Markup:
    """A column with more digits than the tables show, for the list of all columns."""
    value = row.get(column)
    told = f"{value:.6g}" if isinstance(value, float) else cell_text(row, column)
    return number(value, told, column, text_in(row, "cell"))


def point(row: Row, column: str) -> Markup:
    """A value of calibration.csv, whose rows are text."""
    value, place = plots.float_in(row, column), "/".join(text_in(row, name) for name in COLUMNS[:3])
    told = text_in(row, column) if column in COLUMNS[:3] else f"{value:.3f}"
    return number(text_in(row, column) if math.isfinite(value) else None, told, column, place)


def batch_line(row: Row) -> list[str | Markup]:
    """A row of the table by batch; how it ended where it has no numbers."""
    told = batch_table.line(row)
    if text_in(row, "status") not in MEASURED:
        return [*told]
    names = [column for _, column in batch_table.COLUMNS]
    return [*told[:2], *(interval(row, "speedup") if n == "speedup_interval" else measured(row, n) for n in names[2:])]


def level_lines(group: Sequence[Row]) -> list[list[str | Markup]]:
    """The table of levels of the nests among some cells."""
    names = [report_parts.label(row, group) for row in group]
    return levels_table.level_lines(group, names, measured)


def number(value: Any, told: str, column: str, cell: str) -> Markup:
    """A number as `told`, with its column, its cell and its text in the CSV file; what is none as text alone."""
    exact = writing.csv_cell(value)
    if exact == "" or isinstance(value, bool) or (isinstance(value, str) and column not in COLUMNS):
        return Markup("{}").format(shown(told))
    parts = (shown(part) for part in (exact, column, cell, told))
    return Markup('<data value="{0}" title="{0}" data-column="{1}" data-cell="{2}">{3}</data>').format(*parts)
