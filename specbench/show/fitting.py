"""Fitting tables to a screen: one line per row if there is room, else in parts or blocks below each other.

Nothing is ever truncated: a truncated number is wrong. A column with `overflow="fold"` holds text, which may
be folded at its words; any other holds numbers, which may not, and only its heading is broken. If stdout is
not a terminal, tables are never split.
"""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text, TextType

PIPED = 110  # columns if stdout is not a terminal
FOLDED = 16  # characters of a text line next to numbers; shorter ones would make too many lines
READ = 24  # the same for text that is the main content
NAME = 8  # the row key is folded no further, unless the numbers need the room
ENDLESS = 100_000
COMMAND = re.compile(": (specbench|hf|pip) ")  # matches a line that ends with a command to copy


def screen(piped: int = PIPED) -> Console:
    """Stdout, as wide as the terminal or `piped` columns; markup in printed text is not interpreted."""
    return Console(width=None if sys.stdout.isatty() else piped, markup=False, highlight=False)


def draw(console: Console, what: RenderableType) -> None:
    """Print tables; into a pipe they may be wider than its text lines."""
    console.print(what, crop=False)


def sentence(console: Console, text: str, style: str = "") -> None:
    """Print a sentence, wrapped at words on a terminal, under its indent if it has one, else as one line.

    Commands, and single names longer than a line, are folded by the terminal, so that they are copied whole.
    """
    label, _, name = text.partition(": ")
    alone = " " not in label + name and cell_len(name) > console.width
    whole = alone or bool(COMMAND.search(text)) or not console.is_terminal
    indent = 0 if whole else len(text) - len(text.lstrip())
    console.print(
        Padding(Text(text[indent:], style), (0, 0, 0, indent)) if indent else Text(text, style), soft_wrap=whole
    )


@dataclass(frozen=True)
class ColumnWidths:
    """The widths of a column.

    natural: its content on one line; least: the smallest readable; whole: below it words or numbers break; worst: below
    it numbers break, or names become unrecognisable; text: whether it holds text rather than numbers.
    """

    natural: int
    least: int
    whole: int
    worst: int
    text: bool


