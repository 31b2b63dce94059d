"""The numbers of cells by the category of their prompts: all of a few cells, or one number of many methods.

Knows rows of categories.csv and results.csv; must not know how they were measured. A category with one prompt has no
line: one prompt is no category, and its number no finding.
"""

from collections.abc import Callable, Sequence

from specbench.show.cell_text import NOTHING, cell_text, lookahead, method_name, short_dataset
from specbench.show.headings import name_among
from specbench.show.number_table import NumberTable
from specbench.wording import Row, clean, counted, text_in

COLUMNS = (
    ("prompts", "prompts"), ("speedup", "speedup"), ("95 % interval", "speedup_interval"),
    ("tokens\n/ round", "tokens_per_round"), ("alpha", "alpha"), ("mean of\nprompts", "alpha_mean"), ("c", "c"),
    ("v", "v"),
)  # fmt: skip
ACROSS = (("speedup", "speedup"), ("tokens per round", "tokens_per_round"))  # of every method, in every category
LEGEND = "from totals over the prompts of a category; mean of prompts: of their own alphas, each counted alike"
SHORTEST = 2  # prompts of a category that is shown


def several(rows: Sequence[Row]) -> list[Row]:
    """The categories with several prompts."""
    return [row for row in rows if row["prompts"] >= SHORTEST]


def of_cell(row: Row, categories: Sequence[Row]) -> list[Row]:
    """The lines by category of one cell."""
    return [one for one in categories if text_in(one, "cell") == text_in(row, "cell")]


def category_table(rows: Sequence[Row], categories: Sequence[Row]) -> NumberTable | None:
    """One line per category of every cell; None where no category has several prompts."""
    named = [(name_among(row, rows), one) for row in rows for one in several(of_cell(row, categories))]
    if not named:
        return None
    keys = 1 if len(rows) == 1 else 2
    lines = [[name, *category_line(one)] for name, one in named]
    return NumberTable(
        title=" · ".join(["by category", *(cell_name(row) for row in rows if len(rows) == 1)]),
        header=("", "category", *(label for label, _ in COLUMNS))[2 - keys :],
        lines=[line[2 - keys :] for line in lines],
        left=keys,
        keys=keys,
        legend=LEGEND + left_out(rows, categories),
    )


def cell_name(row: Row) -> str:
    """The data set, the method and the lookahead of a cell."""
    return clean(f"{short_dataset(row['dataset'])} · {method_name(row)} · K {lookahead(row)}", 200)


def category_line(row: Row, text: Callable[[Row, str], str] = cell_text) -> list[str]:
    """A category and its numbers as `text` writes them."""
    return [clean(row["category"]), *(text(row, column) for _, column in COLUMNS)]


def left_out(rows: Sequence[Row], categories: Sequence[Row]) -> str:
    """How many categories of these cells have one prompt."""
    single = {one["category"] for row in rows for one in of_cell(row, categories) if one["prompts"] < SHORTEST}
    return f"; not shown: {counted(len(single), 'with one prompt')}" if single else ""


def method_tables(rows: Sequence[Row], names: Sequence[str], categories: Sequence[Row]) -> list[NumberTable]:
    """Method × category: a table of the speedup and one of the tokens per round; none without categories."""
    found = [several(of_cell(row, categories)) for row in rows]
    kinds = sorted({one["category"] for some in found for one in some})
    return [matrix(label, column, kinds, names, found) for label, column in ACROSS if kinds]


def matrix(
    label: str, column: str, kinds: Sequence[str], names: Sequence[str], found: Sequence[Sequence[Row]]
) -> NumberTable:
    """One number of every cell in every category."""
    lines = []
    for name, some in zip(names, found, strict=True):
        values = {one["category"]: cell_text(one, column) for one in some}
        lines.append([name, *(values.get(kind, NOTHING) for kind in kinds)])
    return NumberTable(f"{label} by category", ("method", *map(clean, kinds)), lines, left=1)
