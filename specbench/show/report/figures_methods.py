"""Figures with a line for every cell: speedup, throughput, latency, memory, phases, positions, loads."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from matplotlib import colormaps
from matplotlib.patches import Rectangle

from specbench.results.latency import PER_SECOND
from specbench.show.engines import UNITS, Loads
from specbench.show.report.figure import (
    BLUE,
    DASHED,
    FIXED,
    INK,
    MARKERS,
    MUTED,
    ORANGE,
    WIDTH,
    YELLOW,
    Panel,
    Picture,
    Sheet,
    bounds,
    errors,
    float_in,
    floats_in,
    in_view,
    interval_tip,
    look,
    short,
    spread,
)
from specbench.show.report.figures_by_k import Lines, every, is_sweep, mean_of_all, method, stacked
from specbench.show.tables import by_speedup, is_lossy
from specbench.show.text import lookahead, method_name
from specbench.wording import Row, clean, text_in

MOST = 60  # maximum number of lines
NAME = 34  # characters of a name, to leave room for the figure
ROOM = 0.26  # inches per line
GB = 1e9
RANKING = Sheet(
    "by-speedup",
    "Cells by speedup",
    "Measured speedup with its 95 % interval over prompts, the fastest first; an upright stroke is what the formula "
    "predicted. Hollow: lossy, its output is not the target's. An interval that leaves the figure is one of few "
    "prompts.",
    "speedup over the baseline",
)
BY_PHASE = Sheet(
    "phases",
    "Where the time of a round goes",
    "Phases of the mean round of each cell; they add up to its time. The dashed line is one baseline step.",
    "milliseconds",
)
BY_POSITION = Sheet(
    "acceptance-by-position",
    "Acceptance by position",
    "Share of tokens accepted at a position of the draft, given that all before it were; the formula assumes "
    "that it is the same everywhere. n = how often the position was tested, all cells together.",
    "position in the draft",
    "accepted ÷ tested",
)
OF_A_MAP = " Methods by speedup; darker is more."
MOST_LINES = 6  # cells drawn as lines; more would hide each other
NUMBERED = 12  # positions that still fit numbers
PREDICTED: dict[str, Any] = {"color": ORANGE, "marker": "|", "markersize": 10, "linestyle": "none"}
INTERVALS = Sheet(
    "intervals",
    "All cells side by side",
    "Measured speedup of every cell with its 95 % interval over prompts; hollow: lossy. Two intervals "
    "that overlap may still differ.",
    "speedup over the baseline",
    width=WIDTH * 1.25,
)
PER_USER = Sheet(
    "per-user-against-all",
    "Tokens per second, of a user and of all",
    "A point for every load, with its {unit}: what one user sees from the first piece of an answer to its last, and "
    "the throughput of the server over whole turns. Black: the baseline.",
    "tokens per second per user",
    "tokens per second in all",
)


@dataclass(frozen=True)
class Quantity:
    """A quantity of every cell and of the baseline. high: column of its 95th percentile; scale: per shown unit."""

    sheet: Sheet
    column: str
    unit: str
    high: str = ""
    scale: float = 1.0

    def of(self, row: Row, arm: str = "") -> tuple[float, float]:
        """The value for an arm, "" or "baseline_", and its 95th percentile."""
        high = float_in(row, f"{arm}{self.high}") if self.high else math.nan
        return float_in(row, f"{arm}{self.column}") / self.scale, high / self.scale

    def written(self, value: float, high: float) -> str:
        tail = f", 95th percentile {high:.4g} {self.unit}" if math.isfinite(high) else ""
        return f"{value:.4g} {self.unit}{tail}"


OVER = "The line ends at the 95th percentile over the prompts. "
MILLISECONDS, GIGABYTES = "milliseconds", "gigabytes (10⁹ bytes)"
QUANTITIES = tuple(
    Quantity(
        Sheet(name, title, f"{caption} {OVER * bool(high)}Dashed: the baseline.", axis), column, unit, high, scale
    )
    for name, title, caption, axis, column, unit, high, scale in (
        ("throughput", "Throughput", "New tokens ÷ decode seconds, all rows of a batch together; more is better.",
         "tokens per second", "tokens_per_second", "tokens/s", "", 1.0),
        ("latency-per-token", "Latency per token",
         "Median over the prompts of a prompt's decode time ÷ its new tokens.",
         "milliseconds per token", "per_token_median_ms", "ms", "per_token_p95_ms", 1.0),
        ("latency-first-token", "Time to first token",
         "Median time from a request to the first piece of its answer.",
         MILLISECONDS, "ttft_median_ms", "ms", "ttft_p95_ms", 1.0),
        ("latency-answer", "Time to a whole answer",
         "Median time from when a request came to the last piece of its answer.",
         MILLISECONDS, "latency_median_ms", "ms", "latency_p95_ms", 1.0),
        ("latency-prefill", "Time to read the prompt",
         "Median time of the prefill, of the target and of what drafts; the first token comes one round after it.",
         MILLISECONDS, "prefill_median_ms", "ms", "prefill_p95_ms", 1.0),
        ("memory-device", "Peak memory of the device",
         "Bytes of tensors at most while an arm decoded: weights of all models and shared caches included.",
         GIGABYTES, "peak_memory_device", "GB", "", GB),
        ("memory-host", "Peak memory of the process",
         "Resident bytes of the process at most while an arm decoded, whatever they were for.",
         GIGABYTES, "peak_memory_host", "GB", "", GB),
    )
)  # fmt: skip


def ordered(rows: Sequence[Row]) -> list[Row]:
    """The measured cells, fastest method first; within a method in the order of K."""
    return by_speedup([row for row in rows if math.isfinite(float_in(row, "speedup"))])[:MOST]


def cell_label(row: Row, rows: Sequence[Row]) -> str:
    """A cell's label: what distinguishes it, and whether it is lossy."""
    several = [len({name(one) for one in rows}) > 1 for name in (method_name, lookahead)]
    parts = [method_name(row)] * several[0] + [f"K = {lookahead(row)}"] * (several[1] or not several[0])
    name, mark = ", ".join(parts), " (lossy)" * is_lossy(row)
    most = NAME - len(mark)
    return clean(name if len(name) <= most else name[: most - 1] + "…", 200) + mark


