"""Figures over the lookahead K: time, acceptance, and the speedup beside both predictions.

Time, acceptance and the mean round (plots_round.py) are the three panels of Chen et al. 2023 (arXiv 2302.01318),
Figure 1. Knows rows of results.csv; a function returns None where the rows do not hold what it would show.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from matplotlib.axes import Axes

from specbench.show.plots import (  # fmt: skip
    DASHED,
    INK,
    ORANGE,
    Picture,
    Sheet,
    float_in,
    floats_in,
    legend,
    line_with_intervals,
    look,
    marked_line,
    whole_numbers,
)
from specbench.wording import Row, clean

Lines = Mapping[str, Sequence[Row]]  # the rows of one method in the order of K, by its name
MILLISECONDS = 1000
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


def by_method(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The measured rows by method and schedule, each in the order of K."""
    found: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda r: float_in(r, "k")):
        if math.isfinite(float_in(row, "speedup")):
            found.setdefault(method(row), []).append(row)
    return found


def method(row: Row) -> str:
    """A row's method as a legend names it; its schedule where that is not constant."""
    schedule = row.get("schedule") or "constant"
    ceiling = f" {row.get('confidence')}" if schedule == "confidence" else ""
    return clean(row.get("method"), 40) + ("" if schedule == "constant" else clean(f" ({schedule}{ceiling})", 40))


def is_sweep(found: Lines) -> bool:
    """Whether there is a curve over K to be drawn."""
    return any(len(rows) > 1 for rows in found.values())


def ks(found: Lines) -> list[float]:
    return sorted({float_in(row, "k") for rows in found.values() for row in rows})


def looks(found: Lines) -> list[tuple[str, Sequence[Row], dict[str, Any]]]:
    """Every line with its colour and marker."""
    return [(name, rows, look(place)) for place, (name, rows) in enumerate(found.items())]


def prefix(name: str, found: Lines) -> str:
    """What the label of a line begins with where there are lines of several methods."""
    return "" if len(found) == 1 else f"{name}: "


@contextmanager
def over_k(sheet: Sheet, found: Lines) -> Iterator[tuple[Picture, Axes]]:
    with sheet.drawing() as (picture, axes):
        whole_numbers(axes, ks(found))
        yield picture, axes


def mean_of_all(found: Lines, column: str) -> float:
    """The mean of a column over all rows."""
    values = floats_in([row for rows in found.values() for row in rows], column)
    return sum(values) / len(values)


def time_against_k(found: Lines) -> Picture | None:
    """Milliseconds of a new token, of both arms."""
    if not is_sweep(found):
        return None
    with over_k(TIME, found) as (picture, axes):
        for name, rows, look in looks(found):
            x = floats_in(rows, "k")
            y = [MILLISECONDS / v for v in floats_in(rows, "tokens_per_second")]
            tips = [f"{name}, K = {a:g}: {b:.3f} ms" for a, b in zip(x, y, strict=True)]
            marked_line((picture, axes), x, y, tips, name, **look)
        every = [row for rows in found.values() for row in rows]
        usual = [MILLISECONDS / v for v in floats_in(every, "baseline_tokens_per_second")]
        axes.axhline(sum(usual) / len(usual), label="baseline", **DASHED)
        axes.set_ylim(bottom=0)
        legend(axes)
    return picture


def acceptance_against_k(found: Lines) -> Picture | None:
    """α, which should not depend on K, beside accepted ÷ drafted, which must."""
    if not is_sweep(found):
        return None
    with over_k(ACCEPTANCE, found) as (picture, axes):
        for name, rows, look in looks(found):
            tips = [f"{name}, K = {float_in(r, 'k'):g}: α = {float_in(r, 'alpha'):.3f}" for r in rows]
            label = f"{prefix(name, found)}α"
            line_with_intervals((picture, axes), rows, "k", "alpha", tips, label, look, capsize=2, elinewidth=1)
            share = floats_in(rows, "accepted_per_drafted")
            label = f"{prefix(name, found)}accepted ÷ drafted"
            axes.plot(floats_in(rows, "k"), share, linestyle=":", fillstyle="none", label=label, **look)
        axes.set_ylim(0, 1.02)
        legend(axes)
    return picture


def speedup_against_k(found: Lines) -> Picture | None:
    """The measured speedup with its interval, and what both formulas say."""
    if not is_sweep(found):
        return None
    with over_k(SPEEDUP, found) as (picture, axes):
        axes.axhline(1, color=INK, linewidth=1)
        for name, rows, look in looks(found):
            title, tips = prefix(name, found), list(map(speedup_tip, rows))
            line_with_intervals((picture, axes), rows, "k", "speedup", tips, f"{title}measured", look, capsize=3)
            predictions(axes, rows, title, (look["color"], look["color"]) if title else (ORANGE, INK))
        legend(axes, 3 if len(found) == 1 else 2)
    return picture


def predictions(axes: Axes, rows: Sequence[Row], title: str, colours: tuple[str, str]) -> None:
    """Both predictions as lines over K; the calibrated one in front, since the measured one often covers it."""
    x = floats_in(rows, "k")
    formula = floats_in(rows, "speedup_predicted")
    calibrated = floats_in(rows, "speedup_calibrated")
    axes.plot(x, formula, color=colours[0], linestyle="--", linewidth=1.3, label=f"{title}formula")
    axes.plot(x, calibrated, color=colours[1], linestyle=":", marker="s", markersize=9, fillstyle="none",
              markeredgewidth=0.9, linewidth=1.3, label=f"{title}calibrated", zorder=4)  # fmt: skip


def speedup_tip(row: Row) -> str:
    """A speedup in words, with its interval and the predictions."""
    value, low, high = (float_in(row, f"speedup{x}") for x in ("", "_low", "_high"))
    formula, calibrated = float_in(row, "speedup_predicted"), float_in(row, "speedup_calibrated")
    return (
        f"{method(row)}, K = {row.get('k')}: {value:.3f}× [{low:.3f}, {high:.3f}], "
        f"formula {formula:.3f}, calibrated {calibrated:.3f}"
    )
