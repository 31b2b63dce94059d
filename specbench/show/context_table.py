"""Speedup by length of the prompts and lookahead, with the best lookahead of every length.

Knows rows of results.csv that differ in their context and their lookahead alone; must not know how they were measured.
"""

from collections.abc import Sequence

from specbench.results.cells import MEASURED
from specbench.show.cell_text import NOTHING, cell_text, lookahead
from specbench.show.headings import caveats, heading
from specbench.show.number_table import NumberTable
from specbench.show.sweep_table import best
from specbench.token_counts import said
from specbench.wording import Row, grouped

OF_BEST = (
    ("speedup", "speedup"), ("95 % interval", "speedup_interval"), ("alpha", "alpha"), ("c", "c"), ("v", "v"),
    ("baseline\ntokens/s", "baseline_tokens_per_second"),
)  # fmt: skip


def lookaheads(rows: Sequence[Row]) -> list[str]:
    """The lookaheads of a series, in its order."""
    return list(dict.fromkeys(lookahead(row) for row in sorted(rows, key=lambda row: row["k"])))


def labels(rows: Sequence[Row]) -> list[str]:
    """The labels of the columns: the length, the speedup of every lookahead, and what is said of the best."""
    return ["context", *(f"K {name}" for name in lookaheads(rows)), "best K", *(label for label, _ in OF_BEST)]


def context_lines(rows: Sequence[Row]) -> list[list[str]]:
    """One line per length."""
    names = lookaheads(rows)
    return [line(some, names) for some in grouped(rows, lambda row: row["context"])]


def line(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """The speedup of every lookahead at one length, and the numbers of the best: of the least slow where K = 0 is."""
    measured = {lookahead(row): row for row in rows if row["status"] in MEASURED}
    speedups = [cell_text(measured[name], "speedup") if name in measured else NOTHING for name in names]
    found, least = best(rows, "speedup"), best(rows, "speedup", above=0.0)
    row = measured[least.name] if least else None
    numbers = [cell_text(row, column) if row else NOTHING for _, column in OF_BEST]
    return [said(rows[0]["context"]), *speedups, found.name if found else NOTHING, *numbers]


def context_table(rows: Sequence[Row]) -> NumberTable:
    """One line per length of a series over several; K = 0 is decoding without a draft."""
    bare = [{**row, "context": None} for row in rows]
    return NumberTable(
        title=f"speedup by context · {heading(bare)}",
        header=labels(rows),
        lines=context_lines(rows),
        above=caveats(rows),
        legend="context: tokens of a prompt, the new ones come after them; from the column after best K on: of the "
        "fastest lookahead",
        bold_columns=frozenset({1 + len(lookaheads(rows))}),
    )
