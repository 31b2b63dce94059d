"""A run as a notebook shows it: sentences, and a table of its cells.

Knows rows and verdicts; must not know runs. Names in them come from files and models, so all text is escaped.
"""

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from specbench.judge.verdict import Recommendation
from specbench.show.text import cell_text, lookahead, one_line
from specbench.show.verdict import sentences
from specbench.wording import Row, clean_path

COLUMNS = (
    ("method", "method"), ("data set", "dataset"), ("batch", "batch"), ("prompts", "prompts"),
    ("speedup", "speedup"), ("95 % interval", "speedup_interval"), ("predicted", "speedup_predicted"),
    ("calibrated", "speedup_calibrated"), ("alpha", "alpha"), ("tokens per round", "tokens_per_round"), ("c", "c"),
    ("v", "v"), ("lossless", "lossless"), ("status", "status"),
)  # fmt: skip


def page(verdicts: Sequence[Recommendation], rows: Sequence[Row], path: Path) -> Markup:
    """The sentences of every verdict, then a row for every cell; `path` is where all of it lies."""
    said = [paragraph(sentences(found)) for found in verdicts]
    where = Markup("<p>results: <code>{}</code></p>").format(clean_path(path))
    return Markup("").join([*said, table(rows), where])


def paragraph(lines: Sequence[str]) -> Markup:
    """The first line as a headline."""
    first, *rest = lines
    return Markup("<p><b>{}</b>{}</p>").format(first, Markup("").join(Markup("<br>{}").format(line) for line in rest))


def table(rows: Sequence[Row]) -> Markup:
    """All cells, each number as the terminal has it."""
    names = ("K", *(name for name, _ in COLUMNS))
    head = Markup("").join(Markup("<th>{}</th>").format(name) for name in names)
    body = Markup("").join(line(row) for row in rows)
    return Markup("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>").format(head, body)


def line(row: Row) -> Markup:
    """A cell."""
    texts = (lookahead(row), *(one_line(cell_text(row, column)) for _, column in COLUMNS))
    return Markup("<tr>{}</tr>").format(Markup("").join(Markup("<td>{}</td>").format(text) for text in texts))
