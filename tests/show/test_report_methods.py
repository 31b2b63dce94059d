"""The report on many methods and on two runs: every number is that of its cell, sorted, marked and named."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from matplotlib.patches import Rectangle

from specbench.presets import preset
from specbench.results.cells import Cell
from specbench.show.report import plots_methods, plots_positions, plots_sweep
from specbench.show.report.differences import Difference, Side, difference
from specbench.show.report.plots import COLOURS, MARKERS, Picture, look
from specbench.show.report.ranked import ranked
from tests.show.test_report_page import Page, check_harmless, page_of
from tests.support.many_methods import GB, LOSSY, METHODS, methods
from tests.support.measured import cell, sample
from tests.support.simulated_sweeps import sweep, write_run

CELLS = methods(7, prompts=3)
ROWS = [one.row() for one in CELLS]
FASTEST = sorted(ROWS, key=lambda row: -row["speedup"])


def drawn(picture: Picture | None) -> Picture:
    assert picture is not None
    return picture


def names_beside(picture: Picture) -> list[str]:
    return [label.get_text() for label in picture.figure.axes[0].get_yticklabels()]


def said(row: dict[str, Any]) -> str:
    return row["method"] + " (lossy)" * (row["method"] in LOSSY)


# --- tables -----------------------------------------------------------------------------------------------------------


def test_many_cells_are_lines_by_speedup_and_lossy_ones_are_marked() -> None:
    found = ranked(ROWS)
    assert found is not None
    assert [line.row["method"] for line in found.lines] == [row["method"] for row in FASTEST]
    assert [line.names for line in found.lines] == [[said(row)] for row in FASTEST]
    assert {line.unit for line in found.lines if line.lossy} == {name for name in LOSSY if name in METHODS[:7]}
    assert ranked(ROWS[:4]) is None


def test_one_method_keeps_the_order_of_k_and_hides_by_k() -> None:
    found = ranked([one.row() for one in sweep("code", prompts=2, ks=range(1, 7))])
    assert found is not None
    assert [line.unit for line in found.lines] == [f"K {k}" for k in range(1, 7)]


def test_a_mark_stands_where_its_numbers_say() -> None:
    found = ranked([*ROWS, {**ROWS[0], "cell": "failed", "status": "oom", "speedup": None, "method": "last"}])
    assert found is not None
    ends = [dict(part[2:].split(":") for part in line.mark.split(";")) for line in found.lines[:-1]]
    places = [float(one["at"].rstrip("%")) for one in ends]
    assert places == sorted(places, reverse=True)
    assert all(0 <= float(one[end].rstrip("%")) <= 100 for one in ends for end in ("low", "at", "high", "one"))
    assert found.lines[-1].mark == ""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("many"), CELLS)


@pytest.fixture(scope="module")
def page(run: Path) -> Page:
    return page_of(run)


def test_every_number_of_the_lines_is_that_of_the_csv(run: Path, page: Page) -> None:
    with (run / "results.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["cell"]: row for row in csv.DictReader(file)}
    table = Page(page.text[page.text.index('<table class="ranked">') :].split("</table>")[0])
    assert len(table.numbers) > 12 * len(CELLS)
    for number in table.numbers:
        assert number["value"] == rows[number["data-cell"]][number["data-column"]], number
    bytes_shown = {n["shown"] for n in table.numbers if n["data-column"] == "peak_memory_host"}
    assert bytes_shown == {f"{row['peak_memory_host'] / GB:.2f}" for row in ROWS}
    owners = [found["data-of"] for tag, found in table.tags if tag == "tr" and "data-of" in found]
    assert owners == [row["cell"] for row in FASTEST]
    check_harmless(page)


def test_tables_figures_and_lists_say_whose_each_part_is(page: Page) -> None:
    keys = {row["cell"] for row in ROWS}
    owned = [(tag, found["data-of"]) for tag, found in page.tags if "data-of" in found]
    for kind in ("tr", "td", "th", "g", "li"):
        assert keys <= {owner for tag, owner in owned if tag == kind}, kind


# --- figures ----------------------------------------------------------------------------------------------------------


def test_the_figure_by_speedup_names_the_fastest_first_and_owns_every_part() -> None:
    picture = drawn(plots_methods.ranking(ROWS))
    assert names_beside(picture) == list(map(said, FASTEST))
    low, value, high = (FASTEST[0][f"speedup{end}"] for end in ("_low", "", "_high"))
    mark = " (lossy)" * (FASTEST[0]["method"] in LOSSY)
    told = f"{FASTEST[0]['method']}, K = 3{mark}: {value:.3f}× [{low:.3f}, {high:.3f}]"
    assert next(iter(picture.tips.values())).startswith(told)
    assert set(picture.owners.values()) == {row["cell"] for row in ROWS}
    assert plots_methods.ranking(ROWS[:1]) is None


def test_an_interval_over_few_prompts_does_not_make_the_others_unreadable() -> None:
    wide = [{**row, "draws": draws, "speedup_high": 300.0} for draws, row in ((2, ROWS[0]), (20, ROWS[0]))]
    ends = [drawn(plots_methods.ranking([*ROWS[1:], row])).figure.axes[0].get_xlim()[1] for row in wide]
    assert ends[0] < 3 < 300 < ends[1]
    found = ranked([*ROWS[1:], wide[0]])
    assert found is not None
    assert "--high:100.0%" in next(line.mark for line in found.lines if line.row["draws"] == 2)


def test_throughput_latency_and_memory_have_a_bar_per_cell_and_one_of_the_baseline() -> None:
    found = {picture.name: picture for picture in plots_methods.quantities(ROWS)}
    assert list(found) == ["throughput", "latency-per-token", "latency-prefill", "memory-host"]
    for name, column, scale in (
        ("throughput", "tokens_per_second", 1), ("latency-per-token", "per_token_median_ms", 1),
        ("memory-host", "peak_memory_host", GB),
    ):  # fmt: skip
        bars = [bar for group in found[name].figure.axes[0].containers for bar in group]
        assert [bar.get_width() for bar in bars[1:]] == pytest.approx([row[column] / scale for row in FASTEST])
        assert bars[0].get_width() == pytest.approx(ROWS[0][f"baseline_{column}"] / scale)
    assert "95th percentile" in next(iter(found["latency-per-token"].tips.values()))


@pytest.mark.parametrize(("wait", "name"), [("ttft", "latency-first-token"), ("latency", "latency-answer")])
def test_waits_for_a_server_are_drawn_where_it_told_them(wait: str, name: str) -> None:
    told = {f"{wait}_median_ms": 20.0, f"{wait}_p95_ms": 30.0, f"baseline_{wait}_median_ms": 18.0}
    picture = next(one for one in plots_methods.quantities([{**row, **told} for row in ROWS]) if one.name == name)
    assert list(picture.tips.values())[:2] == [
        "baseline: 18 ms", f"{FASTEST[0]['method']}, K = 3: 20 ms, 95th percentile 30 ms"
    ]  # fmt: skip


def test_acceptance_by_position_of_many_cells_is_a_map_with_its_numbers() -> None:
    picture = drawn(plots_positions.acceptance_by_position(plots_sweep.by_method(ROWS), [90, 60, 30]))
    (axes,) = picture.figure.axes
    assert names_beside(picture) == list(map(said, FASTEST))
    tiles = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    assert len(tiles) == len(picture.tips) == 3 * len(ROWS)
    expected = [f"{row[f'acceptance_at_{i}']:.2f}" for row in FASTEST for i in (1, 2, 3)]
    assert [text.get_text() for text in axes.texts] == expected


def test_curves_of_many_methods_have_a_panel_each_on_one_scale() -> None:
    rows = [one.row() for one in methods(5, prompts=2, ks=(1, 2, 4))]
    picture = drawn(plots_sweep.speedup_against_k(plots_sweep.by_method(rows)))
    panels = [axes for axes in picture.figure.axes if axes.get_visible()]
    best = sorted({row["method"] for row in rows}, key=lambda m: -max(r["speedup"] for r in rows if r["method"] == m))
    assert [axes.get_title(loc="left") for axes in panels] == best
    assert len({axes.get_ylim() for axes in panels}) == 1
    for axes, name in zip(panels, best, strict=True):
        lines = {line.get_label(): list(line.get_ydata()) for line in axes.get_lines()}
        assert lines["formula"] == [row["speedup_predicted"] for row in rows if row["method"] == name]
        assert lines["calibrated"] == [row["speedup_calibrated"] for row in rows if row["method"] == name]


def test_no_two_of_many_lines_look_alike() -> None:
    looks = [tuple(look(place).values()) for place in range(len(COLOURS) * len(MARKERS))]
    assert len(set(looks)) == len(looks)


# --- two runs ---------------------------------------------------------------------------------------------------------


def side(name: str, cells: Sequence[Cell]) -> Side:
    return Side(name, {"versions": f"of {name}"}, cells, [one.row() for one in cells])


def line_of(found: Difference, cell_part: str, number: str) -> list[str]:
    return next([*line] for line in found.lines if cell_part in line[0] and line[1] == number)


def test_two_runs_stand_beside_each_other_with_every_change_and_its_test() -> None:
    old, new = (side(name, methods(3, 6, seed=seed)) for seed, name in enumerate(("old", "new")))
    found = difference(old, new)
    before, after = (next(r["speedup"] for r in s.rows if r["method"] == "block") for s in (old, new))
    line = line_of(found, " block ", "speedup")
    assert line[2:5] == [f"{before:.3f}×", f"{after:.3f}×", f"{100 * (after / before - 1):+.1f} %"]
    assert line[5].split(" (")[0] in {"ok", "better", "REGRESSION", "inconclusive"}
    assert {test[1] for test in found.findings} >= {"speedup", "alpha", "c", "v", "tokens_per_second"}
    assert (found.untested, list(found.missing)) == ("", [])
    assert list(found.apart) == [("versions", "of old", "of new")]
    assert len(drawn(found.picture).tips) == 2 * 3


def test_a_run_beside_itself_has_changed_in_nothing() -> None:
    found = difference(side("same", CELLS), side("same", CELLS))
    assert list(found.names) == ["same (first)", "same (second)"]
    assert {line[4] for line in found.lines} == {"+0.0 %"}


def test_runs_that_asked_something_else_are_shown_and_not_tested() -> None:
    found = difference(*(side(name, sweep("code", 3, (1, 3), draft=name)) for name in ("first", "second")))
    assert found.untested
    assert not found.findings
    assert ("draft", "first", "second") in found.apart
    assert line_of(found, "K 3", "alpha")[4] == "+0.0 %"


def test_cells_that_one_run_lacks_are_named() -> None:
    found = difference(side("old", sweep("code", 3, (1, 3))), side("new", sweep("code", 3, (3,))))
    assert [text.split(": only in ")[1] for text in found.missing] == ["BASE"]


@pytest.mark.slow
def test_the_page_on_two_runs_begins_with_what_changed(tmp_path: Path) -> None:
    runs = [write_run(tmp_path, methods(2, prompts=4, seed=seed), name) for seed, name in enumerate(("old", "new"))]
    page = page_of(*runs)
    check_harmless(page)
    heads = ["<h2>In short", "<h2>old and new", "<h2>old", "<h2>new"]
    assert [page.text.index(head) for head in heads] == sorted(page.text.index(head) for head in heads)
    assert "Speedup in both runs" in page.text


# --- presets ----------------------------------------------------------------------------------------------------------


def test_the_numbers_of_a_paper_stand_beside_the_measured_ones(tmp_path: Path) -> None:
    cells = [cell(sample("p1"), sample("p2"), dataset="humaneval", temperature=0.8, top_p=0.95)]
    page = page_of(write_run(tmp_path, cells, preset="chen2023-humaneval"))
    section = page.visible.split("Published and measured")[1]
    assert preset("chen2023-humaneval").paper in section
    assert "2.46" in section
    assert f"{cells[0].row()['speedup']:.3f}×" in section
    assert "Published and measured" not in page_of(write_run(tmp_path / "b", cells, preset="nobody's")).visible
