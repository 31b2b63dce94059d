"""Throughput against batch size: one table for cells that differ in their batch and their lookahead alone.

Knows rows of results.csv; must not know how they were measured.
"""

from collections.abc import Callable, Sequence

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from specbench.results.cells import MEASURED
from specbench.show.fitting import Fitted
from specbench.show.sweep_table import IDENTITY, caveats, heading, lookahead
from specbench.wording import Row, grouped, literal

Show = Callable[[Row, str], str]
TITLE = "throughput by batch"
COLUMNS = (
    ("batch", "batch"), ("K", "k"), ("baseline\ntokens/s", "baseline_tokens_per_second"),
    ("method\ntokens/s", "tokens_per_second"), ("speedup", "speedup"), ("95 % interval", "speedup_interval"),
    ("break-even\nbatch", "break_even_batch"), ("rows\nidle", "rows_idle"),
)  # fmt: skip


def by_batch(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of every series that has several batches, by lookahead and then by batch."""
    same = [name for name in IDENTITY if name != "batch"]
    groups = grouped(rows, lambda row: tuple(row.get(name) for name in same))
    several = [group for group in groups if len({row.get("batch") for row in group}) > 1]
    return [sorted(group, key=lambda row: (row["k"], lookahead(row), row["batch"])) for group in several]


def batch_table(rows: Sequence[Row], text: Show) -> Group:
    """One line per cell of a series of `by_batch`; `text` shows a number of a row."""
    table = Table(box=box.SIMPLE, pad_edge=False, collapse_padding=True)
    for label, _ in COLUMNS:
        table.add_column(label, justify="right")
    for row in rows:
        table.add_row(*map(Text, line(row, text)))
    return Group(Text(f"{TITLE} · {heading(rows)}", style="bold"), *map(Text, caveats(rows)), Fitted(table, keys=2))


def line(row: Row, text: Show) -> list[str]:
    """A row as the table shows it; how it ended where it has no numbers."""
    names = [str(row["batch"]), lookahead(row)]
    if row["status"] not in MEASURED:
        return [*names, str(row["status"]), *["–"] * (len(COLUMNS) - 3)]
    return [*names, *(text(row, column) for _, column in COLUMNS[2:])]


def batch_markdown(rows: Sequence[Row], text: Show) -> str:
    """The same as Markdown."""
    labels = [label.replace("\n", " ") for label, _ in COLUMNS]
    lines = [f"**{TITLE} · {literal(heading(rows).strip())}**", ""]
    lines += [part for caveat in caveats(rows) for part in (literal(caveat), "")]
    lines += ["| " + " | ".join(labels) + " |", "|" + "---:|" * len(labels)]
    lines += ["| " + " | ".join(line(row, text)) + " |" for row in rows]
    return "\n".join(lines) + "\n"
