"""A titled table of numbers, one line per cell or level, on a terminal and as Markdown.

Knows rich and Markdown; must not know what the numbers mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

from specbench.show import markdown
from specbench.show.fitting import Fitted
from specbench.wording import literal


@dataclass(frozen=True)
class NumberTable:
    """The texts of a table. The first `left` columns are set to the left, all others to the right.

    header: labels, which a terminal may break where they have a line break. above: caveats between title and table;
    findings: sentences on what follows from it, a list in Markdown; legend: one on what its columns mean. keys: the
    leading columns that name a line, see `Fitted`. bold_lines, bold_columns: which are bold.
    """

    title: str
    header: Sequence[str]
    lines: Sequence[Sequence[str]]
    left: int = 0
    keys: int = 1
    above: Sequence[str] = ()
    findings: Sequence[str] = ()
    legend: str = ""
    bold_lines: frozenset[int] = frozenset()
    bold_columns: frozenset[int] = frozenset()

    def drawn(self) -> Group:
        """For a terminal."""
        columns = (self._column(number, label) for number, label in enumerate(self.header))
        table = Table(*columns, box=box.SIMPLE, pad_edge=False, collapse_padding=True)
        for number, line in enumerate(self.lines):
            table.add_row(*map(Text, line), style="bold" if number in self.bold_lines else "")
        below = [*self.findings, *([self.legend] if self.legend else [])]
        title = Text(self.title, style="bold")
        return Group(title, *map(Text, self.above), Fitted(table, self.keys), *map(Text, below))

    def _column(self, number: int, label: str) -> Column:
        style = "bold" if number in self.bold_columns else ""
        return Column(Text(label), justify="left" if number < self.left else "right", style=style)

    def markdown(self) -> str:
        """The same as Markdown."""
        labels = [literal(unbroken(label)) for label in self.header]
        lines = [[*map(literal, line[: self.keys]), *line[self.keys :]] for line in self.lines]
        align = "l" * self.left + "r" * (len(labels) - self.left)
        found = markdown.paragraphs([f"**{literal(self.title.strip())}**", *map(literal, self.above)])
        found += markdown.table(labels, lines, align)
        found += ["", *(f"- {line}" for line in self.findings)] if self.findings else []
        found += ["", self.legend] if self.legend else []
        return "\n".join(found) + "\n"


def unbroken(label: str) -> str:
    """The label of a column on one line."""
    return label.replace("-\n", "").replace("\n", " ")