@dataclass(frozen=True)
class Fitted:
    """A table that is shown completely on any screen.

    If it is too wide, its columns are split into several tables below each other: each repeats the first
    `keys` columns, which name the row, and columns stay `together` in groups of this size. `records` with a
    long text, which are looked up one at a time, instead become blocks of labelled lines.
    """

    table: Table
    keys: int = 1
    together: int = 1
    records: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        made = copy(self.table)
        made.columns = [replace(column, header=joined(column.header)) for column in self.table.columns]
        drawn = (part(self.table, [0] * n, [1] * n, None) for n in (1, 2))
        one, two = (Measurement.get(console, options.update_width(ENDLESS), some).maximum for some in drawn)

        def around(columns: int) -> int:
            """The width of borders and padding."""
            return one - 1 + (two - one - 1) * (columns - 1)

        whole = replace(self, table=made)
        natural = around(len(self.table.columns)) + sum(s.natural for s in whole.spans(console, options))
        yield from (whole if natural <= options.max_width else self).fitted(around, console, options)

    def spans(self, console: Console, options: ConsoleOptions) -> list[ColumnWidths]:
        easy = READ if self.records else FOLDED
        return [widths_of(column, n < self.keys, easy, console, options) for n, column in enumerate(self.table.columns)]

    def fitted(self, around: Callable[[int], int], console: Console, options: ConsoleOptions) -> RenderResult:
        """The table, its parts, or its rows as blocks."""
        spans = self.spans(console, options)
        needed = around(len(spans)) + sum(span.least for span in spans)
        wide = options.max_width if console.is_terminal else max(options.max_width, needed)
        if self.records and needed > wide and any(span.natural > wide // 2 for span in spans[self.keys :]):
            yield from blocks(self.table)
            return
        if needed > wide:  # names get two thirds of the width, so that more than one number fits next to a long one
            least = squeezed(spans[: self.keys], 2 * wide // 3)
            keys = [replace(span, least=width) for span, width in zip(spans, least, strict=False)]
            spans = [*keys, *spans[self.keys :]]
        for number, columns in enumerate(self.balanced(spans, around, wide)):
            widths = allotted([spans[i] for i in columns], wide - around(len(columns)))
            drawn = part(self.table, columns, widths, None if number else self.table.title)
            yield from console.render(drawn, options.update_width(wide))

    def balanced(self, spans: Sequence[ColumnWidths], around: Callable[[int], int], wide: int) -> list[list[int]]:
        """The columns of the fewest possible parts, with about equal widths."""
        fewest = len(self.split(spans, around, wide))
        tried = (self.split(spans, around, width) for width in range(1, wide + 1))
        return next(found for found in tried if len(found) == fewest)

    def split(self, spans: Sequence[ColumnWidths], around: Callable[[int], int], wide: int) -> list[list[int]]:
        """The columns of every part: the keys, then as many groups as fit, and at least one."""
        keys, found = [*range(self.keys)], list[list[int]]()
        for start in range(self.keys, len(spans), self.together):
            group = [*range(start, min(start + self.together, len(spans)))]
            both = [*found[-1], *group] if found else []
            if both and around(len(both)) + sum(spans[i].least for i in both) <= wide:
                found[-1] = both
            else:
                found.append([*keys, *group])
        return found or [keys]


def joined(header: RenderableType) -> RenderableType:
    """A heading without line breaks inside words; plain text stays plain, as its brackets are not markup."""
    if isinstance(header, Text):
        return Text(header.plain.replace("-\n", ""), header.style)
    return header.replace("-\n", "") if isinstance(header, str) else header


def widths_of(column: Column, key: bool, easy: int, console: Console, options: ConsoleOptions) -> ColumnWidths:
    """The widths of a column; a text line is easy to read from `easy` characters on."""
    endless, most = options.update_width(ENDLESS), options.max_width // 2
    head, *cells = (Measurement.get(console, endless, one) for one in (column.header, *column.cells))
    body = max((cell.maximum for cell in cells), default=0)
    natural, word = max(head.maximum, body), max(one.minimum for one in (head, *cells))
    if column.overflow == "fold":
        sentences = any(cell.maximum > cell.minimum for cell in cells)
        word = min(word, easy if sentences else most)  # an address in a sentence may break, a name may not
        return ColumnWidths(natural, max(word, min(natural, easy)), word, min(word, NAME), text=True)
    least = max(min(head.minimum, most), body)
    return ColumnWidths(natural, least, word if key else body, min(word, NAME) if key else body, text=False)


def allotted(spans: Sequence[ColumnWidths], room: int) -> list[int]:
    """The widths of adjacent columns: headings on one line if they fit, then equal room for texts."""
    widths = squeezed(spans, room)
    for text in (False, True):
        growing = [i for i, span in enumerate(spans) if span.text == text]
        while sum(widths) < room and (growing := [i for i in growing if widths[i] < spans[i].natural]):
            widths[min(growing, key=widths.__getitem__)] += 1
    return widths


def squeezed(spans: Sequence[ColumnWidths], room: int) -> list[int]:
    """Shrink widths to the room, widest first: texts, then names, and numbers only as a last resort."""
    found = [span.least for span in spans]
    for bounds in ([span.whole for span in spans], [span.worst for span in spans], [1] * len(found)):
        while sum(found) > room and (wide := [i for i, width in enumerate(found) if width > bounds[i]]):
            found[max(wide, key=found.__getitem__)] -= 1
    return found


def part(table: Table, columns: Sequence[int], widths: Sequence[int], title: TextType | None) -> Table:
    made, chosen = copy(table), [table.columns[index] for index in columns]
    made.columns, made.rows, made.title = [], [], title
    for old, width in zip(chosen, widths, strict=True):
        made.add_column(old.header, justify=old.justify, style=old.style, width=width, overflow="fold")
    for row, *cells in zip(table.rows, *(old.cells for old in chosen), strict=True):
        made.add_row(*cells, style=row.style)
    return made


def blocks(table: Table) -> Iterator[RenderableType]:
    """Every row as its name, followed by a line for each non-empty cell."""
    yield Text(f"{table.title}\n", style="table.title")
    labels = [str(column.header) for column in table.columns[1:]]
    for name, *cells in zip(*(column.cells for column in table.columns), strict=True):
        lines = Table.grid(Column(style="dim", width=max(map(len, labels))), Column(overflow="fold"), padding=(0, 2))
        for label, cell in zip(labels, cells, strict=True):
            if str(cell):
                lines.add_row(label, cell)
        yield from (Text(str(name), style="bold"), Padding(lines, (0, 0, 0, 2), expand=False), Text())
