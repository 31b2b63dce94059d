"""How a value of a row reads in a table: the digits of a number, an interval, a lookahead, a dash where there is none.

Knows columns of results.csv; must not know which of them a table shows. Names come from files and models and are
hostile: no control character of theirs gets through.
"""

import math
from typing import Any

from specbench.judge.advice import drafting
from specbench.spec import CHOOSING
from specbench.wording import Row, clean, text_in

NOTHING = "–"
LONGEST = 2000  # characters of one line


def cell_text(row: Row, column: str) -> str:
    """A column as tables show it; `<name>_interval` is the interval of `name`, and `c_round` what a round drafts."""
    if column.endswith("_interval"):
        name = column.removesuffix("_interval")
        low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
        return NOTHING if is_absent(low) or is_absent(high) else f"{low:.3f} – {high:.3f}"
    value = drafting(row) if column == "c_round" else row.get(column)
    if is_absent(value):
        return NOTHING
    if column == "speedup":
        return f"{value:.3f}×"
    if column == "break_even_batch" and isinstance(value, float):
        return whole_batch(value)
    if isinstance(value, float):
        return f"{value:.1f}" if value >= 100 else f"{value:.3f}"
    return str(value)


def whole_batch(value: float) -> str:
    """The smallest batch from which speculation no longer pays, which is a whole number."""
    return "never" if math.isinf(value) else "1" if value <= 1 else f"{math.ceil(value):,}"


def is_absent(value: Any) -> bool:
    """Whether a cell of a table is blank, or NaN."""
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def is_number(value: Any) -> bool:
    """Whether a value is a finite number: a clock without phases and a failed cell leave none."""
    return isinstance(value, int | float) and math.isfinite(value)


def one_line(text: object) -> str:
    """Text of a data set, a model or an error without control characters, fit for a terminal."""
    return clean(text, LONGEST)


def lookahead(row: Row) -> str:
    """A cell's lookahead: its K, or how K is chosen and its ceiling."""
    if row.get("method") == CHOOSING:
        return "chosen"
    schedule = row.get("schedule") or "constant"
    if schedule == "confidence":
        schedule += f" {row.get('confidence')}"
    return str(row["k"]) if schedule == "constant" else f"{schedule} ≤ {row['k']}"


def short_dataset(dataset: str) -> str:
    """A data set's name as the heading of a column: of a file only its name."""
    return dataset.rsplit("/", 1)[-1] if ":" in dataset else dataset


def pair_name(row: Row) -> str:
    return f"{text_in(row, 'target')} ← {text_in(row, 'draft') or 'no draft'}"


def method_name(row: Row) -> str:
    return clean(str(row["method"]), 200)
