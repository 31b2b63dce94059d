"""Methods beside each other: one table for cells that differ in their method alone, one line per method.

Knows rows of results.csv; must not know how they were measured. Of a nest, α and c stand level by level.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from specbench.bench.files import clean
from specbench.bench.levels_table import depth
from specbench.bench.plan import grouped
from specbench.bench.samples import MEASURED
from specbench.bench.sweep_table import IDENTITY, LOOKAHEAD, caveats, is_number, lookahead
from specbench.bench.wording import literal

Row = Mapping[str, Any]
Show = Callable[[Row, str], str]
FEW = 4  # so many cells stand side by side, with more numbers of each
LEVELS = ("alpha", "c")  # shown for every level of a nest
COLUMNS = (
    ("tokens\n/ round", "tokens_per_round"), ("alpha", "alpha"), ("c", "c"), ("v", "v"), ("speedup", "speedup"),
    ("95 % interval", "speedup_interval"), ("predicted", "speedup_predicted"), ("calibrated", "speedup_calibrated"),
    ("lossless", "lossless"),
)  # fmt: skip
LEGEND = (
    "alpha and c of a nest: level / level inside; lossy by: how far the law of an emitted token is from the target's"
)


def by_method(rows: Sequence[Row]) -> list[list[Row]]:
    """Groups of more than a few rows that differ in their method alone."""
    same = [name for name in (*IDENTITY, *LOOKAHEAD) if name != "method"]
    return [group for group in grouped(rows, lambda row: tuple(row.get(name) for name in same)) if len(group) > FEW]


def title(rows: Sequence[Row]) -> str:
    """What all methods of a group share."""
    first = rows[0]
    parts = [str(first["dataset"]), f"{first['target']} ← {first['draft'] or 'no draft'}", f"K {lookahead(first)}"]
    parts += [f"temperature {first['temperature']}", f"{first.get('dtype_resolved') or first['dtype']}"]
    prompts = {row["prompts"] for row in rows if row.get("prompts")}
    parts += [f"{'/'.join(map(str, sorted(prompts)))} prompts"] if prompts else []
    return clean(" · ".join(parts), 300)


def line(row: Row, text: Show) -> list[str]:
    """The numbers of a method as `text` shows them; how it ended where it has none."""
    if row["status"] not in MEASURED:
        return [str(row["status"]), *["–"] * (len(COLUMNS) - 1)]
    return [of_column(row, column, text) for _, column in COLUMNS]


def of_column(row: Row, column: str, text: Show) -> str:
    """A number; level by level of a nest, and with its distance from the target's law of a lossy method."""
    if column in LEVELS:
        return per_level(row, column, text)
    lossy = column == "lossless" and row.get(column) == "lossy" and is_number(row.get("law_distance"))
    return f"{text(row, column)} by {text(row, 'law_distance')}" if lossy else text(row, column)


def per_level(row: Row, column: str, text: Show) -> str:
    inside = [f"{column}_{level}" for level in range(2, depth(row) + 1)]
    return " / ".join([text(row, column), *(text(row, name) for name in inside if is_number(row.get(name)))])


def methods_table(rows: Sequence[Row], text: Show) -> Group:
    """One line per method of a group of `by_method`; the fastest lossless one is bold."""
    table = Table(box=box.SIMPLE, pad_edge=False, collapse_padding=True)
    table.add_column("method", no_wrap=True)
    for label, column in COLUMNS:
        table.add_column(label, justify="right", no_wrap=column in ("speedup_interval", *LEVELS))
    right = [row for row in rows if is_number(row.get("speedup")) and row.get("lossless") not in ("lossy", "MISMATCH")]
    fastest = max(right, key=lambda row: float(row["speedup"]), default=None)
    for row in rows:
        cells = [clean(str(row["method"]), 40), *line(row, text)]
        table.add_row(*map(Text, cells), style="bold" if row is fastest else "")
    return Group(Text(title(rows), style="bold"), *map(Text, caveats(rows)), table, Text(LEGEND))


def methods_markdown(rows: Sequence[Row], text: Show) -> str:
    """The same as Markdown."""
    lines = [f"**{literal(title(rows).strip())}**", ""]
    lines += [part for caveat in caveats(rows) for part in (literal(caveat), "")]
    lines += ["| method | " + " | ".join(label.replace("\n", " ") for label, _ in COLUMNS) + " |"]
    lines += ["|---|" + "---:|" * len(COLUMNS)]
    lines += ["| " + " | ".join([literal(clean(str(row["method"]), 40)), *line(row, text)]) + " |" for row in rows]
    return "\n".join([*lines, "", LEGEND]) + "\n"
