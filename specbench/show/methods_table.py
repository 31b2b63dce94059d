"""Methods beside each other: one table for cells that differ in their method alone, one line per method.

Knows rows of results.csv; must not know how they were measured. Of a nest, α and c stand level by level.
"""

from collections.abc import Callable, Sequence

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from specbench.results.cells import MEASURED
from specbench.show.fitting import Fitted
from specbench.show.levels_table import depth
from specbench.show.sweep_table import IDENTITY, LOOKAHEAD, caveats, is_number, lookahead
from specbench.wording import Row, clean, grouped, literal

Show = Callable[[Row, str], str]
FEW = 4  # so many cells stand side by side, with more numbers of each
LEVELS = ("alpha", "c")  # shown for every level of a nest
COLUMNS = (
    ("tokens\n/ round", "tokens_per_round"), ("alpha", "alpha"), ("c", "c"), ("v", "v"), ("speedup", "speedup"),
    ("95 % interval", "speedup_interval"), ("pre-\ndicted", "speedup_predicted"),
    ("cali-\nbrated", "speedup_calibrated"),
)  # fmt: skip
DISTANCE = ("lossy\nby", "law_distance")
LEGEND = "alpha and c of a nest: level/level inside"
LOSSY = "lossy by: how far the law of an emitted token is from the target's"


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


def name_of(row: Row) -> str:
    return clean(str(row["method"]), 200)


def columns(rows: Sequence[Row]) -> tuple[tuple[str, str], ...]:
    """Labels and columns of a table: with the distance from the target's law where a method is lossy."""
    return (*COLUMNS, DISTANCE) if any(map(lossy, rows)) else COLUMNS


def lossy(row: Row) -> bool:
    return row.get("lossless") == "lossy"


def line(row: Row, names: Sequence[str], text: Show) -> list[str]:
    """The numbers of a method as `text` shows them; how it ended where it has none."""
    if row["status"] not in MEASURED:
        return [str(row["status"]), *["–"] * (len(names) - 1)]
    return [of_column(row, name, text) for name in names]


def of_column(row: Row, name: str, text: Show) -> str:
    """A number; of a nest α and c level by level; no distance of a method that is not lossy."""
    if name == "law_distance" and not lossy(row):
        return ""
    inside = [f"{name}_{level}" for level in range(2, depth(row) + 1)] if name in LEVELS else []
    return "/".join([text(row, name), *(text(row, other) for other in inside if is_number(row.get(other)))])


def legends(rows: Sequence[Row]) -> str:
    return "; ".join([LEGEND] * any(depth(row) > 1 for row in rows) + [LOSSY] * any(map(lossy, rows)))


def methods_table(rows: Sequence[Row], text: Show) -> Group:
    """One line per method of a group of `by_method`; the fastest lossless one is bold."""
    table = Table(box=box.SIMPLE, pad_edge=False, collapse_padding=True)
    table.add_column("method")
    for label, _ in columns(rows):
        table.add_column(label, justify="right")
    right = [row for row in rows if is_number(row.get("speedup")) and not lossy(row)]
    fastest = max(right, key=lambda row: float(row["speedup"]), default=None)
    for row in rows:
        cells = [name_of(row), *line(row, [name for _, name in columns(rows)], text)]
        table.add_row(*map(Text, cells), style="bold" if row is fastest else "")
    below = [Text(legends(rows))] if legends(rows) else []
    return Group(Text(title(rows), style="bold"), *map(Text, caveats(rows)), Fitted(table), *below)


def methods_markdown(rows: Sequence[Row], text: Show) -> str:
    """The same as Markdown."""
    labels = [label.replace("-\n", "").replace("\n", " ") for label, _ in columns(rows)]
    lines = [f"**{literal(title(rows).strip())}**", ""]
    lines += [part for caveat in caveats(rows) for part in (literal(caveat), "")]
    lines += ["| method | " + " | ".join(labels) + " |", "|---|" + "---:|" * len(labels)]
    for row in rows:
        cells = [literal(name_of(row)), *line(row, [name for _, name in columns(rows)], text)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, *(["", legends(rows)] if legends(rows) else [])]) + "\n"
