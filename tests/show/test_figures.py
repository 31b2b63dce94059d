"""Figures: none without numbers, few of many, intervals that leave them, and SVG that is fit for strangers' text.

What they show is in golden/.
"""

import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from matplotlib.patches import Rectangle

from specbench.show.report import differences, figure, figures_by_k, figures_methods, figures_why
from specbench.show.report.figure import COLOURS, MARKERS, Picture, look
from tests.show.scenes import RUNS
from tests.support.many_methods import GB, LOSSY, methods
from tests.support.simulated_sweeps import sweep

ROWS = [cell.row() for cell in sweep("code", prompts=8, ks=(1, 2, 4))]
LINES = figures_by_k.by_method(ROWS)
MANY = [one.row() for one in methods(7, prompts=3)]
FASTEST = sorted(MANY, key=lambda row: -row["speedup"])
BATCHES = [one.row() for one in RUNS["batches"]()[:6]]
HOSTILE = "</g><script>\x00\x1b]8;;x\x07\u202e$x_1$\udcff"  # shorter than what a figure cuts


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


def bars(picture: Picture) -> list[Rectangle]:
    return [bar for container in picture.figure.axes[0].containers for bar in container]


def names_beside(picture: Picture) -> list[str]:
    return [label.get_text() for label in picture.figure.axes[0].get_yticklabels()]


# --- the numbers of the rows ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draw", "lines"),
    [
        (figures_by_k.speedup_against_k,
         {"measured": "speedup", "formula": "speedup_predicted", "calibrated": "speedup_calibrated"}),
        (figures_by_k.acceptance_against_k, {"α": "alpha", "accepted ÷ drafted": "accepted_per_drafted"}),
    ],
)  # fmt: skip
def test_lines_over_k_have_the_numbers_of_the_rows(draw: Any, lines: dict[str, str]) -> None:
    picture = drawn(draw(LINES))
    assert {name: heights(picture, name) for name in lines} == {n: [row[c] for row in ROWS] for n, c in lines.items()}


def test_time_is_milliseconds_of_a_token_at_the_measured_pace_and_phases_are_stacked_to_the_mean_round() -> None:
    picture = drawn(figures_by_k.time_against_k(LINES))
    assert heights(picture, "chain") == [1000 / row["tokens_per_second"] for row in ROWS]
    assert heights(picture, "baseline")[0] == pytest.approx(1000 / ROWS[0]["baseline_tokens_per_second"])
    tops: dict[float, float] = {}
    for bar in bars(drawn(figures_by_k.round_against_k(LINES))):
        tops[bar.get_x()] = tops.get(bar.get_x(), 0.0) + bar.get_height()
    assert list(tops.values()) == pytest.approx([row["round_ms"] for row in ROWS])


def test_the_bars_of_the_waterfall_lead_from_the_formula_to_the_measurement() -> None:
    row, steps = ROWS[2], figures_why.steps_of([ROWS[2]])
    found = bars(drawn(figures_why.waterfall(row)))
    assert found[0].get_x() == row["speedup_ideal"]
    assert [bar.get_width() for bar in found] == [row[name] for _, name, whole in steps if not whole]
    levels = figures_why.levels(steps, [row[name] for _, name, _ in steps])
    assert (levels[1], levels[-2]) == pytest.approx((row["speedup_predicted"], row["speedup"]))


def test_throughput_and_memory_have_a_bar_per_cell_the_fastest_first_and_one_of_the_baseline() -> None:
    found = {picture.name: picture for picture in figures_methods.quantities(MANY)}
    assert list(found) == ["throughput", "latency-per-token", "latency-prefill", "memory-host"]
    for name, column, scale in (("throughput", "tokens_per_second", 1), ("memory-host", "peak_memory_host", GB)):
        widths = [bar.get_width() for bar in bars(found[name])]
        shown = [MANY[0][f"baseline_{column}"], *(row[column] for row in FASTEST)]
        assert widths == pytest.approx([value / scale for value in shown])


@pytest.mark.parametrize(("wait", "name"), [("ttft", "latency-first-token"), ("latency", "latency-answer")])
def test_waits_for_a_server_are_drawn_if_it_reports_them(wait: str, name: str) -> None:
    waits = {f"{wait}_median_ms": 20.0, f"{wait}_p95_ms": 30.0, f"baseline_{wait}_median_ms": 18.0}
    picture = next(one for one in figures_methods.quantities([{**row, **waits} for row in MANY]) if one.name == name)
    assert list(picture.tips.values())[:2] == [
        "baseline: 18 ms", f"{FASTEST[0]['method']}, K = 3: 20 ms, 95th percentile 30 ms"
    ]  # fmt: skip


def test_the_figure_by_speedup_names_the_fastest_first_and_owns_every_part() -> None:
    picture = drawn(figures_methods.ranking(MANY))
    assert names_beside(picture) == [row["method"] + " (lossy)" * (row["method"] in LOSSY) for row in FASTEST]
    assert set(picture.owners.values()) == {row["cell"] for row in MANY}
    assert figures_methods.ranking(MANY[:1]) is None


