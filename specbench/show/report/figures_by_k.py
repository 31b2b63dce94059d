"""Figures of numbers over a setting: the lookahead, the batch, the prompt length.

Time, acceptance and the mean round are the three panels of Chen et al. 2023 (arXiv 2302.01318), Figure 1.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from matplotlib import colormaps
from matplotlib.colors import TwoSlopeNorm
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from specbench.show.report.figure import (
    BLUE,
    DASHED,
    FIXED,
    INK,
    ORANGE,
    PURPLE,
    SKY,
    YELLOW,
    Panel,
    Picture,
    Sheet,
    bounds,
    float_in,
    floats_in,
    look,
)
from specbench.show.tables import lookaheads
from specbench.show.text import lookahead
from specbench.wording import Row, clean, grouped, text_in, tokens_said

Lines = Mapping[str, Sequence[Row]]  # the rows of one method in the order of K, by its name
MILLISECONDS = 1000
MOST_LINES = 3  # methods per panel; above this, each gets its own
MOST_PANELS = 24
K = "lookahead K (drafted tokens per round)"
TIME = Sheet(
    "time-against-k",
    "Time per token",
    "The mean over all tokens of the prompts, decode only; lower is faster. The dashed line is the baseline.",
    K,
    "milliseconds",
)
ACCEPTANCE = Sheet(
    "acceptance-against-k",
    "Acceptance against K",
    "α (solid, with its 95 % interval) is the chance that a tested token is accepted. Accepted ÷ drafted "
    "(dotted), which many tools call the acceptance rate, falls with K by definition.",
    K,
    "share",
)
SPEEDUP = Sheet(
    "speedup-against-k",
    "Speedup, measured and predicted",
    "Measured: total baseline ÷ total method decode time, with its 95 % interval. Formula (dashed): "
    "(1−α^(K+1)) / ((1−α)(Kc+1)). Calibrated (dotted): Σ Π αᵢ / (Kc + v + overhead). Above 1 it pays.",
    K,
    "speedup over the baseline",
)
MEAN_ROUND = Sheet(
    "round-against-k",
    "Mean time of a round",
    "One round = draft K tokens, verify them in one pass of the target, accept, and what the host adds. "
    "The dashed line is one baseline step.",
    K,
    "milliseconds",
)
PHASES = (
    ("draft", "round_draft_ms", BLUE, ""),
    ("verify", "round_verify_ms", SKY, "//"),
    ("accept", "round_accept_ms", YELLOW, "xx"),
    ("host", "round_host_ms", "#bdbdbd", "--"),
    ("update", "round_update_ms", PURPLE, ".."),
)
UPDATES = "round_update_ms"  # only for drafts that learn


@dataclass(frozen=True)
class Curve:
    """A method over K: its rows, its panel and style, its name in a legend, and a prefix for labels."""

    name: str
    label: str
    prefix: str
    rows: Sequence[Row]
    look: Mapping[str, Any]
    panel: Panel

    def line(self, column: str, tip: str, label: str = "", **bars: Any) -> None:
        """A column over K with markers; `bars` are the style of its interval."""
        tip = f"{{name}}, K = {{k:g}}: {tip}"
        columns, label = ("k", column), label or self.label
        self.panel.line(self.rows, columns, tip, label, self.look, cell=self.name, bars=bars or None)

    def beside(self, column: str, label: str, **style: Any) -> None:
        """A further column over K, without tips."""
        x, y = floats_in(self.rows, "k"), floats_in(self.rows, column)
        self.panel.picture.own(self.name, self.panel.axes.plot(x, y, label=f"{self.prefix}{label}", **style))


def by_method(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The measured rows by method and schedule, each in the order of K, fastest method first."""
    found: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda r: float_in(r, "k")):
        if math.isfinite(float_in(row, "speedup")):
            found.setdefault(method(row), []).append(row)
    return dict(sorted(found.items(), key=lambda one: -max(floats_in(one[1], "speedup"))))


def method(row: Row) -> str:
    """A row's method for a legend, with its schedule if not constant."""
    schedule = row.get("schedule") or "constant"
    ceiling = f" {row.get('confidence')}" if schedule == "confidence" else ""
    return clean(row.get("method"), 40) + ("" if schedule == "constant" else clean(f" ({schedule}{ceiling})", 40))


