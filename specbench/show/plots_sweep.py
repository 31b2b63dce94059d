"""Figures over the lookahead K: time, acceptance, and the speedup beside both predictions.

Time, acceptance and the mean round (plots_round.py) are the three panels of Chen et al. 2023 (arXiv 2302.01318),
Figure 1. Knows rows of results.csv; a function returns None where the rows do not hold what it would show.
"""

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from specbench.show.plots import (  # fmt: skip
    COLOURS,
    INK,
    MARKERS,
    ORANGE,
    Picture,
    blank,
    errors,
    float_in,
    floats_in,
    legend,
    points,
    style,
    whole_numbers,
)
from specbench.wording import Row, clean

Lines = Mapping[str, Sequence[Row]]  # the rows of one method in the order of K, by its name
TOKENS = 128  # new tokens whose time Chen et al. show


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


def looks(found: Lines) -> list[tuple[str, Sequence[Row], str, str]]:
    """Every line with its colour and marker."""
    return [
        (name, rows, COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)])
        for i, (name, rows) in enumerate(found.items())
    ]


def over_k(name: str, title: str, caption: str, y: str, found: Lines) -> tuple[Picture, Axes]:
    picture, axes = blank(name, title, caption, "lookahead K (drafted tokens per round)", y)
    whole_numbers(axes, ks(found))
    return picture, axes


def time_against_k(found: Lines) -> Picture | None:
    """Seconds for 128 new tokens, of both arms."""
    if not is_sweep(found):
        return None
    with style():
        picture, axes = over_k(
            "time-against-k",
            f"Time for {TOKENS} tokens",
            f"{TOKENS} ÷ tokens per second, decode only; lower is faster. The dashed line is the baseline.",
            "seconds",
            found,
        )
        for name, rows, colour, marker in looks(found):
            x, y = floats_in(rows, "k"), [TOKENS / v for v in floats_in(rows, "tokens_per_second")]
            axes.plot(x, y, color=colour, marker=marker, label=name)
            tips = [f"{name}, K = {a:g}: {b:.3f} s" for a, b in zip(x, y, strict=True)]
            points(picture, axes, x, y, tips, color=colour, marker=marker)
        every = [row for rows in found.values() for row in rows]
        level = [TOKENS / v for v in floats_in(every, "baseline_tokens_per_second")]
        axes.axhline(sum(level) / len(level), color=INK, linestyle="--", linewidth=1.2, label="baseline")
        axes.set_ylim(bottom=0)
        legend(axes)
    return picture


def acceptance_against_k(found: Lines) -> Picture | None:
    """α, which should not depend on K, beside accepted ÷ drafted, which must."""
    if not is_sweep(found):
        return None
    with style():
        picture, axes = over_k(
            "acceptance-against-k",
            "Acceptance against K",
            "α (solid, with its 95 % interval) is the chance that a tested token is accepted. Accepted ÷ drafted "
            "(dotted), which many tools call the acceptance rate, falls with K by definition.",
            "share",
            found,
        )
        for name, rows, colour, marker in looks(found):
            title = "" if len(found) == 1 else f"{name}: "
            x, alpha = floats_in(rows, "k"), floats_in(rows, "alpha")
            bars = errors(alpha, floats_in(rows, "alpha_low"), floats_in(rows, "alpha_high"))
            axes.errorbar(x, alpha, yerr=bars, color=colour, capsize=2, elinewidth=1, marker=marker, label=f"{title}α")
            points(picture, axes, x, alpha, [f"{name}, K = {a:g}: α = {b:.3f}" for a, b in zip(x, alpha, strict=True)],
                   color=colour, marker=marker)  # fmt: skip
            share = floats_in(rows, "accepted_per_drafted")
            axes.plot(x, share, color=colour, linestyle=":", marker=marker, fillstyle="none",
                      label=f"{title}accepted ÷ drafted")  # fmt: skip
        axes.set_ylim(0, 1.02)
        legend(axes)
    return picture


def speedup_against_k(found: Lines) -> Picture | None:
    """The measured speedup with its interval, and what both formulas say."""
    if not is_sweep(found):
        return None
    with style():
        picture, axes = over_k(
            "speedup-against-k",
            "Speedup, measured and predicted",
            "Measured: total baseline ÷ total method decode time, with its 95 % interval. Formula (dashed): "
            "(1−α^(K+1)) / ((1−α)(Kc+1)). Calibrated (dotted): Σ Π αᵢ / (Kc + v + overhead). Above 1 it pays.",
            "speedup over the baseline",
            found,
        )
        axes.axhline(1, color=INK, linewidth=1)
        for name, rows, colour, marker in looks(found):
            title = "" if len(found) == 1 else f"{name}: "
            x, y = floats_in(rows, "k"), floats_in(rows, "speedup")
            bars = errors(y, floats_in(rows, "speedup_low"), floats_in(rows, "speedup_high"))
            axes.errorbar(x, y, yerr=bars, color=colour, marker=marker, capsize=3, label=f"{title}measured")
            points(picture, axes, x, y, [speedup_tip(row) for row in rows], color=colour, marker=marker)
            predictions(axes, x, rows, title, (colour, colour) if title else (ORANGE, INK))
        legend(axes, 3 if len(found) == 1 else 2)
    return picture


def predictions(axes: Axes, x: Sequence[float], rows: Sequence[Row], title: str, colours: tuple[str, str]) -> None:
    """Both predictions as lines over K; the calibrated one in front, for it often hides behind the measured one."""
    formula, calibrated = floats_in(rows, "speedup_predicted"), floats_in(rows, "speedup_calibrated")
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
