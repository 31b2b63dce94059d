"""The cells of the tables on a report page: every number with its column, its cell and its exact value.

Whatever is put on a page is stripped of control characters here, and
escaped, as text from models, data and settings is hostile.
"""

import math
from collections.abc import Sequence
from typing import Any

from jinja2 import Undefined
from markupsafe import Markup

from specbench.results import writing
from specbench.results.cells import MEASURED
from specbench.results.machine import PEAKS
from specbench.show.details import level_lines
from specbench.show.report.figure import float_in
from specbench.show.report.figures_methods import GB
from specbench.show.tables import is_lossy
from specbench.show.text import NOTHING, cell_text, is_number
from specbench.wording import Row, clean, text_in

POINT = ("model", "context", "width", "milliseconds", "low", "high", "v")  # columns of calibration.csv
BYTES = tuple(name for name in PEAKS if not name.startswith("baseline"))
LONGEST = 2000  # characters of one text on the page
CATEGORIES = (
    ("prompts", "prompts"), ("speedup", "speedup"), ("95 % interval", "speedup_interval"),
    ("mean of prompts (geometric)", "speedup_geomean"), ("tokens / round", "tokens_per_round"),
    ("95 % interval", "tokens_per_round_interval"), ("mean of prompts", "tokens_per_round_mean"),
    ("alpha", "alpha"), ("95 % interval", "alpha_interval"), ("mean of prompts", "alpha_mean"), ("c", "c"),
    ("mean of prompts", "c_mean"), ("v", "v"), ("mean of prompts", "v_mean"),
)  # fmt: skip
CATEGORY_LABELS = ("category", *(label for label, _ in CATEGORIES))
NUMBER = Markup('<data value="{0}" title="{0}" data-column="{1}" data-cell="{2}">{3}</data>')


def printable(value: object) -> object:
    """What a template prints: markup as it is, everything else as one line of printable characters."""
    if isinstance(value, Markup | Undefined):
        return value
    whole = str(value)
    return clean(whole, LONGEST) + ("…" if len(whole) > LONGEST else "")


def measured(row: Row, column: str) -> Markup:
    """A column of a row as the tables show it."""
    return data_element(row.get(column), cell_text(row, column), column, text_in(row, "cell"))


def ranked(row: Row, column: str) -> str:
    """A number in a table with a line per cell, bytes as gigabytes; how the cell ended where it has none."""
    if text_in(row, "status") not in MEASURED:
        return text_in(row, "status") if column == "speedup" else ""
    if column == "law_distance" and not is_lossy(row):
        return ""
    if column in BYTES and is_number(row.get(column)):
        return data_element(row[column], f"{float_in(row, column) / GB:.2f}", column, text_in(row, "cell"))
    return measured_text(row, column)


def interval(row: Row, name: str) -> Markup:
    """The bounds of a number."""
    if cell_text(row, f"{name}_interval") == NOTHING:
        return Markup(NOTHING)
    return Markup("{} – {}").format(*(measured(row, f"{name}_{bound}") for bound in ("low", "high")))


def exact(row: Row, column: str) -> Markup:
    """A column with more digits than the tables show, for the list of all columns."""
    value = row.get(column)
    text = f"{value:.6g}" if isinstance(value, float) else cell_text(row, column)
    return data_element(value, text, column, text_in(row, "cell"))


def point(row: Row, column: str) -> Markup:
    """A value of calibration.csv, whose rows are text."""
    value = float_in(row, column)
    place = "/".join(text_in(row, name) for name in POINT[:3])
    text = text_in(row, column) if column in POINT[:3] else f"{value:.3f}"
    return data_element(text_in(row, column) if math.isfinite(value) else None, text, column, place)


def measured_text(row: Row, column: str) -> str:
    """A number, or the bounds of one, of a table that the terminal shows as well."""
    return interval(row, column.removesuffix("_interval")) if column.endswith("_interval") else measured(row, column)


def level_cells(rows: Sequence[Row], names: Sequence[str]) -> list[list[str]]:
    """The table of levels of the nests among some cells, whose names are given."""
    return level_lines(rows, names, measured)


def category_cells(row: Row) -> list[str | Markup]:
    """A line by category: pooled values with their intervals, and the means of prompts."""
    place = f"{text_in(row, 'cell')}/{text_in(row, 'category')}"
    found: list[str | Markup] = [text_in(row, "category")]
    for _, column in CATEGORIES:
        names = [f"{column[:-9]}_{bound}" for bound in ("low", "high")] if column.endswith("_interval") else [column]
        shown = [data_element(row.get(name), cell_text(row, name), name, place) for name in names]
        found.append(Markup(" – ").join(shown) if cell_text(row, column) != NOTHING else NOTHING)
    return found


def data_element(value: Any, text: str, column: str, cell: str) -> Markup:
    """A number written as `text`, with its column, its cell and its exact value; anything else as text alone."""
    exact = writing.csv_cell(value)
    if exact == "" or isinstance(value, bool) or (isinstance(value, str) and column not in POINT):
        return Markup("{}").format(printable(text))
    return NUMBER.format(*map(printable, (exact, column, cell, text)))