def name_rows(panel: Panel, rows: Sequence[Row], above: Sequence[str] = ()) -> None:
    """Label the lines on the y axis, the first at the top; each is owned by its cell. above: unowned lines on top."""
    names = [*above, *(cell_label(row, rows) for row in rows)]
    panel.axes.set_yticks(range(len(names)), names, fontsize=9 if len(names) <= 30 else 8)
    panel.axes.set_ylim(len(names) - 0.5, -0.5)
    for label, row in zip(panel.axes.get_yticklabels()[len(above) :], rows, strict=True):
        panel.picture.own(text_in(row, "cell"), [label])


def at_the_edge(panel: Panel, place: int, text: str, cell: str) -> None:
    """The number of a line at the right edge."""
    edge = panel.axes.get_yaxis_transform()
    panel.picture.own(cell, [panel.axes.text(1.02, place, text, transform=edge, va="center", fontsize=8)])


def ranking(rows: Sequence[Row]) -> Picture | None:
    """The speedup of every cell with its interval and the prediction; None for a single method."""
    shown = ordered(rows)
    if len({method_name(row) for row in shown}) < 2:
        return None
    with replace(RANKING, height=1.5 + ROOM * len(shown)).drawing() as panel:
        axes = panel.axes
        axes.axvline(1, color=INK, linewidth=1)
        for place, row in enumerate(shown):
            rank(panel, row, place)
        axes.plot([], [], **PREDICTED, label="predicted")
        axes.plot([], [], color=BLUE, marker="o", linestyle="none", label="measured")
        axes.set_xlim(spread([v for row in shown for v in (*in_view(row), float_in(row, "speedup_predicted"))], 1.0))
        panel.cut_ends(enumerate(shown))
        name_rows(panel, shown)
        axes.grid(visible=False, axis="y")
        panel.legend()
    return panel.picture


def rank(panel: Panel, row: Row, place: int) -> None:
    """Draw one cell: its interval, its marker, the prediction, and the number at the right edge."""
    (low, value, high), predicted, cell = bounds(row), float_in(row, "speedup_predicted"), text_in(row, "cell")
    bars = panel.axes.errorbar(
        [value], [place], xerr=errors([value], [low], [high]), color=BLUE, elinewidth=1.4, capsize=3
    )
    panel.picture.own(cell, bars.get_children())
    panel.picture.own(cell, panel.axes.plot([predicted], [place], **PREDICTED))
    at_the_edge(panel, place, f"{value:.2f}×", cell)
    text = f"{method_name(row)}, {cell_label(row, [row])}: {interval_tip(row)}, predicted {predicted:.3f}"
    fill = "none" if is_lossy(row) else "full"
    panel.points([value], [place], [text], cell=cell, color=BLUE, marker="o", fillstyle=fill)


def quantities(rows: Sequence[Row]) -> list[Picture]:
    """Throughput, latency and memory of several cells, if known."""
    shown = ordered(rows) if len(rows) > 1 else []
    return [bars_of(shown, one) for one in QUANTITIES if any(math.isfinite(one.of(row)[0]) for row in shown)]


