"""Figures of the report: they show the numbers of their rows, and their SVG is fit for a page of strangers' text."""

import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from matplotlib.patches import Rectangle

from specbench.show.report import (
    plots,
    plots_category,
    plots_methods,
    plots_pair,
    plots_positions,
    plots_prompts,
    plots_round,
    plots_svg,
    plots_sweep,
    plots_why,
)
from specbench.show.report.plots import Picture
from tests.support.simulated_sweeps import sweep

CELLS = sweep("code", prompts=8, ks=(1, 2, 4))
ROWS = [cell.row() for cell in CELLS]
LINES = plots_sweep.by_method(ROWS)
HOSTILE = "</g><script>\x00\x1b]8;;x\x07\u202e$x_1$\udcff"  # shorter than the names that a figure cuts


def drawn(picture: Picture | None) -> Picture:
    assert picture is not None
    return picture


def heights(picture: Picture, label: str) -> list[float]:
    """The y values of the line of this name."""
    (axes, *_) = picture.figure.axes
    (line,) = [x for x in axes.get_lines() if x.get_label() == label] or [
        c.lines[0] for c in axes.containers if c.get_label() == label
    ]
    return [float(v) for v in line.get_ydata()]


def column(name: str) -> list[float]:
    return [row[name] for row in ROWS]


# --- the numbers of the rows ------------------------------------------------------------------------------------------


def test_time_is_milliseconds_of_a_token_at_the_measured_pace() -> None:
    picture = drawn(plots_sweep.time_against_k(LINES))
    assert heights(picture, "chain") == [1000 / v for v in column("tokens_per_second")]
    assert heights(picture, "baseline")[0] == pytest.approx(1000 / ROWS[0]["baseline_tokens_per_second"])


def test_speedup_stands_beside_both_predictions() -> None:
    picture = drawn(plots_sweep.speedup_against_k(LINES))
    found = {name: heights(picture, name) for name in ("measured", "formula", "calibrated")}
    keys = {"measured": "speedup", "formula": "speedup_predicted", "calibrated": "speedup_calibrated"}
    assert found == {name: column(key) for name, key in keys.items()}


def test_alpha_stands_beside_accepted_per_drafted() -> None:
    picture = drawn(plots_sweep.acceptance_against_k(LINES))
    assert heights(picture, "α") == column("alpha")
    assert heights(picture, "accepted ÷ drafted") == column("accepted_per_drafted")


def bars(picture: Picture) -> list[Rectangle]:
    return [bar for container in picture.figure.axes[0].containers for bar in container]


def test_the_phases_are_stacked_to_the_mean_round() -> None:
    found = bars(drawn(plots_round.round_against_k(LINES)))
    tops: dict[float, float] = {}
    for bar in found:
        tops[bar.get_x()] = tops.get(bar.get_x(), 0.0) + bar.get_height()
    assert list(tops.values()) == pytest.approx(column("round_ms"))


def test_a_single_k_shows_its_round_and_no_curves() -> None:
    one = plots_sweep.by_method(ROWS[:1])
    curves = (plots_sweep.time_against_k, plots_sweep.speedup_against_k, plots_sweep.acceptance_against_k)
    assert [draw(one) for draw in (*curves, plots_round.round_against_k)] == [None] * 4
    widths = [bar.get_width() for bar in bars(drawn(plots_round.phases(one)))]
    assert widths == pytest.approx([ROWS[0][f"round_{phase}_ms"] for phase in ("draft", "verify", "accept", "host")])


def test_several_methods_are_several_lines() -> None:
    others = [{**row, "method": "token-match"} for row in ROWS]
    both = plots_sweep.by_method([*ROWS, *others, {**ROWS[0], "schedule": "auto"}])
    assert list(both) == ["chain", "token-match", "chain (auto)"]
    assert heights(drawn(plots_sweep.speedup_against_k(both)), "token-match: formula") == column("speedup_predicted")
    assert heights(drawn(plots_round.round_against_k(both)), "token-match") == column("round_ms")
    assert plots_round.phases(both) is not None


def test_acceptance_by_position_has_a_line_per_cell_and_counts() -> None:
    picture = drawn(plots_positions.acceptance_by_position(LINES, [1000, 500]))
    assert heights(picture, "K = 4") == [ROWS[2][f"acceptance_at_{i}"] for i in range(1, 5)]
    ticks = [label.get_text() for label in picture.figure.axes[0].get_xticklabels()]
    assert ticks == ["1\nn 1,000", "2\nn 500", "3", "4"]


