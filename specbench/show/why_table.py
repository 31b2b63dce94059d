"""Why the measured speedup is not the predicted one, as a table: every term of the waterfall, from left to right.

Knows rows of results.csv; the terms and what they mean stand in `specbench.theory.waterfall`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from specbench.show.fitting import Fitted
from specbench.show.sweep_table import is_number

STAGES = (  # heading, column, whether it is a sum rather than a term
    ("ideal", "speedup_ideal", True), ("first\ndraft", "term_first_draft", False),
    ("predicted", "speedup_predicted", True), ("inner\nrounds", "term_levels", False),
    ("position", "term_position", False), ("verify", "term_verify", False), ("sampling", "term_sampling", False),
    ("host", "term_host", False), ("cali-\nbrated", "speedup_calibrated", True),
    ("cut\nrounds", "term_truncated", False), ("measured", "speedup", True),
)  # fmt: skip
OF_NESTS = "term_levels"  # zero of every other method, and then not shown


def why_table(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Group | None:
    """One line per cell whose phases were timed; None where there is none. Terms add up to the sums beside them."""
    named = zip(rows, names, strict=True)
    timed = [(row, name) for row, name in named if all(is_number(row.get(column)) for _, column, _ in STAGES)]
    if not timed:
        return None
    table = Table(box=box.SIMPLE, pad_edge=False, collapse_padding=True)
    table.add_column("")
    nests = any(row[OF_NESTS] for row, _ in timed)
    stages = [one for one in STAGES if nests or one[1] != OF_NESTS]
    for heading, _, is_sum in stages:
        table.add_column(heading, justify="right", style="bold" if is_sum else "")
    for row, name in timed:
        table.add_row(Text(name), *(stage(row[column], is_sum) for _, column, is_sum in stages))
    return Group(Text("from the formula to the measurement, in units of speedup", style="bold"), Fitted(table))


def stage(value: float, is_sum: bool) -> str:
    """A sum as a speedup, a term with its sign."""
    return f"{value:.3f}" if is_sum else f"{value:+.3f}".replace("-", "−")