def is_sweep(found: Lines) -> bool:
    """Whether there is a curve over K to draw."""
    return any(len(rows) > 1 for rows in found.values())


def looks(found: Lines) -> list[tuple[str, Sequence[Row], dict[str, Any]]]:
    """Every line with its colour and marker."""
    return [(name, rows, look(place)) for place, (name, rows) in enumerate(found.items())]


@contextmanager
def over_k(sheet: Sheet, found: Lines) -> Iterator[list[Curve]]:
    """A curve for every method: on one panel, or on one each if there are many methods."""
    if len(found) <= MOST_LINES:
        with sheet.drawing() as panel:
            panel.whole_numbers(sorted({float_in(row, "k") for row in every(found)}))
            several = len(found) > 1
            yield [Curve(n, n, f"{n}: " * several, rows, own, panel) for n, rows, own in looks(found)]
        return
    shown = dict([(name, rows) for name, rows in found.items() if len(rows) > 1][:MOST_PANELS])
    with sheet.panels(list(shown)) as panels:
        panels[0].whole_numbers(sorted({float_in(row, "k") for row in every(shown)}))
        for name, panel in zip(shown, panels, strict=True):
            panel.picture.own(name, [panel.axes])
        lines = zip(shown.items(), panels, strict=True)
        yield [Curve(name, "method", "", rows, look(0), panel) for (name, rows), panel in lines]


def across(curves: Sequence[Curve], y: float, **line: Any) -> None:
    """A horizontal line on every panel."""
    for axes in dict.fromkeys(curve.panel.axes for curve in curves):
        axes.axhline(y, **line)


def mean_of_all(rows: Sequence[Row], column: str) -> float:
    return sum(floats_in(rows, column)) / len(rows)


def every(found: Lines) -> list[Row]:
    return [row for rows in found.values() for row in rows]


def against_k(found: Lines) -> list[Picture]:
    """The speedup, the time of a token, acceptance and the mean round over K; empty without a sweep."""
    drawn = (speedup_against_k, time_against_k, acceptance_against_k, round_against_k)
    return [draw(found) for draw in drawn] if is_sweep(found) else []


def time_against_k(found: Lines) -> Picture:
    """Milliseconds per new token, for both arms."""
    timed = {
        name: [{**row, "token_ms": MILLISECONDS / float_in(row, "tokens_per_second")} for row in rows]
        for name, rows in found.items()
    }
    with over_k(TIME, timed) as curves:
        for one in curves:
            one.line("token_ms", "{token_ms:.3f} ms")
        usual = [MILLISECONDS / v for v in floats_in(every(found), "baseline_tokens_per_second")]
        across(curves, sum(usual) / len(usual), label="baseline", **DASHED)
        curves[0].panel.axes.set_ylim(bottom=0)
        curves[0].panel.legend()
    return curves[0].panel.picture


def acceptance_against_k(found: Lines) -> Picture:
    """α, which should not depend on K, and accepted ÷ drafted, which must."""
    with over_k(ACCEPTANCE, found) as curves:
        for one in curves:
            one.line("alpha", "α = {alpha:.3f}", f"{one.prefix}α", capsize=2, elinewidth=1)
            dotted = {"linestyle": ":", "fillstyle": "none", **one.look}
            one.beside("accepted_per_drafted", "accepted ÷ drafted", **dotted)
        curves[0].panel.axes.set_ylim(0, 1.02)
        curves[0].panel.legend()
    return curves[0].panel.picture


def speedup_against_k(found: Lines) -> Picture:
    """The measured speedup with its interval, and both predictions, the calibrated one in front."""
    tip = "{speedup:.3f}× [{speedup_low:.3f}, {speedup_high:.3f}], "
    tip += "formula {speedup_predicted:.3f}, calibrated {speedup_calibrated:.3f}"
    with over_k(SPEEDUP, found) as curves:
        across(curves, 1, color=INK, linewidth=1)
        for one in curves:
            one.line("speedup", tip, f"{one.prefix}measured", capsize=3)
            dashed, dotted = (one.look["color"], one.look["color"]) if one.prefix else (ORANGE, INK)
            one.beside("speedup_predicted", "formula", color=dashed, linestyle="--", linewidth=1.3)
            hollow = {"marker": "s", "markersize": 9, "fillstyle": "none", "markeredgewidth": 0.9, "zorder": 4}
            one.beside("speedup_calibrated", "calibrated", color=dotted, linestyle=":", linewidth=1.3, **hollow)
        curves[0].panel.legend(2 if len(curves) > 1 and curves[0].prefix else 3)
    return curves[0].panel.picture


