"""What a design shows: the table, the two figures and the section of the report hold the numbers of its rows."""

import csv
import io
import json
from pathlib import Path

import pytest

from specbench.errors import UsageError
from specbench.results.named_runs import write_csv
from specbench.show.checks import line, print_design
from specbench.show.report import figures_design
from specbench.show.report.figure import Picture
from specbench.show.report.page import write_report
from tests.show.test_report_page import HOSTILE, Page, check_harmless
from tests.support.designs import decoded, found
from tests.support.simulated_sweeps import description

PLAIN = found()
FINAL = PLAIN.rungs[-1][0].name
ROWS = found({FINAL: decoded(FINAL, (4, 2, 4))}).rows


def drawn(picture: Picture | None) -> Picture:
    assert picture is not None
    return picture


def test_the_table_has_a_line_per_shape_for_readers_and_every_column_for_programs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_design(ROWS, "csv")
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["name"] for row in rows] == [row["name"] for row in ROWS]
    assert {"latency_low_ms", "c", "tokens_per_round", "speedup", "on_front", "reached", "heads"} <= rows[0].keys()
    assert [line(row) for row in rows] == [line(row) for row in ROWS]  # a file that is read back says the same
    for style in ("table", "md"):
        print_design(ROWS, style)  # type: ignore[arg-type]
        shown = capsys.readouterr().out
        assert all(row["name"] in shown for row in ROWS)
        assert "dropped after" in shown


def test_numbers_have_what_they_lie_between_and_blanks_are_dashes() -> None:
    measured, *_, dropped = ROWS
    one, other = line(measured), line(dropped)
    assert one["latency_ms"].count("[") == 1
    assert (one["measured"], other["measured"]) == (f"{measured['tokens_per_second']:.1f}", "–")
    assert other["speedup"] == "–"
    assert {one["front"], other["front"]} <= {"yes", "no"}


def test_latency_is_drawn_by_depth_a_line_for_every_budget() -> None:
    picture = drawn(figures_design.latency_against_depth(ROWS))
    for budget, label in ((400_000, "0.4 M parameters"), (1_000_000, "1 M parameters")):
        some = sorted((row["layers"], row["latency_ms"]) for row in ROWS if row["budget"] == budget)
        (axes,) = picture.figure.axes
        (container,) = [one for one in axes.containers if one.get_label() == label]
        assert container.lines[0].get_xydata().tolist() == [[layers, ms] for layers, ms in some]
    assert any("ms per token" in text for text in picture.tips.values())


def test_tokens_are_drawn_by_cost_and_the_front_is_ringed() -> None:
    picture = drawn(figures_design.tokens_against_c(ROWS))
    (axes,) = picture.figure.axes
    by_label = {one.get_label(): one.get_xydata().tolist() for one in axes.get_lines()}
    front = sorted([row["c"], row["compared_tokens_per_round"]] for row in ROWS if row["on_front"])
    assert by_label["Pareto front"] == front
    assert [tokens for _, tokens in front] == sorted(tokens for _, tokens in front)  # dearer ones are accepted more
    assert 0 < len(front) < len(ROWS)
    assert axes.get_ylabel() == f"tokens per round at K = {ROWS[0]['compared_k']}"


def test_nothing_is_drawn_of_nothing() -> None:
    assert figures_design.figures([]) == []
    untrained = [{**row, "compared_tokens_per_round": None} for row in ROWS]
    assert [picture.name for picture in figures_design.figures(untrained)] == ["latency-against-depth"]


def folder_of(parent: Path, rows: list[dict[str, object]], findings: list[str]) -> Path:
    """A design's folder as the command writes it."""
    parent.mkdir(exist_ok=True)
    write_csv(parent / "design.csv", rows)
    (parent / "design.json").write_text(json.dumps({**PLAIN.document, "findings": findings}, default=str))
    (parent / "run.json").write_text(json.dumps(description()))
    return parent


def test_the_report_has_a_section_with_shapes_findings_fits_and_figures(tmp_path: Path) -> None:
    path = folder_of(tmp_path / "design", ROWS, ["train on the wide one"])
    page = Page(write_report([path], svg=True).read_text(encoding="utf-8"))
    check_harmless(page)
    assert "train on the wide one" in page.visible
    assert all(row["name"] in page.visible for row in ROWS)
    assert "Latency, fitted" in page.visible
    assert "Pareto front" in page.visible
    stems = ("design-latency-against-depth", "design-tokens-against-c")
    files = sorted(file.name for file in (path / "plots").iterdir())
    assert files == [f"{stem}.{form}" for stem in stems for form in ("png", "svg")]
    assert "<svg" in (path / "plots" / files[1]).read_text()


def test_strangers_text_in_a_design_is_shown_and_does_nothing(tmp_path: Path) -> None:
    rows = [{**row, "name": HOSTILE[n % len(HOSTILE)], "reached": HOSTILE[n]} for n, row in enumerate(ROWS)]
    path = folder_of(tmp_path / "design", rows, list(HOSTILE))
    check_harmless(Page(write_report([path], png=False).read_text(encoding="utf-8")))


@pytest.mark.parametrize("content", ["", "name,budget\nx,1\n", "name\n" * 3])
def test_a_damaged_design_is_told_in_one_line(content: str, tmp_path: Path) -> None:
    (tmp_path / "design.csv").write_text(content)
    with pytest.raises(UsageError, match=r"design\.csv"):
        write_report([tmp_path])
