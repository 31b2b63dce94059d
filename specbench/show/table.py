"""Tables as data: of results, of numbers, and of records. Each is drawn, or rendered as Markdown."""

import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import typer
from rich import box
from rich.console import Group
from rich.table import Column
from rich.table import Table as RichTable
from rich.text import Text

from specbench.results.named_runs import write_rows
from specbench.show.fitting import Fitted, draw, screen, sentence
from specbench.show.text import Format, markdown_table, paragraphs
from specbench.wording import clean, literal

Records = Sequence[Mapping[str, Any]]
PIPED = 160  # columns if stdout is not a terminal: few names and sentences are folded


@dataclass(frozen=True)
class Table:
    """The texts of a table. The first `left` columns are left-aligned, all others right-aligned.

    header: labels, which a terminal may break at their line breaks. above: caveats between title and table;
    findings: sentences with conclusions, a list in Markdown; legend: one that explains the columns. keys: the
    leading columns that name a line, see `Fitted`. bold_lines, bold_columns: indices of bold ones.
    """

    title: str
    header: Sequence[str]
    lines: Sequence[Sequence[str]]
    left: int = 0
    keys: int = 1
    above: Sequence[str] = ()
    findings: Sequence[str] = ()
    legend: str = ""
    bold_lines: Collection[int] = ()
    bold_columns: Collection[int] = ()

    def drawn(self) -> Group:
        """For a terminal."""
        columns = [
            Column(Text(label), justify="left" if n < self.left else "right", style="bold" * (n in self.bold_columns))
            for n, label in enumerate(self.header)
        ]
        table = RichTable(*columns, box=box.SIMPLE, pad_edge=False, collapse_padding=True)
        for number, line in enumerate(self.lines):
            table.add_row(*map(Text, line), style="bold" if number in self.bold_lines else "")
        below = [*self.findings, *([self.legend] if self.legend else [])]
        title = Text(self.title, style="bold")
        return Group(title, *map(Text, self.above), Fitted(table, self.keys), *map(Text, below))

    def markdown(self) -> str:
        lines = [[*map(literal, line[: self.keys]), *line[self.keys :]] for line in self.lines]
        align = "l" * self.left + "r" * (len(self.header) - self.left)
        found = paragraphs([f"**{literal(self.title.strip())}**", *map(literal, self.above)])
        found += markdown_table(list(map(literal, self.labels())), lines, align)
        found += ["", *(f"- {line}" for line in self.findings)] if self.findings else []
        found += ["", self.legend] if self.legend else []
        return "\n".join(found) + "\n"

    def labels(self) -> list[str]:
        return list(map(unbroken, self.header))


def unbroken(label: str) -> str:
    """The label of a column on one line."""
    return label.replace("-\n", "").replace("\n", " ")


def framed(
    header: Sequence[str],
    lines: Sequence[Sequence[str]],
    left: Collection[int] = (0,),
    fold: Collection[int] = (),
    styles: Sequence[str] = (),
    keys: int = 1,
) -> Fitted:
    """A table in a frame; the columns in `left` are left-aligned, those in `fold` hold text that may be folded."""
    table = RichTable()
    for number, name in enumerate(header):
        justify, overflow = "left" if number in left else "right", "fold" if number in fold else "ellipsis"
        table.add_column(Text(name), justify=justify, overflow=overflow)  # type: ignore[arg-type]
    for number, line in enumerate(lines):
        table.add_row(*map(Text, line), style=styles[number] if styles else None)
    return Fitted(table, keys)


@dataclass(frozen=True)
class Numbers:
    """A text-only table of a prediction or a calibration. A row that ends in "best" is bold.

    keys: columns that name a row; together: columns that stay side by side, see `Fitted`.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    summary: str | None = None
    keys: int = 1
    together: int = 1

    def drawn(self) -> Fitted:
        """For a terminal."""
        columns = [Column(name, justify="right") for name in self.header]
        table = RichTable(*columns, title=self.title, title_justify="left", box=box.SIMPLE_HEAD)
        for row in self.rows:
            table.add_row(*map(Text, row), style="bold" if row[-1] == "best" else None)
        return Fitted(table, self.keys, self.together)

    def print(self) -> None:
        draw(screen(PIPED), self.drawn())
        if self.summary is not None:
            sentence(screen(), self.summary + "\n" * bool(self.summary))

    def markdown(self, escape: Callable[[str], str] = literal) -> str:
        lines = [list(map(escape, row)) for row in self.rows]
        body = "\n".join(markdown_table(self.header, lines, "r" * len(self.header)))
        return "\n\n".join(filter(None, (f"**{self.title}**", body, self.summary))) + "\n"


# --- records ----------------------------------------------------------------------------------------------------------


def print_records(rows: Records, tables: Mapping[str, Records], output: Format) -> None:
    """Print the rows for programs, or the tables, by their titles, for readers."""
    if print_data(rows, output):
        return
    for title, some in tables.items():
        (print_markdown if output == "md" else print_table)(title, some)


def print_data(rows: Records, output: Format) -> bool:
    """Print the rows as csv, json or jsonl; false for formats for readers, which the caller prints."""
    if output == "csv":
        write_rows(sys.stdout, rows)
    elif output == "json":
        typer.echo(json.dumps(rows, indent=2))
    elif output == "jsonl":
        typer.echo("\n".join(map(json.dumps, rows)))
    return output in ("csv", "json", "jsonl")


def print_table(title: str, rows: Records) -> None:
    """One line per row, or blocks if the terminal is too narrow."""
    table = RichTable(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for name, value in rows[0].items():
        right = isinstance(value, int | float)
        label = name.replace("_", " ")
        table.add_column(label, justify="right" if right else "left", overflow="ellipsis" if right else "fold")
    for row in rows:
        table.add_row(*(Text(record_text(value)) for value in row.values()))
    draw(screen(PIPED), Fitted(table, records=True))


def print_markdown(title: str, rows: Records) -> None:
    lines = [[literal(record_text(value)) for value in row.values()] for row in rows]
    found = [f"**{literal(title)}**", "", *markdown_table(list(rows[0]), lines, "l" * len(rows[0]))]
    typer.echo("\n".join(found) + "\n")


def record_text(value: object) -> str:
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else clean(value, 200)
