"""Cells side by side: one column per cell, one line per number, on a terminal and as Markdown.

Knows rows of results.csv; must not know which other tables a run has.
"""

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from specbench.show import markdown
from specbench.show.cell_text import cell_text, one_line, short_dataset
from specbench.show.fitting import Fitted
from specbench.show.headings import caveats, shared_settings, varying
from specbench.show.table_lines import lines_of
from specbench.wording import Row, literal


def run_table(rows: Sequence[Row]) -> Group:
    """For a terminal: what all cells share above the table, the settings that vary above their columns."""
    differing = varying(rows)
    table = Table()
    table.add_column("")
    for row in rows:
        heading = [short_dataset(row["dataset"]), *(f"{setting} {row.get(setting)}" for setting in differing)]
        table.add_column(Text("\n".join(map(one_line, heading))), justify="right")
    table.add_column("", style="dim", overflow="fold")
    for label, column, meaning in lines_of(rows):
        numbers = (Text(one_line(cell_text(row, column))) for row in rows)
        table.add_row(Text(label), *numbers, Text(meaning), style="bold" if column == "speedup" else "")
    headings = [shared_settings(rows, differing), *caveats(rows)]
    return Group(*(Text(one_line(line)) for line in headings), Fitted(table))


def run_markdown(rows: Sequence[Row]) -> str:
    """As Markdown, without the meanings."""
    header = ["", *(literal(one_line(short_dataset(row["dataset"]))) for row in rows)]
    lines = [[label.strip(), *(cell_text(row, column) for row in rows)] for label, column, _ in lines_of(rows)]
    above = markdown.paragraphs(list(map(literal, caveats(rows))))
    return "\n".join([*above, *markdown.table(header, lines, "l" + "r" * len(rows))]) + "\n"
