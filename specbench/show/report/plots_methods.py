"""Figures with a line for every cell, the fastest first: speedup, throughput, latency and memory.

Knows rows of results.csv; a function returns None where the rows do not hold what it would show.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.axes import Axes

from specbench.show.cell_text import lookahead, method_name
from specbench.show.cells_table import by_speedup
from specbench.show.methods_table import is_lossy
from specbench.show.report.plots import (  # fmt: skip
    BLUE,
    DASHED,
    INK,
    MUTED,
    ORANGE,
    YELLOW,
    Picture,
    Sheet,
    errors,
    float_in,
    legend,
    points,
    spread,
)
from specbench.show.report.plots_prompts import bounds, cut_ends, in_view
from specbench.wording import Row, clean, text_in

MOST = 60  # lines of one figure
NAME = 34  # characters of a name that leave room for the figure
ROOM = 0.26  # inches of a line
GB = 1e9
RANKING = Sheet(
    "by-speedup",
    "Cells by speedup",
    "Measured speedup with its 95 % interval over prompts, the fastest first; an upright stroke is what the formula "
    "predicted. Hollow: lossy, its output is not the target's. An interval that leaves the figure is one of few "
    "prompts.",
    "speedup over the baseline",
    "",
)


@dataclass(frozen=True)
class Quantity:
    """A number of every cell and of the baseline. high: where its 95th percentile stands; scale: of a unit shown."""

    sheet: Sheet
    column: str
    unit: str
    high: str = ""
    scale: float = 1.0

    def of(self, row: Row, arm: str = "") -> tuple[float, float]:
        """The number of an arm, "" or "baseline_", and its 95th percentile."""
        high = float_in(row, f"{arm}{self.high}") if self.high else math.nan
        return float_in(row, f"{arm}{self.column}") / self.scale, high / self.scale

    def told(self, value: float, high: float) -> str:
        tail = f", 95th percentile {high:.4g} {self.unit}" if math.isfinite(high) else ""
        return f"{value:.4g} {self.unit}{tail}"


OVER = "The line ends at the 95th percentile over the prompts. Dashed: the baseline."
QUANTITIES = (
    Quantity(
        Sheet("throughput", "Throughput", "New tokens ÷ decode seconds, all rows of a batch together; more is better. "
              "Dashed: the baseline.", "tokens per second", ""),
        "tokens_per_second", "tokens/s",
    ),
    Quantity(
        Sheet("latency-per-token", "Latency per token", f"Median over the prompts of a prompt's decode time ÷ its new "
              f"tokens. {OVER}", "milliseconds per token", ""),
        "per_token_median_ms", "ms", "per_token_p95_ms",
    ),
    Quantity(
        Sheet("latency-first-token", "Time to first token", "Median time from a request to the first piece of its "
              f"answer. {OVER}", "milliseconds", ""),
        "ttft_median_ms", "ms", "ttft_p95_ms",
    ),
    Quantity(
        Sheet("latency-answer", "Time to a whole answer", "Median time from when a request came to the last piece of "
              f"its answer. {OVER}", "milliseconds", ""),
        "latency_median_ms", "ms", "latency_p95_ms",
    ),
    Quantity(
        Sheet("latency-prefill", "Time to read the prompt", "Median time of the prefill, of the target and of what "
              f"drafts; the first token comes one round after it. {OVER}", "milliseconds", ""),
        "prefill_median_ms", "ms", "prefill_p95_ms",
    ),
    Quantity(
        Sheet("memory-device", "Peak memory of the device", "Bytes of tensors at most while an arm decoded: weights of "
              "all models and shared caches included. Dashed: the baseline.", "gigabytes (10⁹ bytes)", ""),
        "peak_memory_device", "GB", scale=GB,
    ),
    Quantity(
        Sheet("memory-host", "Peak memory of the process", "Resident bytes of the process at most while an arm "
              "decoded, whatever they were for. Dashed: the baseline.", "gigabytes (10⁹ bytes)", ""),
        "peak_memory_host", "GB", scale=GB,
    ),
)  # fmt: skip


def ordered(rows: Sequence[Row]) -> list[Row]:
    """The measured cells, the fastest method first; of one method in the order of K."""
    return by_speedup([row for row in rows if math.isfinite(float_in(row, "speedup"))])[:MOST]


def cell_label(row: Row, rows: Sequence[Row]) -> str:
    """A cell beside a figure: what distinguishes it, and whether it is lossy."""
    several = [len({name(one) for one in rows}) > 1 for name in (method_name, lookahead)]
    parts = [method_name(row)] * several[0] + [f"K = {lookahead(row)}"] * (several[1] or not several[0])
    name, mark = ", ".join(parts), " (lossy)" * is_lossy(row)
    most = NAME - len(mark)
    return clean(name if len(name) <= most else name[: most - 1] + "…", 200) + mark


def name_rows(picture: Picture, axes: Axes, rows: Sequence[Row], above: Sequence[str] = ()) -> None:
    """The names of lines beside the y axis, the first at the top; each is owned by its cell. above: lines of none."""
    names = [*above, *(cell_label(row, rows) for row in rows)]
    axes.set_yticks(range(len(names)), names, fontsize=9 if len(names) <= 30 else 8)
    axes.set_ylim(len(names) - 0.5, -0.5)
    for label, row in zip(axes.get_yticklabels()[len(above) :], rows, strict=True):
        picture.own(text_in(row, "cell"), [label])


def ranking(rows: Sequence[Row]) -> Picture | None:
    """The speedup of every cell with its interval and the prediction; None where there is one method alone."""
    shown = ordered(rows)
    if len({method_name(row) for row in shown}) < 2:
        return None
    with replace(RANKING, height=1.5 + ROOM * len(shown)).drawing() as (picture, axes):
        axes.axvline(1, color=INK, linewidth=1)
        for place, row in enumerate(shown):
            rank(picture, axes, row, place)
        axes.plot([], [], color=ORANGE, marker="|", markersize=10, linestyle="none", label="predicted")
        axes.plot([], [], color=BLUE, marker="o", linestyle="none", label="measured")
        axes.set_xlim(spread([v for row in shown for v in (*in_view(row), float_in(row, "speedup_predicted"))], 1.0))
        cut_ends(axes, list(enumerate(shown)))
        name_rows(picture, axes, shown)
        axes.grid(visible=False, axis="y")
        legend(axes, 2)
    return picture


def rank(picture: Picture, axes: Axes, row: Row, place: int) -> None:
    """One cell: its interval, its mark, the prediction, and the number at the right edge."""
    (low, value, high), predicted = bounds(row), float_in(row, "speedup_predicted")
    cell, own = text_in(row, "cell"), {"color": BLUE, "marker": "o", "fillstyle": "none" if is_lossy(row) else "full"}
    bars = errors([value], [low], [high])
    picture.own(cell, axes.errorbar([value], [place], xerr=bars, color=BLUE, elinewidth=1.4, capsize=3).get_children())
    picture.own(cell, axes.plot([predicted], [place], color=ORANGE, marker="|", markersize=10, linestyle="none"))
    across = axes.get_yaxis_transform()
    picture.own(cell, [axes.text(1.02, place, f"{value:.2f}×", transform=across, va="center", fontsize=8)])
    interval = f" [{low:.3f}, {high:.3f}]" if math.isfinite(low) else ""
    text = f"{cell_label(row, [row])}: {value:.3f}×{interval}, predicted {predicted:.3f}"
    points(picture, axes, [value], [place], [f"{method_name(row)}, {text}"], cells=[cell], **own)


def quantities(rows: Sequence[Row]) -> list[Picture]:
    """Throughput, latency and memory of several cells, each where it is known."""
    shown = ordered(rows) if len(rows) > 1 else []
    return [bars_of(shown, one) for one in QUANTITIES if any(math.isfinite(one.of(row)[0]) for row in shown)]


def bars_of(rows: Sequence[Row], quantity: Quantity) -> Picture:
    """A bar for the baseline and one for every cell, with a whisker up to the 95th percentile."""
    with replace(quantity.sheet, height=1.3 + ROOM * (1 + len(rows))).drawing() as (picture, axes):
        baseline = [quantity.of(row, "baseline_") for row in rows]
        known = [one for one in baseline if math.isfinite(one[0])]
        if known:
            value, high = (sum(part) / len(known) for part in zip(*known, strict=True))
            bar(picture, axes, (quantity, "baseline", ""), 0, (value, high), color=MUTED)
            axes.axvline(value, **DASHED)
        for place, row in enumerate(rows, start=1):
            look = {"color": YELLOW, "hatch": "///"} if is_lossy(row) else {"color": BLUE}
            name = f"{method_name(row)}, K = {lookahead(row)}"
            bar(picture, axes, (quantity, name, text_in(row, "cell")), place, quantity.of(row), **look)
        axes.set_xlim(left=0)
        name_rows(picture, axes, rows, ["baseline"])
        axes.grid(visible=False, axis="y")
    return picture


def bar(
    picture: Picture,
    axes: Axes,
    named: tuple[Quantity, str, str],
    place: int,
    found: tuple[float, float],
    **look: Any,
) -> None:
    """The bar of one arm with its number; `named`: what it shows, of whom, and the cell that owns it."""
    (quantity, name, cell), (value, high) = named, found
    if not math.isfinite(value):
        return
    (drawn,) = axes.barh([place], [value], 0.66, edgecolor="white", linewidth=0.5, **look)
    picture.tip(drawn, f"{name}: {quantity.told(value, high)}", cell)
    if math.isfinite(high):
        picture.own(cell, axes.plot([value, high], [place, place], color=INK, marker="|", markersize=5, linewidth=1))
    edge = axes.get_yaxis_transform()
    picture.own(cell, [axes.text(1.02, place, f"{value:.4g}", transform=edge, va="center", fontsize=8)])
