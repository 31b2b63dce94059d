"""What schedules believed of drafted tokens, and how much of it was accepted: a line per cell, and the curves.

Knows rows of results.csv and of `Cell.belief_rows`; must not know how they were measured.
"""

from collections.abc import Mapping, Sequence

from specbench.show.cell_text import NOTHING, cell_text, is_absent
from specbench.show.headings import name_among
from specbench.show.methods_table import fastest
from specbench.show.number_table import NumberTable
from specbench.wording import Row, text_in

COLUMNS = (
    ("tests", "belief_tests"), ("believed", "belief_mean"), ("accepted", "belief_accepted"), ("ECE", "belief_ece"),
    ("ECE\nif exact", "belief_ece_if_exact"), ("Brier", "belief_brier"),
)  # fmt: skip
OF_BIN = (("tests", "tests"), ("believed", "believed"), ("accepted", "accepted"))
MOST = 3  # cells whose curves stand side by side
TITLE = "what schedules believed of drafted tokens"
LEGEND = (
    "tests: tokens that were judged and had a belief; ECE: mean distance between belief and share accepted, over "
    "tenths of belief; if exact: what luck makes of it on so many tests"
)

Beliefs = Mapping[str, Sequence[Row]]  # the curve of a cell, by its key


def reliability_tables(rows: Sequence[Row], found: Beliefs) -> list[NumberTable]:
    """A line for every cell whose schedule believes something, and the curves of a few; nothing where none does."""
    believing = [row for row in rows if not is_absent(row.get("belief_tests"))]
    curves = [row for row in by_speed(believing) if found.get(text_in(row, "cell"))][:MOST]
    return [*([errors(believing, rows)] if believing else []), *([side_by_side(curves, found)] if curves else [])]


def errors(believing: Sequence[Row], rows: Sequence[Row]) -> NumberTable:
    """A line per cell; `rows` are those that it is named among."""
    return NumberTable(
        title=TITLE,
        header=("", *(label for label, _ in COLUMNS)),
        lines=[[name_among(row, rows), *(cell_text(row, column) for _, column in COLUMNS)] for row in believing],
        left=1,
        legend=LEGEND,
    )


def by_speed(rows: Sequence[Row]) -> list[Row]:
    """The fastest cell first, the others as they come."""
    best = fastest(rows) if rows else None
    return list(rows) if best is None else [rows[best], *rows[:best], *rows[best + 1 :]]


def side_by_side(cells: Sequence[Row], found: Beliefs) -> NumberTable:
    """A line for every bin of belief in which a cell has tests."""
    names = [name_among(row, cells) if len(cells) > 1 else "" for row in cells]
    curves = [{(one["low"], one["high"]): one for one in found[text_in(row, "cell")]} for row in cells]
    bins = sorted({ends for curve in curves for ends in curve})
    return NumberTable(
        title=f"{TITLE}, by belief",
        header=("belief", *(f"{name}\n{label}".strip() for name in names for label, _ in OF_BIN)),
        lines=[[f"{low:.1f} – {high:.1f}", *of_bin(curves, (low, high))] for low, high in bins],
        left=1,
    )


def of_bin(curves: Sequence[Mapping[tuple[float, float], Row]], ends: tuple[float, float]) -> list[str]:
    """The numbers of one bin in every cell, dashes where a cell has no test in it."""
    return [cell_text(curve[ends], name) if ends in curve else NOTHING for curve in curves for _, name in OF_BIN]
