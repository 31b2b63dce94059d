"""Why the measured speedup is not the predicted one: every term of the waterfall, from left to right.

Knows rows of results.csv; must not know how a term is computed (`theory.waterfall`).
"""

from collections.abc import Sequence

from specbench.show.cell_text import is_number
from specbench.show.number_table import NumberTable
from specbench.wording import Row, number_in

STAGES = (  # heading, column, whether it is a sum rather than a term
    ("ideal", "speedup_ideal", True), ("first\ndraft", "term_first_draft", False),
    ("predicted", "speedup_predicted", True), ("levels", "term_levels", False),
    ("position", "term_position", False), ("verify", "term_verify", False), ("sampling", "term_sampling", False),
    ("host", "term_host", False), ("update", "term_update", False), ("cali-\nbrated", "speedup_calibrated", True),
    ("trun-\ncated", "term_truncated", False), ("measured", "speedup", True),
)  # fmt: skip
LEGEND = (
    "ideal: the formula with later drafts' cost; predicted: the formula; position: acceptance by position for one "
    "alpha; verify, sampling, host, update: measured costs for none; truncated: rounds cut short by the end of a text"
)
OF_SOME = ("term_levels", "term_update")  # of nests, and of drafts that learn: not shown where no cell has them


def why_table(rows: Sequence[Row], names: Sequence[str]) -> NumberTable | None:
    """One line per cell whose phases were timed; None where there is none. Terms add up to the sums beside them."""
    named = zip(rows, names, strict=True)
    needed = [column for _, column, _ in STAGES if column not in OF_SOME]
    timed = [(row, name) for row, name in named if all(is_number(row.get(column)) for column in needed)]
    if not timed:
        return None
    stages = [stage for stage in STAGES if stage[1] not in OF_SOME or any(number_in(row, stage[1]) for row, _ in timed)]
    return NumberTable(
        title="from the formula to the measurement, in units of speedup",
        header=("", *(label for label, _, _ in stages)),
        lines=[
            [name, *(amount(row.get(column) or 0.0, is_sum) for _, column, is_sum in stages)] for row, name in timed
        ],
        left=1,
        legend=LEGEND,
        bold_columns=frozenset(n for n, (_, _, is_sum) in enumerate(stages, start=1) if is_sum),
    )


def amount(value: float, is_sum: bool) -> str:
    """A sum as a speedup, a term with its sign."""
    return f"{value:.3f}" if is_sum else f"{value:+.3f}".replace("-", "−")