def bars_of(rows: Sequence[Row], quantity: Quantity) -> Picture:
    """A bar for the baseline and one for every cell, with a whisker up to the 95th percentile."""
    with replace(quantity.sheet, height=1.3 + ROOM * (1 + len(rows))).drawing() as panel:
        baseline = [quantity.of(row, "baseline_") for row in rows]
        known = [one for one in baseline if math.isfinite(one[0])]
        if known:
            value, high = (sum(part) / len(known) for part in zip(*known, strict=True))
            bar(panel, 0, (value, high), f"baseline: {quantity.written(value, high)}", color=MUTED)
            panel.axes.axvline(value, **DASHED)
        for place, row in enumerate(rows, start=1):
            look = {"color": YELLOW, "hatch": "///"} if is_lossy(row) else {"color": BLUE}
            found = quantity.of(row)
            tip = f"{method_name(row)}, K = {lookahead(row)}: {quantity.written(*found)}"
            bar(panel, place, found, tip, text_in(row, "cell"), **look)
        panel.axes.set_xlim(left=0)
        name_rows(panel, rows, ["baseline"])
        panel.axes.grid(visible=False, axis="y")
    return panel.picture


def bar(panel: Panel, place: int, found: tuple[float, float], tip: str, cell: str = "", **look: Any) -> None:
    """Draw the bar of one arm with its number, and a whisker to the 95th percentile; `cell` owns it."""
    value, high = found
    if not math.isfinite(value):
        return
    (drawn,) = panel.axes.barh([place], [value], 0.66, edgecolor="white", linewidth=0.5, **look)
    panel.picture.tip(drawn, tip, cell)
    if math.isfinite(high):
        whisker: dict[str, Any] = {"color": INK, "marker": "|", "markersize": 5, "linewidth": 1}
        panel.picture.own(cell, panel.axes.plot([value, high], [place, place], **whisker))
    at_the_edge(panel, place, f"{value:.4g}", cell)


def per_user_against_all(found: Loads) -> Picture | None:
    """Tokens per second of one user and of all, at every load of a method and of its baseline; None for one load."""
    if len(found.rows) < 2:
        return None
    unit = UNITS[found.setting]
    with replace(PER_USER, caption=PER_USER.caption.format(unit=unit)).drawing() as panel:
        for prefix, name, own in (("baseline_", "baseline", {"color": INK, "marker": "s"}), ("", found.name, look(0))):
            x, y = (f"{prefix}{column}" for column in PER_SECOND[:2])
            tip = f"{{name}}, {{{found.setting}:g}} {unit}: {{{x}:.1f}} per user, {{{y}:.1f}} in all"
            panel.line(found.rows, (x, y), tip, name, own)
            for row in found.rows:
                place = (float_in(row, x), float_in(row, y))
                panel.axes.annotate(f"{row[found.setting]:g}", place, (4, 4), textcoords="offset points", fontsize=8)
        panel.axes.set(xlim=(0, None), ylim=(0, None))
        panel.legend()
    return panel.picture


def phases(found: Lines) -> Picture | None:
    """The phases of the mean round of every cell, unless the figure over K shows them."""
    rows = every(found)
    if not any(map(math.isfinite, floats_in(rows, "round_draft_ms"))) or (is_sweep(found) and len(found) == 1):
        return None
    rows = rows[:MOST]
    with replace(BY_PHASE, height=1.7 + 0.28 * len(rows)).drawing() as panel:
        stacked(panel, rows, range(len(rows)), flat=True)
        panel.axes.axvline(mean_of_all(rows, "baseline_step_ms"), label="baseline step", **DASHED)
        name_rows(panel, rows)
        panel.axes.grid(visible=False, axis="y")
        panel.legend(3)
    return panel.picture


def intervals(cells: Sequence[tuple[str, str, Row]]) -> Picture | None:
    """The speedup of every cell with its interval, given as (run, label, row); None for fewer than two."""
    shown = [cell for cell in cells if math.isfinite(float_in(cell[2], "speedup"))][:MOST]
    if len(shown) < 2:
        return None
    with replace(INTERVALS, height=1.3 + ROOM * len(shown)).drawing() as panel:
        runs = list(dict.fromkeys(run for run, _, _ in shown))
        for place, run in enumerate(runs):
            one_run(panel, [(y, *cell[1:]) for y, cell in enumerate(shown) if cell[0] == run], run, look(place))
        panel.axes.set_yticks(range(len(shown)), [short(label) for _, label, _ in shown])
        panel.axes.axvline(1, color=INK, linewidth=1)
        panel.axes.set_xlim(spread([bound for *_, row in shown for bound in in_view(row)], 1.0))
        panel.cut_ends((y, row) for y, (*_, row) in enumerate(shown))
        panel.axes.set_ylim(len(shown) - 0.5, -0.5)
        if len(runs) > 1:
            panel.legend(1)
    return panel.picture