def round_against_k(found: Lines) -> Picture:
    """Milliseconds of a mean round against K: its phases for one method, its total for several."""
    with over_k(MEAN_ROUND, found) as curves:
        panel = curves[0].panel
        for one in curves:
            if len(found) == 1:
                stacked(panel, one.rows, floats_in(one.rows, "k"))
            else:
                one.line("round_ms", "{round_ms:.3f} ms")
        across(curves, mean_of_all(every(found), "baseline_step_ms"), label="baseline step", **DASHED)
        panel.axes.set_ylim(bottom=0)
        panel.axes.grid(visible=False, axis="x")
        panel.legend(3)
    return panel.picture


def stacked(panel: Panel, rows: Sequence[Row], x: Sequence[float], *, flat: bool = False) -> None:
    """Stack the phases of each row's mean round, from draft to host and draft updates."""
    base = [0.0] * len(rows)
    draw = panel.axes.barh if flat else panel.axes.bar
    learns = any(float_in(row, UPDATES) > 0 for row in rows)
    for phase, name, colour, hatch in (one for one in PHASES if learns or one[1] != UPDATES):
        parts = [v if v > 0 else 0.0 for v in floats_in(rows, name)]  # unknown, or negative by clock rounding
        look = {"color": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0.5, "label": phase}
        bars = draw(x, parts, 0.72, base, **look)  # type: ignore[arg-type]
        for bar, row, part in zip(bars, rows, parts, strict=True):
            text = f"K = {row.get('k')}, {phase}: {part:.3f} ms of {float_in(row, 'round_ms'):.3f} ms"
            panel.picture.tip(bar, f"{method(row)}, {text}" if flat else text, text_in(row, "cell"))
        base = [a + b for a, b in zip(base, parts, strict=True)]


# --- over the batch ---------------------------------------------------------------------------------------------------


BATCH = "batch (rows decoded together)"
THROUGHPUT = Sheet(
    "throughput-against-batch",
    "Throughput against batch",
    "New tokens per second of all rows together, decode only. The dashed line is the baseline in the same batch.",
    BATCH,
    "tokens per second",
)
SPEEDUP_BATCH = Sheet(
    "speedup-against-batch",
    "Speedup against batch",
    "Measured, with its 95 % interval. Dotted: the break-even batch, at which the costs measured in the largest batch "
    "make it 1 if all rows are full; where rows were idle (table), a short stream loses sooner.",
    BATCH,
    "speedup over the baseline",
)


def over_batches(rows: Sequence[Row]) -> list[Picture]:
    """Throughput and speedup over the batch; empty with fewer than two measured batches."""
    measured = [row for row in rows if math.isfinite(float_in(row, "speedup"))]
    groups = grouped(sorted(measured, key=lambda row: float_in(row, "batch")), lookahead)
    found = {f"K = {lookahead(group[0])}": group for group in groups}
    if len({row["batch"] for row in measured}) < 2:
        return []
    return [throughput_against_batch(found), speedup_against_batch(found)]


@contextmanager
def in_powers(sheet: Sheet, found: Lines, column: str, said: Callable[[int], str]) -> Iterator[Panel]:
    """A panel over a setting that is doubled, with a tick at each of its values."""
    with sheet.drawing() as panel:
        values = sorted({row[column] for row in every(found)})
        panel.axes.set_xscale("log", base=2)
        panel.axes.xaxis.set_major_locator(FixedLocator(values))
        panel.axes.xaxis.set_major_formatter(FixedFormatter(list(map(said, values))))
        panel.axes.xaxis.set_minor_locator(NullLocator())
        yield panel


def throughput_against_batch(found: Lines) -> Picture:
    """Tokens per second of both arms."""
    with in_powers(THROUGHPUT, found, "batch", str) as panel:
        for name, rows, own in looks(found):
            tip = "{name}, batch {batch:g}: {tokens_per_second:.1f} tokens/s"
            panel.line(rows, ("batch", "tokens_per_second"), tip, name, own)
        longest = max(found.values(), key=len)  # the baseline is the same for every K
        x, y = floats_in(longest, "batch"), floats_in(longest, "baseline_tokens_per_second")
        panel.axes.plot(x, y, label="baseline", **DASHED)
        panel.axes.set_ylim(bottom=0)
        panel.legend(3)
    return panel.picture


