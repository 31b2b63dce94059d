"""Rows on stdout, as tables for readers and in the formats of programs; light, for commands that answer at once.

Must not know what a row is about.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import typer

from specbench.results.writing import write_rows
from specbench.show import markdown
from specbench.wording import clean, literal

Format = Literal["table", "csv", "json", "jsonl", "md"]
Records = Sequence[Mapping[str, Any]]
PIPED = 160  # columns where stdout is no terminal: few names and sentences are folded


def print_records(rows: Records, tables: Mapping[str, Records], output: Format) -> None:
    """Print the rows for programs, or the tables, which have titles, for readers."""
    if print_data(rows, output):
        return
    for title, some in tables.items():
        (print_markdown if output == "md" else print_table)(title, some)


def print_data(rows: Records, output: Format) -> bool:
    """Print the rows as csv, json or jsonl; false where `output` is for readers, which is left to the caller."""
    if output == "csv":
        write_rows(sys.stdout, rows)
    elif output == "json":
        typer.echo(json.dumps(rows, indent=2))
    elif output == "jsonl":
        typer.echo("\n".join(map(json.dumps, rows)))
    return output in ("csv", "json", "jsonl")


def text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else clean(value, 200)


def print_table(title: str, rows: Records) -> None:
    """One line per row, or a block where the terminal is too narrow for it."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from specbench.show.fitting import Fitted, draw, screen

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for name, value in rows[0].items():
        right = isinstance(value, int | float)
        label = name.replace("_", " ")
        table.add_column(label, justify="right" if right else "left", overflow="ellipsis" if right else "fold")
    for row in rows:
        table.add_row(*(Text(text(value)) for value in row.values()))
    draw(screen(PIPED), Fitted(table, records=True))


def print_numbers(
    title: str, header: Sequence[str], rows: Sequence[Sequence[str]], best: int = -1, keys: int = 1, together: int = 1
) -> None:
    """A table of numbers, the best row in bold; `keys` and `together` say where it may be taken apart: see `Fitted`."""
    from rich import box
    from rich.table import Column, Table
    from rich.text import Text

    from specbench.show.fitting import Fitted, draw, screen

    columns = [Column(name, justify="right") for name in header]
    table = Table(*columns, title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for number, row in enumerate(rows):
        table.add_row(*map(Text, row), style="bold" if number == best else None)
    draw(screen(PIPED), Fitted(table, keys, together))


def print_markdown(title: str, rows: Records) -> None:
    lines = [[literal(text(value)) for value in row.values()] for row in rows]
    found = [f"**{literal(title)}**", "", *markdown.table(list(rows[0]), lines, "l" * len(rows[0]))]
    typer.echo("\n".join(found) + "\n")
