"""Throughput against batch size, for cells that differ in their batch and their lookahead alone.

Knows rows of results.csv; must not know how they were measured.
"""

from collections.abc import Sequence

from specbench.results.cells import MEASURED
from specbench.show.cell_text import NOTHING, cell_text, lookahead
from specbench.show.headings import caveats, heading
from specbench.show.number_table import NumberTable
from specbench.wording import Row

COLUMNS = (
    ("batch", "batch"), ("K", "k"), ("baseline\ntokens/s", "baseline_tokens_per_second"),
    ("method\ntokens/s", "tokens_per_second"), ("speedup", "speedup"), ("95 % interval", "speedup_interval"),
    ("pays no more\nfrom batch", "break_even_batch"), ("rows\nidle", "rows_idle"),
)  # fmt: skip


def batch_table(rows: Sequence[Row]) -> NumberTable:
    """One line per cell of a series over several batches."""
    return NumberTable(
        title=f"throughput by batch · {heading(rows)}",
        header=[label for label, _ in COLUMNS],
        lines=list(map(batch_cells, rows)),
        keys=2,
        above=caveats(rows),
    )


def batch_cells(row: Row) -> list[str]:
    """A row as the table shows it; how it ended where it has no numbers."""
    names = [str(row["batch"]), lookahead(row)]
    if row["status"] not in MEASURED:
        return [*names, str(row["status"]), *[NOTHING] * (len(COLUMNS) - 3)]
    return [*names, *(cell_text(row, column) for _, column in COLUMNS[2:])]
