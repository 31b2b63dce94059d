"""The shapes of a design on stdout: one line per shape for readers, every column for programs.

Knows rows of design.csv; must not know how a draft was timed, trained or measured.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from specbench.show.text import Format, print_data, print_markdown, print_table
from specbench.wording import Row, number_in, text_in

COUNTED = {"all": "all parameters, embedding included", "layers": "parameters in layers, without the embedding"}


def print_design(rows: Sequence[Row], style: Format) -> None:
    """Print the rows of a design."""
    if not print_data(rows, style):
        (print_markdown if style == "md" else print_table)(title(rows), [line(row) for row in rows])


def title(rows: Sequence[Row]) -> str:
    """What the lines are."""
    counted = COUNTED.get(text_in(rows[0], "budget_counts"), "parameters") if rows else "parameters"
    return (
        f"Shapes of at most so many parameters (1M-2x128: 1M, 2 layers, width 128; counted are {counted}), the fastest "
        "measured one first; predicted and measured: tokens per second at the best K"
    )


def line(row: Row) -> dict[str, Any]:
    """A row for readers."""
    return {
        "shape": text_in(row, "name"),
        "depth": text_in(row, "layers"),
        "width": text_in(row, "hidden"),
        "heads": text_in(row, "heads"),
        "parameters": number(row, "parameters", ",.0f"),
        "in layers": number(row, "parameters_in_layers", ",.0f"),
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