def test_curves_of_many_methods_have_a_panel_each_on_one_scale() -> None:
    rows = [one.row() for one in RUNS["methods over K"]()]
    picture = drawn(figures_by_k.speedup_against_k(figures_by_k.by_method(rows)))
    panels = [axes for axes in picture.figure.axes if axes.get_visible()]
    best = sorted({row["method"] for row in rows}, key=lambda m: -max(r["speedup"] for r in rows if r["method"] == m))
    assert [axes.get_title(loc="left") for axes in panels] == best
    assert len({axes.get_ylim() for axes in panels}) == 1


def test_several_methods_are_several_lines_and_schedules_are_apart() -> None:
    others = [{**row, "method": "token-match"} for row in ROWS]
    both = figures_by_k.by_method([*ROWS, *others, {**ROWS[0], "schedule": "auto"}])
    assert list(both) == ["chain", "token-match", "chain (auto)"]
    picture = drawn(figures_by_k.speedup_against_k(both))
    assert heights(picture, "token-match: formula") == [row["speedup_predicted"] for row in ROWS]
    assert figures_methods.phases(both) is not None


def test_break_even_is_drawn_where_the_largest_batch_says() -> None:
    even = {2: 9.0, 8: 5.0, 1: math.inf}
    rows = [row | {"break_even_batch": even[row["batch"]]} for row in BATCHES]
    for found, expected in ((rows, [5.0, 5.0]), ([row | {"break_even_batch": math.nan} for row in rows], [])):
        (axes, *_) = figures_by_k.over_batches(found)[1].figure.axes
        lines = [list(map(float, line.get_xdata())) for line in axes.get_lines() if line.get_linestyle() == ":"]
        assert [x[0] for x in lines if len(x) == 2 and x[0] == x[1]] == expected


def test_acceptance_by_position_of_many_cells_is_a_map_with_its_numbers() -> None:
    picture = drawn(figures_methods.acceptance_by_position(figures_by_k.by_method(MANY), [90, 60, 30]))
    tiles = [patch for patch in picture.figure.axes[0].patches if isinstance(patch, Rectangle)]
    assert len(tiles) == len(picture.tips) == 3 * len(MANY)
    expected = [f"{row[f'acceptance_at_{i}']:.2f}" for row in FASTEST for i in (1, 2, 3)]
    assert [text.get_text() for text in picture.figure.axes[0].texts] == expected


def test_outliers_are_marked_and_kept() -> None:
    samples = [{"turn": t, "speedup": 1.0 + t, "outlier": "severe" if t == 2 else "", "prompt": "p"} for t in range(4)]
    picture = drawn(figures_why.over_time(samples))
    assert sorted(picture.tips.values())[2] == "turn 2, p: 3.000×, severe outlier"
    assert len(picture.tips) == 4


# --- what is not drawn ------------------------------------------------------------------------------------------------


def kind(name: str, speedup: float | None = 1.5, prompts: int = 7) -> dict[str, Any]:
    """A line by category; one prompt has no interval."""
    low, high = (speedup - 0.1, speedup + 0.2) if prompts > 1 and speedup else (None, None)
    found = {"category": name, "prompts": prompts, "draws": prompts, "speedup": speedup}
    return {**found, "speedup_low": low, "speedup_high": high}


def test_nothing_is_drawn_of_a_category_with_one_prompt_or_without_a_time() -> None:
    single = kind("single", 9.0, 1)
    picture = drawn(figures_why.by_category({"chain": [kind("easy"), single, kind("hard", 0.9)]}))
    assert [tip.split(",")[0] for tip in picture.tips.values()] == ["easy", "hard"]
    for lines in ({}, {"chain": [kind("easy"), single]}, {"chain": [kind("a", None), kind("b", None)]}):
        assert figures_why.by_category(lines) is None
    tokens = {"tokens_per_round": 2.5, "tokens_per_round_low": 2.25, "tokens_per_round_high": 3.0}
    shared = {"chain": [{**kind(name, None), **tokens} for name in "ab"]}
    tips = drawn(figures_why.by_category(shared, "tokens_per_round")).tips
    assert "a, chain: 2.500 [2.250 – 3.000], 7 prompts" in tips.values()


def test_an_interval_over_few_prompts_does_not_make_the_others_unreadable() -> None:
    wide = {**kind("few", 1.5, 2), "speedup_low": 0.01, "speedup_high": 300.0}
    (axes,) = drawn(figures_why.by_category({"chain": [kind("easy"), kind("hard", 0.9), wide]})).figure.axes
    assert axes.get_xlim()[1] < 2
    many = [[*MANY[1:], {**MANY[0], "draws": draws, "speedup_high": 300.0}] for draws in (2, 20)]
    ends = [drawn(figures_methods.ranking(rows)).figure.axes[0].get_xlim()[1] for rows in many]
    assert ends[0] < 3 < 300 < ends[1]


