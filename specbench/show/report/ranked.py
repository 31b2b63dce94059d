"""Many cells of a question as the lines of one table, the fastest first, with the numbers that readers choose by.

Knows rows of results.csv; must not know the page or its script, which sorts and hides these lines.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specbench.show.cell_text import lookahead, method_name
from specbench.show.cells_table import LABELS, by_speedup, named, naming
from specbench.show.grouping import FEW
from specbench.show.methods_table import is_lossy
from specbench.show.report.plots import float_in, spread
from specbench.show.report.plots_prompts import bounds, in_view
from specbench.wording import Row, text_in

COLUMNS = (
    ("speedup", "speedup"), ("95 % interval", "speedup_interval"), ("predicted", "speedup_predicted"),
    ("calibrated", "speedup_calibrated"), ("tokens / round", "tokens_per_round"), ("alpha", "alpha"), ("c", "c"),
    ("v", "v"), ("tokens/s", "tokens_per_second"), ("ms / token, median", "per_token_median_ms"),
    ("ms / token, 95 %", "per_token_p95_ms"), ("first token ms, median", "ttft_median_ms"),
    ("first token ms, 95 %", "ttft_p95_ms"), ("answer ms, median", "latency_median_ms"),
    ("answer ms, 95 %", "latency_p95_ms"), ("prefill ms, median", "prefill_median_ms"),
    ("GB of device", "peak_memory_device"), ("GB of process", "peak_memory_host"), ("lossy by", "law_distance"),
)  # fmt: skip


@dataclass(frozen=True)
class Line:
    """A cell: its row, what names it, and the style of its mark. unit: what is hidden with it."""

    row: Row
    names: Sequence[str]
    unit: str
    lossy: bool
    mark: str


@dataclass(frozen=True)
class Ranked:
    """The cells of a question as lines: the labels of what names them, and their numbers as labels and columns."""

    keys: Sequence[str]
    columns: Sequence[tuple[str, str]]
    lines: Sequence[Line]


def ranked(rows: Sequence[Row]) -> Ranked | None:
    """The cells of a question by speedup; None of so few that they stand beside each other."""
    shown = by_speedup(rows)
    if len(shown) <= FEW:
        return None
    keys, units = naming(shown), units_of(shown)
    columns = [(label, name) for label, name in COLUMNS if any(known(row, name) for row in shown)]
    ends = spread([v for row in shown for v in in_view(row)], 1.0, 0.03)
    lines = [
        Line(row, [named(row, key) for key in keys], units[text_in(row, "cell")], is_lossy(row), mark(row, ends))
        for row in shown
    ]
    return Ranked([LABELS.get(key, key.replace("_", " ")) for key in keys], columns, lines)


def units_of(rows: Sequence[Row]) -> Mapping[str, str]:
    """What readers hide and show, by cell: methods where there are several, else lookaheads."""
    several = len(set(map(method_name, rows))) > 1
    return {text_in(row, "cell"): method_name(row) if several else f"K {lookahead(row)}" for row in rows}


def known(row: Row, name: str) -> bool:
    """Whether a cell has the number; the distance is that of lossy methods alone."""
    if name == "law_distance" and not is_lossy(row):
        return False
    return math.isfinite(float_in(row, name.replace("_interval", "_low")))


def mark(row: Row, ends: tuple[float, float]) -> str:
    """Where the speedup, its interval and 1 lie between the ends of all, as properties of a style; empty of none."""
    low, value, high = bounds(row)
    if not math.isfinite(value):
        return ""
    found = {"one": 1.0, "at": value, "low": low if math.isfinite(low) else value}
    found["high"] = high if math.isfinite(high) else value
    shares = {name: min(max((v - ends[0]) / (ends[1] - ends[0]), 0.0), 1.0) for name, v in found.items()}
    return ";".join(f"--{name}:{100 * share:.1f}%" for name, share in shares.items())