def test_the_bars_of_the_waterfall_lead_from_the_formula_to_the_measurement() -> None:
    row = ROWS[2]
    found = bars(drawn(plots_why.waterfall(row)))
    assert found[0].get_x() == row["speedup_ideal"]
    assert [bar.get_width() for bar in found] == [
        row[name] for _, name, whole in plots_why.steps_of([row]) if not whole
    ]
    steps = plots_why.steps_of([row])
    levels = plots_why.levels(steps, [row[name] for _, name, _ in steps])
    assert levels[1] == pytest.approx(row["speedup_predicted"])
    assert levels[-2] == pytest.approx(row["speedup"])


def kind(name: str, speedup: float = 1.5, prompts: int = 7) -> dict[str, Any]:
    """A line by category; one prompt has no interval."""
    low, high = (speedup - 0.1, speedup + 0.2) if prompts > 1 else (math.nan, math.nan)
    found = {"category": name, "prompts": prompts, "draws": prompts, "speedup": speedup}
    return {**found, "speedup_low": low, "speedup_high": high}


def test_categories_stand_with_the_values_and_intervals_of_every_method() -> None:
    lines = {"chain": [kind("easy"), kind("hard", 0.9, 5)], "block": [kind("hard", 0.95), kind("easy", 1.6)]}
    picture = drawn(plots_category.by_category(lines))
    (axes,) = picture.figure.axes
    segments = [s for c in axes.containers for s in c.lines[2][0].get_segments()]
    assert sorted((a[0], b[0]) for a, b in segments) == [(0.8, 1.1), (0.85, 1.15), (1.4, 1.7), (1.5, 1.8)]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["easy (7)", "hard (7)"]
    assert "easy, chain: 1.500× [1.400 – 1.700], 7 prompts" in picture.tips.values()
    assert len(picture.tips) == 4


def test_nothing_is_drawn_of_a_category_with_one_prompt() -> None:
    lines = {"chain": [kind("easy"), kind("single", 9.0, 1), kind("hard", 0.9)]}
    picture = drawn(plots_category.by_category(lines))
    assert len(picture.tips) == 2
    assert not [tip for tip in picture.tips.values() if "single" in tip]
    assert plots_category.by_category({"chain": [kind("easy"), kind("single", 1.2, 1)]}) is None


def test_categories_without_times_give_no_figure() -> None:
    assert plots_category.by_category({}) is None
    blank = {"speedup": None, "speedup_low": None, "speedup_high": None}
    assert plots_category.by_category({"chain": [{**kind(name), **blank} for name in "ab"]}) is None


def test_tokens_per_round_are_drawn_where_prompts_shared_their_time() -> None:
    tokens = {"tokens_per_round": 2.5, "tokens_per_round_low": 2.25, "tokens_per_round_high": 3.0}
    lines = {"chain": [{**kind(name), **tokens, "speedup": None} for name in "ab"]}
    picture = drawn(plots_category.by_category(lines, "tokens_per_round"))
    assert "a, chain: 2.500 [2.250 – 3.000], 7 prompts" in picture.tips.values()
    assert plots_category.by_category(lines) is None


def test_an_interval_over_few_prompts_does_not_make_the_others_unreadable() -> None:
    wide = {**kind("few", 1.5, 2), "speedup_low": 0.01, "speedup_high": 300.0}
    (axes,) = drawn(plots_category.by_category({"chain": [kind("easy"), kind("hard", 0.9), wide]})).figure.axes
    assert axes.get_xlim()[1] < 2


def test_outliers_are_marked_and_kept() -> None:
    samples = [{"turn": t, "speedup": 1.0 + t, "outlier": "severe" if t == 2 else "", "prompt": "p"} for t in range(4)]
    picture = drawn(plots_prompts.over_time(samples))
    assert sorted(picture.tips.values())[2] == "turn 2, p: 3.000×, severe outlier"
    assert len(picture.tips) == 4


def test_cost_against_width_is_of_one_model() -> None:
    rows = [{"model": m, "context": "64", "width": str(w), "milliseconds": str(w * c), "v": str(w)}
            for m, c in (("target", 2), ("draft", 1)) for w in (1, 2)]  # fmt: skip
    assert heights(drawn(plots_why.cost_against_width(rows, "draft")), "context 64") == [1, 2]
    assert "one forward pass" in drawn(plots_why.cost_against_width(rows, "target")).caption
    assert plots_why.cost_against_width(rows, "third") is None


