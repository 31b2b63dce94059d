"""Figures over the lookahead K: time, acceptance, and the speedup beside both predictions.

Time, acceptance and the mean round (plots_round.py) are the three panels of Chen et al. 2023 (arXiv 2302.01318),
Figure 1. Knows rows of results.csv; a function returns None where the rows do not hold what it would show.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

from specbench.show.report.plots import (  # fmt: skip
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
MOST_LINES = 3  # methods of one panel; of more, each has one of its own
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


@dataclass(frozen=True)
class Curve:
    """A method over K: its rows, its axes with its look there, what a line of it is called, and what the labels of
    several lines begin with."""

    name: str
    label: str
    prefix: str
    rows: Sequence[Row]
    look: Mapping[str, Any]
    axes: Axes


def by_method(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The measured rows by method and schedule, each in the order of K, the fastest method first."""
    found: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda r: float_in(r, "k")):
        if math.isfinite(float_in(row, "speedup")):
            found.setdefault(method(row), []).append(row)
    return dict(sorted(found.items(), key=lambda one: -max(floats_in(one[1], "speedup"))))


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


@contextmanager
def over_k(sheet: Sheet, found: Lines) -> Iterator[tuple[Picture, list[Curve]]]:
    """The picture and a curve of every method: on one panel, or on one each where there are many methods."""
    if len(found) <= MOST_LINES:
        with sheet.drawing() as (picture, axes):
            whole_numbers(axes, ks(found))
            several = len(found) > 1
            yield picture, [Curve(n, n, f"{n}: " * several, rows, own, axes) for n, rows, own in looks(found)]
        return
    shown = dict([(name, rows) for name, rows in found.items() if len(rows) > 1][:MOST_PANELS])
    with sheet.panels(list(shown)) as (picture, panels):
        whole_numbers(panels[0], ks(shown))
        for name, axes in zip(shown, panels, strict=True):
            picture.own(name, [axes])
        yield (
            picture,
            [
                Curve(n, "method", "", rows, look(0), axes)
                for (n, rows), axes in zip(shown.items(), panels, strict=True)
            ],
        )


def across(curves: Sequence[Curve], y: float, **line: Any) -> None:
    """A horizontal line on every panel."""
    for axes in dict.fromkeys(curve.axes for curve in curves):
        axes.axhline(y, **line)


def mean_of_all(found: Lines, column: str) -> float:
    """The mean of a column over all rows."""
    values = floats_in([row for rows in found.values() for row in rows], column)
    return sum(values) / len(values)


def time_against_k(found: Lines) -> Picture | None:
    """Milliseconds of a new token, of both arms."""
    if not is_sweep(found):
        return None
    with over_k(TIME, found) as (picture, curves):
        for one in curves:
            x = floats_in(one.rows, "k")
            y = [MILLISECONDS / v for v in floats_in(one.rows, "tokens_per_second")]
            tips = [f"{one.name}, K = {a:g}: {b:.3f} ms" for a, b in zip(x, y, strict=True)]
            marked_line((picture, one.axes), x, y, tips, one.label, one.name, **one.look)
        every = [row for rows in found.values() for row in rows]
        usual = [MILLISECONDS / v for v in floats_in(every, "baseline_tokens_per_second")]
        across(curves, sum(usual) / len(usual), label="baseline", **DASHED)
        curves[0].axes.set_ylim(bottom=0)
        legend(curves[0].axes)
    return picture


def acceptance_against_k(found: Lines) -> Picture | None:
    """α, which should not depend on K, beside accepted ÷ drafted, which must."""
    if not is_sweep(found):
        return None
    with over_k(ACCEPTANCE, found) as (picture, curves):
        for one in curves:
            tips = [f"{one.name}, K = {float_in(r, 'k'):g}: α = {float_in(r, 'alpha'):.3f}" for r in one.rows]
            drawing, label = (picture, one.axes), f"{one.prefix}α"
            line_with_intervals(
                drawing, one.rows, "k", "alpha", tips, label, one.look, owner=one.name, capsize=2, elinewidth=1
            )
            share = floats_in(one.rows, "accepted_per_drafted")
            label = f"{one.prefix}accepted ÷ drafted"
            dotted: dict[str, Any] = {"linestyle": ":", "fillstyle": "none", "label": label}
            picture.own(one.name, one.axes.plot(floats_in(one.rows, "k"), share, **dotted, **one.look))
        curves[0].axes.set_ylim(0, 1.02)
        legend(curves[0].axes)
    return picture


def speedup_against_k(found: Lines) -> Picture | None:
    """The measured speedup with its interval, and what both formulas say."""
    if not is_sweep(found):
        return None
    with over_k(SPEEDUP, found) as (picture, curves):
        across(curves, 1, color=INK, linewidth=1)
        for one in curves:
            drawing, tips, label = (picture, one.axes), list(map(speedup_tip, one.rows)), f"{one.prefix}measured"
            line_with_intervals(drawing, one.rows, "k", "speedup", tips, label, one.look, owner=one.name, capsize=3)
            predictions(picture, one)
        legend(curves[0].axes, 2 if len(curves) > 1 and curves[0].prefix else 3)
    return picture


def predictions(picture: Picture, one: Curve) -> None:
    """Both predictions as lines over K; the calibrated one in front, since the measured one often covers it."""
    x = floats_in(one.rows, "k")
    dashed, dotted = (one.look["color"], one.look["color"]) if one.prefix else (ORANGE, INK)
    formula = one.axes.plot(
        x, floats_in(one.rows, "speedup_predicted"), color=dashed, linestyle="--", linewidth=1.3,
        label=f"{one.prefix}formula",
    )  # fmt: skip
    calibrated = one.axes.plot(
        x, floats_in(one.rows, "speedup_calibrated"), color=dotted, linestyle=":", marker="s", markersize=9,
        fillstyle="none", markeredgewidth=0.9, linewidth=1.3, label=f"{one.prefix}calibrated", zorder=4,
    )  # fmt: skip
    picture.own(one.name, [*formula, *calibrated])


def speedup_tip(row: Row) -> str:
    """A speedup in words, with its interval and the predictions."""
    value, low, high = (float_in(row, f"speedup{x}") for x in ("", "_low", "_high"))
    formula, calibrated = float_in(row, "speedup_predicted"), float_in(row, "speedup_calibrated")
    return (
        f"{method(row)}, K = {row.get('k')}: {value:.3f}× [{low:.3f}, {high:.3f}], "
        f"formula {formula:.3f}, calibrated {calibrated:.3f}"
    )
