"""How a sweep looks: one table per series of cells that differ in their lookahead, and which lookahead is best.

Knows rows of results.csv; must not know how they were measured.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from specbench.judge.verdict import SYNTHETIC
from specbench.results.cells import MEASURED
from specbench.settings import declared, part
from specbench.show.fitting import Fitted
from specbench.spec import RunSpec
from specbench.wording import Row, clean, grouped, literal

IDENTITY = tuple(setting.name for setting in part("identity", RunSpec))
LOOKAHEAD = tuple(name for name in declared(RunSpec) if name not in IDENTITY)
NEAR = 0.01
ACCEPTANCE = Text("acceptance by position", style="bold")
COLUMNS = (
    ("speedup", "speedup"), ("95 % interval", "speedup_interval"), ("predicted", "speedup_predicted"),
    ("calibrated", "speedup_calibrated"), ("tokens\n/ round", "tokens_per_round"), ("alpha", "alpha"), ("c", "c"),
    ("v", "v"), ("overhead", "overhead"),
)  # fmt: skip


def series(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows that differ in their lookahead alone together."""
    return grouped(rows, lambda row: tuple(row.get(name) for name in IDENTITY))


def lookahead(row: Row) -> str:
    """A cell's lookahead as a table names it: its K, or how K is chosen and its ceiling."""
    schedule = row.get("schedule") or "constant"
    if schedule == "confidence":
        schedule += f" {row.get('confidence')}"
    return str(row["k"]) if schedule == "constant" else f"{schedule} ≤ {row['k']}"


@dataclass(frozen=True)
class Best:
    """The best lookahead of a series by one measure, and those within 1 % of it. K = 0 is decoding without a draft."""

    name: str
    value: float
    near: tuple[str, ...]


def best(rows: Sequence[Row], column: str) -> Best | None:
    """The best lookahead by `column`; None if no row has that number. Where nothing exceeds 1, no draft is best."""
    found = {lookahead(row): row[column] for row in rows if row["status"] in MEASURED and is_number(row.get(column))}
    if not found:
        return None
    found.setdefault("0", 1.0)
    top = max(found, key=lambda name: found[name])
    return Best(top, found[top], tuple(name for name in found if found[name] >= (1 - NEAR) * found[top]))


def conclusions(rows: Sequence[Row]) -> list[str]:
    """What a sweep says about K: measured, and by both predictions."""
    lines = []
    for label, suffix in (("measured", ""), ("calibrated", "_calibrated"), ("formula", "_predicted")):
        found = best(rows, f"speedup{suffix}")
        if found is not None:
            near = ", ".join(found.near)
            lines.append(f"best K, {label}: {found.name} ({found.value:.3f}×); within 1 %: {near}")
    return lines


def heading(rows: Sequence[Row]) -> str:
    """The data set of a series, and the settings that are not the usual ones."""
    first = rows[0]
    parts = [str(first["dataset"]), f"{first['target']} ← {first['draft'] or 'no draft'}", str(first["method"])]
    parts += [f"temperature {first['temperature']}", f"{first.get('dtype_resolved') or first['dtype']}"]
    prompts = {row["prompts"] for row in rows if row.get("prompts")}
    parts += [f"{'/'.join(map(str, sorted(prompts)))} prompts"] if prompts else []
    return clean(" · ".join(parts), 300)


def scale_model(rows: Sequence[Row]) -> str | None:
    """The line that every table of scale models carries; None where all models are what they are called."""
    called = list(dict.fromkeys(str(row["scale_model"]) for row in rows if row.get("scale_model")))
    if not called:
        return None
    what = "the function of the small model at the cost of the shape; acceptance is the small pair's"
    return clean(f"scale model: {'; '.join(called)}: {what}", 600)


def synthetic(rows: Sequence[Row]) -> str | None:
    """The line that every table with synthetic acceptance carries; None where all acceptance is the pair's own."""
    rates = list(dict.fromkeys(str(row["acceptance"]) for row in rows if row.get("acceptance")))
    return clean(f"synthetic acceptance {'; '.join(rates)}: {SYNTHETIC}", 600) if rates else None


def caveats(rows: Sequence[Row]) -> list[str]:
    """What stands above the numbers of rows that are not what they seem to be."""
    return [line for line in (scale_model(rows), synthetic(rows)) if line]


def is_number(value: Any) -> bool:
    """A finite number: not what a clock without phases or a failed cell leaves."""
    return isinstance(value, int | float) and math.isfinite(value)


def positions(rows: Sequence[Row]) -> int:
    """How many positions any row of the series has."""
    count = 0
    while any(is_number(row.get(f"acceptance_at_{count + 1}")) for row in rows):
        count += 1
    return count


def sweep_table(rows: Sequence[Row], text: Any) -> Group:
    """One line per lookahead; below it the best ones and the acceptance by position. `text` shows a number of a row."""
    table = Table(box=box.SIMPLE, pad_edge=False, collapse_padding=True)
    table.add_column("K", justify="right")
    for label, _ in COLUMNS:
        table.add_column(label, justify="right")
    winner = best(rows, "speedup")
    for row in rows:
        failed = row["status"] not in MEASURED
        cells = [row["status"]] + ["–"] * (len(COLUMNS) - 1) if failed else [text(row, column) for _, column in COLUMNS]
        style = "bold" if winner is not None and lookahead(row) == winner.name else ""
        table.add_row(Text(lookahead(row)), *map(Text, cells), style=style)
    found = [Text(line) for line in conclusions(rows)]
    headings = [Text(heading(rows), style="bold"), *map(Text, caveats(rows))]
    return Group(*headings, Fitted(table), *found, Text(), ACCEPTANCE, acceptance_table(rows, text))


def acceptance_table(rows: Sequence[Row], text: Any) -> Fitted:
    """Acceptance at every position, given that all before it were accepted; one line per lookahead."""
    count = positions(rows)
    table = Table(box=box.SIMPLE, pad_edge=False, collapse_padding=True)
    table.add_column("K", justify="right")
    for position in range(1, count + 1):
        table.add_column(str(position), justify="right")
    for row in rows:
        table.add_row(lookahead(row), *(text(row, f"acceptance_at_{p}") for p in range(1, count + 1)))
    return Fitted(table)


def sweep_markdown(rows: Sequence[Row], text: Any) -> str:
    """The same as Markdown."""
    labels = ["K", *(label.replace("\n", " ") for label, _ in COLUMNS)]
    lines = [f"**{literal(heading(rows).strip())}**", ""]
    lines += [line for caveat in caveats(rows) for line in (literal(caveat), "")]
    lines += ["| " + " | ".join(labels) + " |", "|" + "---:|" * len(labels)]
    for row in rows:
        cells = [text(row, column) for _, column in COLUMNS]
        lines.append(f"| {lookahead(row)} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *(f"- {line}" for line in conclusions(rows))]) + "\n"
