"""How the numbers of a method that learns change from request to request, beside those of the others of its question.

Knows rows of results.csv and of `stretches`; must not know how they were measured.
"""

from collections.abc import Mapping, Sequence

from specbench.judge.questions import QUESTION
from specbench.show.cell_text import cell_text
from specbench.show.headings import name_among
from specbench.show.number_table import NumberTable
from specbench.wording import Row, clean, grouped, text_in

COLUMNS = (("alpha", "alpha"), ("tokens\n/ round", "tokens_per_round"), ("speedup", "speedup"))
MOST = 4  # cells of one table
LEGEND = "requests in the order in which they were decoded; ratios of their totals, updates of the draft counted"

Stretches = Mapping[str, Sequence[Row]]  # of a cell, by its key


def learning(rows: Sequence[Row]) -> list[list[Row]]:
    """The cells of every question in which a method carries something from prompt to prompt, such methods first."""
    questions = grouped(rows, lambda row: tuple(text_in(row, name) for name in QUESTION))
    ordered = [sorted(some, key=lambda row: not text_in(row, "carries")) for some in questions]
    return [some for some in ordered if text_in(some[0], "carries")]


def stretches_tables(rows: Sequence[Row], found: Stretches) -> list[NumberTable]:
    """One table per question, a line per stretch, the numbers of a few cells side by side."""
    return [table(some, found) for cells in learning(rows) if (some := measured(cells, found))]


def measured(cells: Sequence[Row], found: Stretches) -> list[Row]:
    """The cells with as many stretches as the first: those that failed early have fewer."""
    lengths = [len(found.get(text_in(row, "cell"), ())) for row in cells]
    return [row for row, length in zip(cells, lengths, strict=True) if length and length == lengths[0]][:MOST]


def table(cells: Sequence[Row], found: Stretches) -> NumberTable:
    names = [name_among(row, cells) if len(cells) > 1 else "" for row in cells]
    lines = [found[text_in(row, "cell")] for row in cells]
    header = [f"{name}\n{label}".strip() for name in names for label, _ in COLUMNS]
    return NumberTable(
        title="over the requests",
        header=("requests", "phase", *header),
        lines=[line(own) for own in zip(*lines, strict=True)],
        left=2,
        legend=LEGEND,
    )


def line(own: Sequence[Row]) -> list[str]:
    """One stretch of all cells."""
    first = own[0]
    numbers = [cell_text(one, column) for one in own for _, column in COLUMNS]
    return [f"{first['first']}–{first['last']}", clean(first["phase"]), *numbers]
