"""What `compare` prints and writes, also where names are hostile; and what it says of what is no run."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support.compared_runs import cell, decoded, folder
from tests.support.frontdoor import Command, Outcome

pytestmark = pytest.mark.usefixtures("made_runs")


@pytest.fixture(autouse=True)
def _no_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


@pytest.fixture
def slow(command: Command, tmp_path: Path) -> tuple[Path, Path]:
    """A run, and one that is slower, on another machine."""
    other = cell(decoded(slower=1.1, seed=1), fingerprint="0" * 12)
    return folder(tmp_path / "base", cell()), folder(tmp_path / "new", other)


def as_xml(found: Outcome) -> ElementTree.Element:
    return ElementTree.fromstring(found.out.split("\n", 1)[1])


def test_the_table_shows_every_row_and_what_would_have_been_seen_and_quiet_prints_nothing_but_the_error(
    command: Command, slow: tuple[Path, Path]
) -> None:
    found = command("compare", *slow)
    assert found.code == 3
    assert found.out.count("REGRESSION") == 4, "three rows and the summary"
    assert "smallest worsening" in found.out
    assert "not comparable" in found.out
    command("compare", "-q", *slow).refused("regressed", code=3)


def test_markdown_is_a_table_and_json_has_the_exit_code(command: Command, slow: tuple[Path, Path]) -> None:
    lines = command("compare", "--format", "md", *slow).out.splitlines()
    drawn = [line for line in lines if line.startswith("|")]
    assert len(drawn) == 2 + 7
    assert {line.count("|") for line in drawn} == {9}
    assert any("**REGRESSION**" in line for line in drawn)
    content = json.loads(command("compare", "--format", "json", *slow).out)
    assert content["exit_code"] == 3
    assert {"cell", "tier", "metric", "outcome", "change", "low", "high", "p", "smallest"} <= set(content["rows"][0])


def test_junit_has_a_failure_per_regression(command: Command, slow: tuple[Path, Path]) -> None:
    suite = as_xml(command("compare", "--format", "junit", *slow))[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("7", "3", "2")
    assert len(suite.findall("testcase/failure")) == 3
    assert len(suite.findall("testcase/skipped")) == 2
    assert "change -9" in str(suite.findtext("testcase/failure"))


def test_history_holds_the_numbers_of_the_new_run(command: Command, slow: tuple[Path, Path]) -> None:
    points = json.loads(command("compare", "--format", "gha", *slow).out)
    assert [point["name"] for point in points] == [
        f"code chain K4 {metric}" for metric in ("speedup", "tokens_per_second", "alpha")
    ]
    assert points[0]["range"].startswith("± ")
    assert points[0]["extra"] == "prompts 24"
    assert points[2]["value"] == pytest.approx(0.6)


def test_files_are_written_beside_the_table(
    command: Command, slow: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary, xml, points = tmp_path / "summary.md", tmp_path / "junit.xml", tmp_path / "points.json"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    assert command("compare", "-q", "--junit", xml, "--gha", points, *slow).code == 3
    assert summary.read_text().startswith("before\n### specbench compare")
    assert ElementTree.parse(xml).getroot().get("failures") == "3"
    assert len(json.loads(points.read_text())) == 3
    command("compare", "--junit", tmp_path / "no" / "where.xml", *slow).refused("choose another file")


def test_what_cannot_be_compared_is_refused_in_one_line(command: Command, tmp_path: Path) -> None:
    good, twice = folder(tmp_path / "good", cell()), folder(tmp_path / "twice", cell(), cell())
    command("compare", twice, twice).refused("two rows for one cell")
    command("compare", "--checks", "vibes", good, good).refused("choose deterministic, ratios, absolute")
    (tmp_path / "empty").mkdir()
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    (tmp_path / "results.csv").write_text("a,b\n1,2\n")
    for name in ("missing", "empty", "other.csv", "results.csv"):
        found = command("compare", good, tmp_path / name)
        found.refused("give the folder of a specbench run, its name, or the results.csv in it")