def speedup_against_batch(found: Lines) -> Picture:
    """The measured speedup with its interval, and the break-even batch by the costs of the largest batch."""
    with in_powers(SPEEDUP_BATCH, found, "batch", str) as panel:
        panel.axes.axhline(1, color=INK, linewidth=1)
        for name, rows, own in looks(found):
            tip = "{name}, batch {batch:g}: {speedup:.3f}×"
            panel.line(rows, ("batch", "speedup"), tip, name, own, bars={"capsize": 3})
            even = float_in(rows[-1], "break_even_batch")
            if math.isfinite(even) and even > 0:
                label = f"{name}: break-even at {even:.1f}"
                panel.axes.axvline(even, color=own["color"], linestyle=":", linewidth=1.3, label=label)
        panel.legend()
    return panel.picture


# --- over the length of the prompts -----------------------------------------------------------------------------------


CONTEXT = "tokens of a prompt"
MAP = Sheet(
    "speedup-by-context",
    "Speedup by context and K",
    "Measured speedup over the baseline at every length of the prompts and every lookahead: orange below 1, where "
    "speculation loses, violet above. Framed: the fastest lookahead of a length.",
    K,
    CONTEXT,
)
LINES = Sheet(
    "speedup-against-context",
    "Speedup against context",
    "Measured, with its 95 % interval. Above 1 it pays.",
    CONTEXT,
    "speedup over the baseline",
)
SHADES = "PuOr"  # orange to violet, distinguishable for colour-blind readers


def over_contexts(rows: Sequence[Row]) -> list[Picture]:
    """Figures over prompt length, with a map for several lookaheads; empty with fewer than two measured lengths."""
    measured = [row for row in rows if math.isfinite(float_in(row, "speedup"))]
    if len({row["context"] for row in measured}) < 2:
        return []
    found = {f"K = {lookahead(some[0])}": some for some in grouped(measured, lookahead)}
    with in_powers(LINES, found, "context", tokens_said) as panel:
        panel.axes.axhline(1, color=INK, linewidth=1)
        for name, some, own in looks(found):
            panel.line(some, ("context", "speedup"), context_tip, name, own, bars={"capsize": 3})
        panel.legend(3)
    return [*([speedup_map(measured)] if len(lookaheads(measured)) > 1 else []), panel.picture]


def speedup_map(rows: Sequence[Row]) -> Picture:
    """One tile per cell with its speedup; unmeasured tiles stay blank."""
    names, lengths = lookaheads(rows), sorted({row["context"] for row in rows})
    widest = max(abs(math.log(row["speedup"])) for row in rows) or 1.0
    norm = TwoSlopeNorm(1.0, math.exp(-widest) - 1e-9, math.exp(widest) + 1e-9)
    with MAP.drawing() as panel:
        axes = panel.axes
        axes.grid(False)
        axes.set(xlim=(-0.5, len(names) - 0.5), ylim=(len(lengths) - 0.5, -0.5))
        axes.set_xticks(range(len(names)), names)
        axes.set_yticks(range(len(lengths)), map(tokens_said, lengths))
        for same in grouped(rows, lambda row: row["context"]):
            top = max(row["speedup"] for row in same)
            for row in same:
                x, y = names.index(lookahead(row)), lengths.index(row["context"])
                shade = colormaps[SHADES](0.2 + 0.6 * float(norm(row["speedup"])))
                width = 1.8 if row["speedup"] == top else 0.0
                tile = Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, facecolor=shade, edgecolor=INK, linewidth=width)
                panel.picture.tip(axes.add_patch(tile), context_tip(row))
                axes.text(x, y, f"{row['speedup']:.2f}", ha="center", va="center", color=FIXED)
    return panel.picture


def context_tip(row: Row) -> str:
    low, value, high = bounds(row)
    return f"{tokens_said(row['context'])} tokens, K = {lookahead(row)}: {value:.3f}× [{low:.3f}, {high:.3f}]"
