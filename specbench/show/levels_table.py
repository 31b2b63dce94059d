"""Nests of speculations level by level, as a table: what every level accepts, emits and costs.

Knows rows of results.csv; level 1 is the target's, level 2 drafts for it. Methods without inner levels have no lines.
"""

from collections.abc import Callable, Sequence

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from specbench.show.fitting import Fitted
from specbench.wording import Row, literal, number_in

Show = Callable[[Row, str], str]  # a column of a row; Markup is a str too
TITLE = "level by level: level 2 drafts for level 1; c and v in baseline steps"
COLUMNS = (
    ("alpha", "alpha"), ("tokens\n/ round", "tokens_per_round"), ("c", "c"), ("v", "v"), ("rounds", "rounds"),
)  # fmt: skip


def depth(row: Row) -> int:
    """How many levels a cell has; 1 of every method that is no nest."""
    level = 1
    while number_in(row, f"rounds_{level + 1}") is not None:
        level += 1
    return level


def level_lines(rows: Sequence[Row], names: Sequence[str], text: Show) -> list[list[str]]:
    """A line per level of every nest: the cell's name, the level, and its numbers as `text` shows them."""
    lines = []
    for row, name in zip(rows, names, strict=True):
        deepest = depth(row)
        for level in range(1, deepest + 1) if deepest > 1 else ():
            suffix = f"_{level}" if level > 1 else ""
            lines.append([name, str(level), *(text(row, column + suffix) for _, column in COLUMNS)])
    return lines


def levels_table(rows: Sequence[Row], names: Sequence[str], text: Show) -> Group | None:
    """None where no row is of a nest."""
    lines = level_lines(rows, names, text)
    if not lines:
        return None
    table = Table(box=box.SIMPLE, pad_edge=False, collapse_padding=True)
    for label in labels():
        table.add_column(label, justify="right" if label else "left")
    for line in lines:
        table.add_row(*map(Text, line))
    return Group(Text(TITLE, style="bold"), Fitted(table, keys=2))


def levels_markdown(rows: Sequence[Row], names: Sequence[str], text: Show) -> str:
    """The same as Markdown; empty where no row is of a nest."""
    lines = level_lines(rows, names, text)
    if not lines:
        return ""
    heads = [label.replace("\n", " ") for label in labels()]
    found = [f"**{TITLE}**", "", "| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    return "\n".join([*found, *("| " + " | ".join([literal(line[0]), *line[1:]]) + " |" for line in lines)]) + "\n"


def labels() -> list[str]:
    """The heads of the columns; the first one, of the cells' names, is empty."""
    return ["", "level", *(label for label, _ in COLUMNS)]
