"""Figures over the length of the prompts: the speedup as a map of length and lookahead, and as lines.

Knows rows of results.csv that differ in their context and their lookahead alone; must not know how a figure is written.
"""

import math
from collections.abc import Sequence

from matplotlib.colors import TwoSlopeNorm
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from specbench.show.cell_text import lookahead
from specbench.show.context_table import lookaheads
from specbench.show.report.plots import FIXED, INK, Picture, Sheet, float_in, legend, line_with_intervals
from specbench.show.report.plots_sweep import looks
from specbench.token_counts import said
from specbench.wording import Row, grouped

CONTEXT = "tokens of a prompt"
MAP = Sheet(
    "speedup-by-context",
    "Speedup by context and K",
    "Measured speedup over the baseline at every length of the prompts and every lookahead: orange below 1, where "
    "speculation loses, violet above. Framed: the fastest lookahead of a length.",
    "lookahead K (drafted tokens per round)",
    CONTEXT,
)
LINES = Sheet(
    "speedup-against-context",
    "Speedup against context",
    "Measured, with its 95 % interval. Above 1 it pays.",
    CONTEXT,
    "speedup over the baseline",
)
COLOURS = "PuOr"  # orange to violet, which readers without red or green tell apart


def figures(rows: Sequence[Row]) -> list[Picture]:
    """The map, where there are several lookaheads, and the lines; empty where fewer than two lengths have numbers."""
    measured = [row for row in rows if math.isfinite(float_in(row, "speedup"))]
    if len({row["context"] for row in measured}) < 2:
        return []
    return [*([speedup_map(measured)] if len(lookaheads(measured)) > 1 else []), speedup_lines(measured)]


def speedup_map(rows: Sequence[Row]) -> Picture:
    """One tile per cell with its speedup; what was not measured stays blank."""
    names, lengths = lookaheads(rows), sorted({row["context"] for row in rows})
    widest = max(abs(math.log(row["speedup"])) for row in rows) or 1.0
    norm = TwoSlopeNorm(1.0, math.exp(-widest) - 1e-9, math.exp(widest) + 1e-9)
    with MAP.drawing() as (picture, axes):
        from matplotlib import colormaps

        axes.grid(False)
        axes.set(xlim=(-0.5, len(names) - 0.5), ylim=(len(lengths) - 0.5, -0.5))
        axes.set_xticks(range(len(names)), names)
        axes.set_yticks(range(len(lengths)), map(said, lengths))
        for same in grouped(rows, lambda row: row["context"]):
            top = max(row["speedup"] for row in same)
            for row in same:
                x, y = names.index(lookahead(row)), lengths.index(row["context"])
                shade = colormaps[COLOURS](0.2 + 0.6 * float(norm(row["speedup"])))
                tile = Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, facecolor=shade, edgecolor=INK)
                tile.set_linewidth(1.8 if row["speedup"] == top else 0.0)
                picture.tip(axes.add_patch(tile), tip(row))
                axes.text(x, y, f"{row['speedup']:.2f}", ha="center", va="center", color=FIXED)
    return picture


def tip(row: Row) -> str:
    """A cell in words."""
    value, low, high = (float_in(row, f"speedup{bound}") for bound in ("", "_low", "_high"))
    return f"{said(row['context'])} tokens, K = {lookahead(row)}: {value:.3f}× [{low:.3f}, {high:.3f}]"


def speedup_lines(rows: Sequence[Row]) -> Picture:
    """A line per lookahead."""
    lengths = sorted({row["context"] for row in rows})
    found = {f"K = {lookahead(some[0])}": some for some in grouped(rows, lookahead)}
    with LINES.drawing() as (picture, axes):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(lengths))
        axes.xaxis.set_major_formatter(FixedFormatter(list(map(said, lengths))))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.axhline(1, color=INK, linewidth=1)
        for name, some, look in looks(found):
            tips = list(map(tip, some))
            line_with_intervals((picture, axes), some, "context", "speedup", tips, name, look, capsize=3)
        legend(axes, 3)
    return picture
