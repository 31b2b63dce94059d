"""Nests of speculations level by level: what each level accepts, emits and costs.

Knows rows of results.csv; level 1 is the target's, level 2 drafts for it. Methods without inner levels have no lines.
"""

from collections.abc import Callable, Sequence

from specbench.show.cell_text import cell_text
from specbench.show.number_table import NumberTable
from specbench.wording import Row, number_in

COLUMNS = (
    ("alpha", "alpha"), ("tokens\n/ round", "tokens_per_round"), ("c", "c"), ("v", "v"), ("rounds", "rounds"),
)  # fmt: skip
HEADER = ("", "level", *(label for label, _ in COLUMNS))


def depth(row: Row) -> int:
    """How many levels a cell has; 1 for every method that is not a nest."""
    level = 1
    while number_in(row, f"rounds_{level + 1}") is not None:
        level += 1
    return level


def levels_table(rows: Sequence[Row], names: Sequence[str]) -> NumberTable | None:
    """A line per level of every nest; None where no row is of a nest."""
    lines = level_lines(rows, names)
    if not lines:
        return None
    title = "level by level: level 2 drafts for level 1; c and v in baseline steps"
    return NumberTable(title, HEADER, lines, left=1, keys=2)


def level_lines(
    rows: Sequence[Row], names: Sequence[str], text: Callable[[Row, str], str] = cell_text
) -> list[list[str]]:
    """A line per level of every nest: the cell's name, the level, and its numbers as `text` writes them."""
    lines = []
    for row, name in zip(rows, names, strict=True):
        deepest = depth(row)
        for level in range(1, deepest + 1) if deepest > 1 else ():
            suffix = f"_{level}" if level > 1 else ""
            lines.append([name, str(level), *(text(row, column + suffix) for _, column in COLUMNS)])
    return lines
