"""A sweep over the lookahead as a table, the best lookahead by every measure, and acceptance by position.

Knows rows of results.csv; must not know how they were measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.results.cells import MEASURED
from specbench.show.cell_text import NOTHING, cell_text, is_number, lookahead
from specbench.show.headings import caveats, heading
from specbench.show.number_table import NumberTable
from specbench.wording import Row

NEAR = 0.01
COLUMNS = (
    ("speedup", "speedup"), ("95 % interval", "speedup_interval"), ("predicted", "speedup_predicted"),
    ("calibrated", "speedup_calibrated"), ("tokens\n/ round", "tokens_per_round"), ("alpha", "alpha"), ("c", "c"),
    ("v", "v"), ("overhead", "overhead"),
)  # fmt: skip


@dataclass(frozen=True)
class Best:
    """The best lookahead of a series by one measure, and those within 1 % of it. K = 0 is decoding without a draft."""

    name: str
    value: float
    near: tuple[str, ...]


def best(rows: Sequence[Row], column: str, above: float = 1.0) -> Best | None:
    """The best lookahead by `column`; None if no row has that number. Where nothing exceeds `above`, K = 0 is best."""
    found = {lookahead(row): row[column] for row in rows if row["status"] in MEASURED and is_number(row.get(column))}
    if not found:
        return None
    found.setdefault("0", above)
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


def sweep_table(rows: Sequence[Row]) -> NumberTable:
    """One line per lookahead of a series, the fastest in bold, and which lookahead is best."""
    winner = best(rows, "speedup")
    names = [lookahead(row) for row in rows]
    return NumberTable(
        title=heading(rows),
        header=("K", *(label for label, _ in COLUMNS)),
        lines=[[name, *sweep_cells(row)] for name, row in zip(names, rows, strict=True)],
        above=caveats(rows),
        findings=conclusions(rows),
        bold_lines=frozenset(n for n, name in enumerate(names) if winner is not None and winner.name == name),
    )


def sweep_cells(row: Row) -> list[str]:
    """The numbers of a cell; how it ended where it has none."""
    if row["status"] not in MEASURED:
        return [str(row["status"])] + [NOTHING] * (len(COLUMNS) - 1)
    return [cell_text(row, column) for _, column in COLUMNS]


def acceptance_table(rows: Sequence[Row]) -> NumberTable:
    """Acceptance at every position, given that all before it were accepted; one line per lookahead."""
    columns = [f"acceptance_at_{position}" for position in range(1, positions(rows) + 1)]
    return NumberTable(
        title="acceptance by position",
        header=("K", *(column.removeprefix("acceptance_at_") for column in columns)),
        lines=[[lookahead(row), *(cell_text(row, column) for column in columns)] for row in rows],
    )


def positions(rows: Sequence[Row]) -> int:
    """How many positions any row of the series has."""
    count = 0
    while any(is_number(row.get(f"acceptance_at_{count + 1}")) for row in rows):
        count += 1
    return count
