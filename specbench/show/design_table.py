"""The shapes of a design on stdout: one line per shape for readers, every column for programs.

Knows rows of design.csv; must not know how a draft was timed, trained or measured.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from specbench.show.records import Format, print_data, print_markdown, print_table
from specbench.wording import Row, number_in, text_in

TITLE = "Draft shapes, the fastest measured one first; predicted and measured: tokens per second at the best K"


def print_design(rows: Sequence[Row], style: Format) -> None:
    """Print the rows of a design."""
    if not print_data(rows, style):
        (print_markdown if style == "md" else print_table)(TITLE, [line(row) for row in rows])


def line(row: Row) -> dict[str, Any]:
    """A row for readers."""
    return {
        "shape": text_in(row, "name"),
        "depth": text_in(row, "layers"),
        "width": text_in(row, "hidden"),
        "heads": text_in(row, "heads"),
        "parameters": f"{int(number_in(row, 'parameters') or 0):,}",
        "latency_ms": spread(row, "latency_ms", ("latency_low_ms", "latency_high_ms"), ".3g"),
        "c": number(row, "c", ".3f"),
        "alpha": number(row, "alpha", ".3f"),
        "K": text_in(row, "k") or "–",
        "tokens/round": number(row, "tokens_per_round", ".2f"),
        "predicted": number(row, "tokens_per_second_predicted", ".1f"),
        "measured": number(row, "tokens_per_second", ".1f"),
        "speedup": spread(row, "speedup", ("speedup_low", "speedup_high"), ".3f"),
        "front": {"True": "yes", "False": "no"}.get(str(row.get("on_front")), "–"),
        "training": text_in(row, "reached"),
    }


def number(row: Mapping[str, Any], column: str, form: str) -> str:
    """A number of a row; a dash for none."""
    found = number_in(row, column)
    return "–" if found is None else format(found, form)


def spread(row: Mapping[str, Any], column: str, bounds: tuple[str, str], form: str) -> str:
    """A number with what it lies between."""
    low, high = (number(row, name, form) for name in bounds)
    value = number(row, column, form)
    return value if "–" in (low, high) else f"{value} [{low}, {high}]"
