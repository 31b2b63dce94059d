"""Methods beside each other: one line per method, for cells that differ in their method alone.

Knows rows of results.csv; must not know how they were measured. For a nest, α and c are shown level by level.
"""

from collections.abc import Sequence

from specbench.results.cells import MEASURED
from specbench.show.cell_text import NOTHING, cell_text, is_number, lookahead, method_name
from specbench.show.headings import caveats, heading
from specbench.show.levels_table import depth
from specbench.show.number_table import NumberTable
from specbench.wording import Row

BY_LEVEL = ("alpha", "c")  # shown for every level of a nest
COLUMNS = (
    ("tokens\n/ round", "tokens_per_round"), ("alpha", "alpha"), ("c", "c"), ("v", "v"), ("speedup", "speedup"),
    ("95 % interval", "speedup_interval"), ("pre-\ndicted", "speedup_predicted"),
    ("cali-\nbrated", "speedup_calibrated"),
)  # fmt: skip
DISTANCE = ("lossy\nby", "law_distance")
OF_NESTS = "alpha and c of a nest: level/level inside"
OF_LOSSY = "lossy by: how far the distribution of an emitted token is from the target's"


def methods_table(rows: Sequence[Row]) -> NumberTable:
    """The methods of a group, the fastest lossless one in bold."""
    labels, names = zip(*columns(rows), strict=True)
    return NumberTable(
        title=heading(rows, f"K {lookahead(rows[0])}"),
        header=("method", *labels),
        lines=[[method_name(row), *method_cells(row, names)] for row in rows],
        left=1,
        above=caveats(rows),
        legend="; ".join([OF_NESTS] * any(depth(row) > 1 for row in rows) + [OF_LOSSY] * any(map(is_lossy, rows))),
        bold_lines=frozenset() if (best := fastest(rows)) is None else frozenset({best}),
    )


def columns(rows: Sequence[Row]) -> tuple[tuple[str, str], ...]:
    """Labels and columns of a table: with the distance from the target's distribution where a method is lossy."""
    return (*COLUMNS, DISTANCE) if any(map(is_lossy, rows)) else COLUMNS


def is_lossy(row: Row) -> bool:
    return row.get("lossless") == "lossy"


def fastest(rows: Sequence[Row]) -> int | None:
    """The index of the fastest method that is not lossy."""
    found = [i for i, row in enumerate(rows) if is_number(row.get("speedup")) and not is_lossy(row)]
    return max(found, key=lambda i: float(rows[i]["speedup"]), default=None)


def method_cells(row: Row, names: Sequence[str]) -> list[str]:
    """The numbers of a method; how it ended where it has none."""
    if row["status"] not in MEASURED:
        return [str(row["status"]), *[NOTHING] * (len(names) - 1)]
    return [method_cell(row, name) for name in names]


def method_cell(row: Row, name: str) -> str:
    """A number; for a nest α and c level by level; no distance for a method that is not lossy."""
    if name == "law_distance" and not is_lossy(row):
        return ""
    inside = [f"{name}_{level}" for level in range(2, depth(row) + 1)] if name in BY_LEVEL else []
    return "/".join([cell_text(row, name), *(cell_text(row, other) for other in inside if is_number(row.get(other)))])
