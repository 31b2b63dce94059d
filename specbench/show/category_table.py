"""The numbers of cells by the category of their prompts: all of a few cells, or one number of many methods.

Knows rows of categories.csv and results.csv; must not know how they were measured. A category with one prompt has no
line: one prompt is no category, and its number no finding.
"""

from collections.abc import Sequence

from specbench.show.cell_text import NOTHING, cell_text, is_absent, lookahead, method_name, short_dataset
from specbench.show.headings import name_among
from specbench.show.number_table import NumberTable
from specbench.wording import Row, clean, text_in

COLUMNS = (
    ("n", "prompts"), ("speedup", "speedup"), ("95 % interval", "speedup_interval"),
    ("tokens\n/ round", "tokens_per_round"), ("alpha", "alpha"), ("mean\nalpha", "alpha_mean"), ("c", "c"), ("v", "v"),
)  # fmt: skip
LEARNING = (("runs\nelsewhere", "speedup_elsewhere"),)  # of drafts that learn
COVERAGE = (("draft\ncoverage", "draft_coverage"),)  # of drafts that know some tokens only: no alpha is above it
ACROSS = (("speedup", "speedup"), ("tokens per round", "tokens_per_round"))  # of every method, in every category
LEGEND = "from totals over the n prompts of a category; mean alpha: of their own alphas, each counted alike"
SHORTEST = 2  # prompts of a category that is shown


def several(rows: Sequence[Row]) -> list[Row]:
    """The categories with several prompts."""
    return [row for row in rows if row["prompts"] >= SHORTEST]


def of_cell(row: Row, categories: Sequence[Row]) -> list[Row]:
    """The lines by category of one cell."""
    return [one for one in categories if text_in(one, "cell") == text_in(row, "cell")]


def cell_tables(rows: Sequence[Row], categories: Sequence[Row]) -> list[NumberTable]:
    """A table of every cell that has categories with several prompts, what its columns mean below the last one."""
    shown = [row for row in rows if several(of_cell(row, categories))]
    names = [name_among(row, shown) if len(shown) > 1 else cell_name(row) for row in shown]
    legends = [*[""] * (len(shown) - 1), LEGEND]
    return [category_table(n, of_cell(r, categories), last) for n, r, last in zip(names, shown, legends, strict=False)]


def category_table(name: str, categories: Sequence[Row], legend: str) -> NumberTable:
    """One line per category of a cell with this name."""
    shown = several(categories)
    single = len(categories) - len(shown)
    further = [some for some in (LEARNING, COVERAGE) if any(not is_absent(one.get(some[0][1])) for one in shown)]
    columns = [*COLUMNS, *(one for some in further for one in some)]
    return NumberTable(
        title=f"by category · {name}" + f" · {single} with one prompt not shown" * bool(single),
        header=("category", *(label for label, _ in columns)),
        lines=[[clean(one["category"]), *(cell_text(one, column) for _, column in columns)] for one in shown],
        left=1,
        legend=legend,
    )


def cell_name(row: Row) -> str:
    """The data set, the method and the lookahead of a cell."""
    return clean(f"{short_dataset(row['dataset'])} · {method_name(row)} · K {lookahead(row)}", 200)


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