def test_an_interval_that_goes_on_beyond_the_axis_has_an_arrow_there() -> None:
    rows = [
        {"method": "chain", "k": 4, "speedup": 1.1, "speedup_low": 0.2, "speedup_high": 9.0, "draws": 2},
        {"method": "block", "k": 4, "speedup": 1.2, "speedup_low": 1.1, "speedup_high": 1.3, "draws": 9},
    ]
    for picture in (
        figures_methods.intervals([("run", row["method"], row) for row in rows]),
        figures_methods.ranking(rows),
        differences.two_runs(("a", "b"), [(row["method"], (row, row)) for row in rows]),
    ):
        (axes, *_) = drawn(picture).figure.axes
        arrows = [line for line in axes.get_lines() if line.get_marker() in ("<", ">") and len(line.get_xdata())]
        assert {float(line.get_xdata()[0]) for line in arrows} == set(axes.get_xlim())
        assert len({float(line.get_ydata()[0]) for line in arrows}) == len(arrows) // 2


@pytest.mark.parametrize("missing", [{}, {"speedup": None}, {"speedup": math.nan}, {"speedup": ""}, {"speedup": "x"}])
def test_rows_without_numbers_give_no_figures(missing: dict[str, Any]) -> None:
    rows = [{"method": "chain", "k": k, **missing} for k in (1, 2)]
    lines = figures_by_k.by_method(rows)
    assert figures_by_k.against_k(lines) == []
    found = [figures_methods.phases(lines), figures_why.waterfall(rows[0])]
    found += [figures_methods.acceptance_by_position(lines, []), figures_why.over_time(rows)]
    assert [*found, figures_methods.intervals([("run", "label", row) for row in rows])] == [None] * 5


def test_a_single_k_has_no_curves_one_batch_no_series_and_many_curves_as_many_as_have_a_look() -> None:
    assert len(figures_by_k.against_k(LINES)) == 4
    assert figures_by_k.against_k(figures_by_k.by_method(ROWS[:1])) == []
    assert figures_by_k.over_batches([row for row in BATCHES if row["batch"] == 2]) == []
    assert figures_by_k.over_contexts([row | {"context": 1000} for row in BATCHES]) == []
    assert figures_why.cost_against_width([], "third") is None
    believed = RUNS["schedules"]()[1].belief_rows()
    curves = [(f"cell {n}", {"cell": n, "belief_ece": 0.1, "belief_ece_if_exact": 0.1}, believed) for n in range(9)]
    assert len(set(drawn(figures_why.reliability(curves)).owners.values())) == 6
    assert figures_why.reliability([]) is None


def test_no_two_of_many_lines_look_alike() -> None:
    looks = [tuple(look(place).values()) for place in range(len(COLOURS) * len(MARKERS))]
    assert len(set(looks)) == len(looks)


# --- SVG and PNG ------------------------------------------------------------------------------------------------------


def test_svg_is_the_same_for_the_same_rows_and_leaves_matplotlib_as_it_was() -> None:
    before = dict(matplotlib.rcParams)
    one, two = (figure.svg(drawn(figures_by_k.speedup_against_k(LINES)), "f1-") for _ in range(2))
    assert one == two
    assert dict(matplotlib.rcParams) == before


def test_svg_has_no_addresses_no_styles_of_its_own_and_ids_of_its_figure_alone() -> None:
    text = figure.svg(drawn(figures_by_k.round_against_k(LINES)), "f7-")
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
    root = ET.fromstring(figure.svg(drawn(figures_by_k.speedup_against_k(LINES)), "f1-"))
    assert root.get("role") == "img"
    assert root.get("aria-label", "").startswith("Speedup, measured and predicted. Measured: ")
    titles = [e.text or "" for e in root.iter("title")]
    assert len(titles) == len(ROWS)
    assert titles[0].startswith(f"chain, K = 1: {ROWS[0]['speedup']:.3f}× [")


def test_hostile_names_are_text_and_nothing_else() -> None:
    rows = [{**row, "method": HOSTILE} for row in ROWS]
    samples = [{"turn": t, "speedup": 1.0 + t, "prompt": HOSTILE} for t in range(3)]
    found = [
        figures_by_k.speedup_against_k(figures_by_k.by_method(rows)),
        figures_why.over_time(samples),
        figures_why.by_category({HOSTILE: [kind(HOSTILE), kind("other")], "chain": [kind("other")]}),
        figures_methods.intervals([(run, HOSTILE, ROWS[0]) for run in (HOSTILE, "other")]),
        figures_why.waterfall(rows[0]),
    ]
    for picture in found:
        text = figure.svg(drawn(picture), "f1-")
        root = ET.fromstring(text)
        assert not [e for e in root.iter() if e.tag in {"script", "a", "image", "foreignObject"}]
        assert all(c.isprintable() or c == "\n" for c in text)
        text.encode()
        assert "&lt;script&gt;\ufffd\ufffd]8;;x\ufffd\ufffd$x_1$\ufffd" in text


def test_a_png_is_written_without_its_time(tmp_path: Path) -> None:
    picture = drawn(figures_by_k.time_against_k(LINES))
    for name in ("a", "b"):
        figure.write(picture, tmp_path / name, "png")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert (tmp_path / "a").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_no_figure_uses_the_global_state_of_pyplot() -> None:
    code = "import sys, specbench.show.report.page; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0
