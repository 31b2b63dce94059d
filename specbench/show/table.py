"""Tables as data: `Table` holds the texts; one method draws it and one renders it as Markdown. Loads nothing heavy."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Group
from rich.table import Column
from rich.table import Table as RichTable
from rich.text import Text

from specbench.show.fitting import Fitted
from specbench.show.text import markdown_table, paragraphs
from specbench.wording import literal


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
        """The table as Markdown."""
        lines = [[*map(literal, line[: self.keys]), *line[self.keys :]] for line in self.lines]
        align = "l" * self.left + "r" * (len(self.header) - self.left)
        found = paragraphs([f"**{literal(self.title.strip())}**", *map(literal, self.above)])
        found += markdown_table(list(map(literal, self.labels())), lines, align)
        found += ["", *(f"- {line}" for line in self.findings)] if self.findings else []
        found += ["", self.legend] if self.legend else []
        return "\n".join(found) + "\n"

    def labels(self) -> list[str]:
        """The labels of the columns, each on one line."""
        return list(map(unbroken, self.header))


def unbroken(label: str) -> str:
    """The label of a column on one line."""
    return label.replace("-\n", "").replace("\n", " ")


def grid(
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
