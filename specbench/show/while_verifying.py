"""Predictions of drafting while verifying as tables. Loads nothing heavy before it prints."""

from collections.abc import Sequence
from dataclasses import asdict

from specbench.judge.while_verifying import MeasuredCell, WhileVerifying
from specbench.show.predictions import Table, print_tables, text
from specbench.show.records import Format

RATES = ("K", "expected tokens", "prepared", "hit", "one after another", "in parallel", "always ready", "")
CELLS = ("dataset", "method", "K", "expected tokens", "prepared", "hit", "measured", "one after another", "in parallel",
         "always ready")  # fmt: skip
NOTE = (
    "In parallel: the draft works on a second device, or core, while the target verifies, and the share of rounds for "
    "whose text it has drafted already is a hit; always ready is the most that there is to have. Prepared: one text is "
    "all drafts accepted and the likeliest token after them; n per place are the n likeliest tokens after every number "
    "of accepted drafts, (K + 1) × n texts, whose drafts must all be made in the time of one."
)


def print_rates(groups: Sequence[Sequence[WhileVerifying]], style: Format) -> None:
    """A table for each alpha and c."""
    tables = [rates_table(group) for group in groups]
    print_tables([asdict(row) for group in groups for row in group], tables, style, NOTE)


def print_cells(cells: Sequence[MeasuredCell], style: Format) -> None:
    """One table of all cells."""
    rows = [
        tuple(map(text, (c.dataset, c.method, c.k, c.expected_tokens, c.prepared, c.hit, c.speedup,
                         c.speedup_calibrated, c.speedup_parallel, c.speedup_ready)))
        for c in cells
    ]  # fmt: skip
    table = Table("speedup if the draft worked while the target verifies", CELLS, rows, "", keys=3)
    print_tables([asdict(cell) for cell in cells], [table], style, NOTE)


def rates_table(group: Sequence[WhileVerifying]) -> Table:
    first, best = group[0], max(group, key=lambda row: row.speedup_parallel)
    rows = [
        tuple(map(text, (r.k, r.expected_tokens, r.prepared, r.hit, r.speedup, r.speedup_parallel, r.speedup_ready,
                         "best" if r == best else "")))
        for r in group
    ]  # fmt: skip
    about = f"counted, K {first.k}" if first.alpha is None else f"alpha {first.alpha:g}"
    return Table(f"{about}, c {first.c:g}, v {first.v:g}", RATES, rows, "")
