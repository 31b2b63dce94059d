"""Runs by name: latest, the beginning of a name or of its key, in the middle of a path, and what is several."""

import os
from pathlib import Path

import pytest

from specbench.errors import UsageError
from specbench.results.named_runs import found_run, names_of_runs, resumed_as, runs_in, short_name

FIRST, SECOND, THIRD = (
    "20260101T000000Z_big_small_aaaa1111", "20260102T000000Z_big_small_aabb2222", "20260102T000000Z_big_small_ccdd3333",
)  # fmt: skip


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three runs in `results`, the last two of one second, a baseline, and folders that are none."""
    monkeypatch.chdir(tmp_path)
    for age, name in enumerate(("baseline", SECOND, THIRD, FIRST)):
        folder = tmp_path / "results" / name
        folder.mkdir(parents=True)
        (folder / "run.json").write_text("{}")
        (folder / "results.csv").write_text("")
        os.utime(folder / "run.json", (age, age))
    (tmp_path / "results" / "benchmarks").mkdir()
    return tmp_path / "results"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("latest", THIRD),
        ("results/latest", THIRD),
        ("results/latest/results.csv", THIRD),
        ("latest~0", THIRD),
        ("previous", SECOND),
        ("latest~1", SECOND),
        ("results/latest~2/results.csv", FIRST),
        ("results/previous", SECOND),
        ("20260101", FIRST),
        ("aaaa", FIRST),
        ("results/aaaa/results.csv", FIRST),
        ("cc", THIRD),
        ("baseline", "baseline"),
        ("base", "baseline"),
        (f"results/{FIRST}", FIRST),
    ],
)
def test_a_name_means_the_run_that_begins_with_it(given: str, meant: str) -> None:
    assert found_run(Path(given)) == Path("results") / meant


def test_elsewhere_names_are_looked_for_beside_them(runs: Path) -> None:
    assert found_run(runs / "latest") == runs / THIRD
    other = runs.rename(runs.parent / "mine")
    assert found_run(Path("mine/aaaa")) == Path("mine") / FIRST
    assert found_run(other / "latest" / "results.csv") == other / THIRD
    assert found_run(Path("latest")) == Path("latest"), "there is no folder of results"


BEFORE = r"there is no latest~\d+: results has 3 runs with a time in the name; specbench"
SEVERAL = "matches {} runs in results: 2026.*; write more of it"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("latest~3", BEFORE),
        ("results/latest~9999", BEFORE),
        ("aa", SEVERAL.format(2)),
        ("2026", SEVERAL.format(3)),
        ("results/20260102", SEVERAL.format(2)),
    ],
)
def test_a_run_before_the_first_and_the_beginning_of_several_are_refused(given: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        found_run(Path(given))


def test_a_run_that_is_called_previous_and_a_path_that_exists_go_before_a_name(runs: Path, tmp_path: Path) -> None:
    (runs / "baseline").rename(runs / "previous")
    assert found_run(Path("previous")) == Path("results/previous")
    (tmp_path / "latest").mkdir()
    assert found_run(Path("latest")) == Path("latest")


def test_names_are_completed(runs: Path) -> None:
    assert names_of_runs()[:3] == ["latest", "previous", "baseline"]
    for name in (SECOND, THIRD):
        (runs / name / "run.json").unlink()
    assert names_of_runs()[:2] == ["latest", "baseline"]


@pytest.mark.parametrize(
    "given", ["nothing", "results/nothing", "nowhere/latest", "", "/", "results/aaaa1111/nothing.csv"]
)
def test_what_is_no_name_stays_what_it_was(given: str) -> None:
    path = Path(given)
    assert found_run(path) in (path, Path("results") / FIRST / "none.csv")


def test_runs_are_in_the_order_in_which_they_were_begun(runs: Path) -> None:
    assert [run.name for run in runs_in(runs)] == ["baseline", FIRST, SECOND, THIRD]
    assert runs_in(runs / "nothing") == []


def test_the_short_name_of_a_run_finds_it_again(runs: Path) -> None:
    for run in runs_in(Path("results")):
        assert found_run(Path(short_name(run))) == run
    assert short_name(Path("results") / FIRST) == "aaaa1111"
    (runs / "20260103T000000Z_big_small_aaaa1111").mkdir()
    (runs / "20260103T000000Z_big_small_aaaa1111" / "run.json").write_text("{}")
    assert short_name(Path("results") / FIRST) == FIRST, "a spec that was measured twice has its key twice"
    assert short_name(runs / FIRST) == str(runs / FIRST)


def test_a_run_is_resumed_as_latest_where_that_means_it(runs: Path) -> None:
    found = Path("results")
    assert [resumed_as(found / name) for name in (FIRST, THIRD)] == [found / FIRST, Path("latest")]
    assert resumed_as(runs / THIRD) == runs / THIRD, "a folder named elsewhere"
    Path("latest").mkdir()
    assert resumed_as(found / THIRD) == found / THIRD