def one_run(panel: Panel, cells: Sequence[tuple[int, str, Row]], run: str, own: Mapping[str, Any]) -> None:
    """The cells of one run, given as (y, label, row), in its own colour."""
    heights, name = [float(y) for y, *_ in cells], short(run, 60)
    panel.across([row for *_, row in cells], heights, color=own["color"], elinewidth=1.4, capsize=3, label=name)
    for y, label, row in cells:
        fill, tip = "none" if is_lossy(row) else "full", f"{label}: {interval_tip(row)}"
        panel.points([float_in(row, "speedup")], [y], [tip], fillstyle=fill, **own)


# --- acceptance by position -------------------------------------------------------------------------------------------


def acceptance_by_position(found: Lines, tested: Sequence[int]) -> Picture | None:
    """Conditional acceptance by position; tested: how often each position was, over all cells, if known."""
    rows = [row for rows in found.values() for row in rows if math.isfinite(float_in(row, "acceptance_at_1"))]
    if not rows:
        return None
    if len(rows) > MOST_LINES:
        return map_of(rows[:MOST], tested)
    with BY_POSITION.drawing() as panel:
        for place, row in enumerate(rows):
            name = f"K = {row.get('k')}" if len(found) == 1 else f"{method(row)}, K = {row.get('k')}"
            shade = colormaps["cividis"](
                0.3 + 0.5 * place / max(len(rows) - 1, 1)
            )  # visible on light and on dark pages
            own = {"color": shade, "marker": MARKERS[place % len(MARKERS)], "markersize": 4, "linewidth": 1.1}
            cell_by_position(panel, row, name, own)
        position_ticks(panel, max(len(positions(row)) for row in rows), tested)
        panel.axes.set_ylim(0, 1.02)
        panel.legend(4 if len(found) == 1 else 2)
    return panel.picture


def cell_by_position(panel: Panel, row: Row, name: str, own: Mapping[str, Any]) -> None:
    places = [{"position": place, "accepted": value} for place, value in enumerate(positions(row), start=1)]
    columns, cell = ("position", "accepted"), text_in(row, "cell")
    panel.line(places, columns, lambda at: position_tip(name, *at.values()), name, own, cell=cell)


def position_tip(name: str, position: int, value: float) -> str:
    return f"{name}, position {position}: {value:.3f}"


def map_of(rows: Sequence[Row], tested: Sequence[int]) -> Picture:
    """A row of tiles for every cell, with a tile for every position."""
    longest = max(len(positions(row)) for row in rows)
    sheet = replace(BY_POSITION, caption=BY_POSITION.caption + OF_A_MAP, y="", height=1.3 + ROOM * len(rows))
    with sheet.drawing() as panel:
        panel.axes.grid(visible=False)
        panel.axes.set(xlim=(0.5, longest + 0.5))
        for place, row in enumerate(rows):
            tiles(panel, row, place, numbered=longest <= NUMBERED)
        name_rows(panel, rows)
        position_ticks(panel, longest, tested)
    return panel.picture


def tiles(panel: Panel, row: Row, place: int, *, numbered: bool) -> None:
    """Draw the tiles of one cell: light for low acceptance, dark for high."""
    name, cell = f"{method(row)}, K = {row.get('k')}", text_in(row, "cell")
    for position, value in enumerate(positions(row), start=1):
        shade = colormaps["YlGnBu"](0.5 * min(max(value, 0.0), 1.0))  # light enough for its number
        tile = Rectangle((position - 0.48, place - 0.46), 0.96, 0.92, facecolor=shade, linewidth=0)
        panel.picture.tip(panel.axes.add_patch(tile), position_tip(name, position, value), cell)
        if numbered:
            style: dict[str, Any] = {"ha": "center", "va": "center", "color": FIXED, "fontsize": 8}
            panel.picture.own(cell, [panel.axes.text(position, place, f"{value:.2f}", **style)])


def position_ticks(panel: Panel, longest: int, tested: Sequence[int]) -> None:
    """Ticks at the positions, or at some of many, each with its number of tests."""
    ticks = range(1, longest + 1, 1 if longest <= 12 else -(-longest // 10))
    names = [f"{t}\nn {tested[t - 1]:,}" if t <= len(tested) else str(t) for t in ticks]
    panel.axes.set_xticks(ticks, names, fontsize=8)


def positions(row: Row) -> list[float]:
    """acceptance_at_1, _2, … of a row, as far as present."""
    found: list[float] = []
    while math.isfinite(value := float_in(row, f"acceptance_at_{len(found) + 1}")):
        found.append(value)
    return found