def test_an_interval_that_goes_on_beyond_the_axis_has_an_arrow_there() -> None:
    rows = [
        {"method": "chain", "k": 4, "speedup": 1.1, "speedup_low": 0.2, "speedup_high": 9.0, "draws": 2},
        {"method": "block", "k": 4, "speedup": 1.2, "speedup_low": 1.1, "speedup_high": 1.3, "draws": 9},
    ]
    for picture in (
        plots_prompts.intervals([("run", row["method"], row) for row in rows]),
        plots_methods.ranking(rows),
        plots_pair.two_runs(("a", "b"), [(row["method"], (row, row)) for row in rows]),
    ):
        (axes, *_) = drawn(picture).figure.axes
        arrows = [line for line in axes.get_lines() if line.get_marker() in ("<", ">") and len(line.get_xdata())]
        assert {float(line.get_xdata()[0]) for line in arrows} == set(axes.get_xlim())
        assert len({float(line.get_ydata()[0]) for line in arrows}) == len(arrows) // 2


@pytest.mark.parametrize("missing", [{}, {"speedup": None}, {"speedup": math.nan}, {"speedup": ""}, {"speedup": "x"}])
def test_rows_without_numbers_give_no_figures(missing: dict[str, Any]) -> None:
    rows = [{"method": "chain", "k": k, **missing} for k in (1, 2)]
    lines = plots_sweep.by_method(rows)
    found = [plots_sweep.time_against_k(lines), plots_round.phases(lines), plots_why.waterfall(rows[0])]
    found += [plots_positions.acceptance_by_position(lines, []), plots_prompts.over_time(rows)]
    assert [*found, plots_prompts.intervals([("run", "label", row) for row in rows])] == [None] * 6


# --- SVG and PNG ------------------------------------------------------------------------------------------------------


def test_svg_is_the_same_for_the_same_rows_and_leaves_matplotlib_as_it_was() -> None:
    before = dict(matplotlib.rcParams)
    one, two = (plots_svg.svg(drawn(plots_sweep.speedup_against_k(LINES)), "f1-") for _ in range(2))
    assert one == two
    assert dict(matplotlib.rcParams) == before


def test_svg_has_no_addresses_no_styles_of_its_own_and_ids_of_its_figure_alone() -> None:
    text = plots_svg.svg(drawn(plots_round.round_against_k(LINES)), "f7-")
    root = ET.fromstring(text)
    assert "://" not in text
    shapes = {"svg", "g", "defs", "path", "use", "text", "title", "clipPath", "rect", "pattern"}
    assert {e.tag for e in root.iter()} <= shapes
    ids = [e.get("id", "") for e in root.iter() if e.get("id")]
    assert len(set(ids)) == len(ids) > 0
    assert all(i.startswith("f7-") for i in ids)
    linked = re.findall(r'(?:href="|url\()#([^")]+)', text)
    assert set(linked) == set(ids)


def test_svg_says_what_it_shows_and_every_point_its_number() -> None:
    root = ET.fromstring(plots_svg.svg(drawn(plots_sweep.speedup_against_k(LINES)), "f1-"))
    assert root.get("role") == "img"
    assert root.get("aria-label", "").startswith("Speedup, measured and predicted. Measured: ")
    titles = [e.text or "" for e in root.iter("title")]
    assert len(titles) == len(ROWS)
    assert titles[0].startswith(f"chain, K = 1: {ROWS[0]['speedup']:.3f}× [")


def test_hostile_names_are_text_and_nothing_else() -> None:
    rows = [{**row, "method": HOSTILE} for row in ROWS]
    samples = [{"turn": t, "speedup": 1.0 + t, "prompt": HOSTILE} for t in range(3)]
    found = [
        plots_sweep.speedup_against_k(plots_sweep.by_method(rows)),
        plots_prompts.over_time(samples),
        plots_category.by_category({HOSTILE: [kind(HOSTILE), kind("other")], "chain": [kind("other")]}),
        plots_prompts.intervals([(run, HOSTILE, ROWS[0]) for run in (HOSTILE, "other")]),
        plots_why.waterfall(rows[0]),
    ]
    for picture in found:
        text = plots_svg.svg(drawn(picture), "f1-")
        root = ET.fromstring(text)
        assert not [e for e in root.iter() if e.tag in {"script", "a", "image", "foreignObject"}]
        assert all(c.isprintable() or c == "\n" for c in text)
        text.encode()
        assert "&lt;script&gt;\ufffd\ufffd]8;;x\ufffd\ufffd$x_1$\ufffd" in text


def test_a_png_is_written_without_its_time(tmp_path: Path) -> None:
    picture = drawn(plots_sweep.time_against_k(LINES))
    for name in ("a", "b"):
        plots.write_png(picture, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert (tmp_path / "a").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_no_figure_uses_the_global_state_of_pyplot() -> None:
    import subprocess
    import sys

    code = "import sys, specbench.show.report.page; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0
