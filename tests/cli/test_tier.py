"""`--tier` through the front door: which one was taken and why, and that it changes nothing but the speed.

Rounds are recorded and cut, and then run as they were recorded: what a compiler makes of a region is tested in
tests/models/execution/test_regions.py.
"""

import shutil
from typing import Any

import pytest

from specbench.backends import tiers
from specbench.models.execution import compiled
from specbench.models.execution.region_code import Regional
from tests.support.frontdoor import Command, Outcome
from tests.support.tiers import AsRecorded, never
from tests.support.tinypair import prompts


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A machine with a compiler, whose compiler changes nothing; every function that was made ready."""
    made: list[Any] = []

    def ready(function: Any, *how: Any) -> Regional:
        made.append(function)
        return Regional(function, *how)

    monkeypatch.setattr(compiled, "missing_compiler", lambda: "")
    monkeypatch.setattr(tiers, "Store", AsRecorded)
    monkeypatch.setattr(tiers, "Compiled", never)
    monkeypatch.setattr(tiers, "Regional", ready)
    return made


def texts(found: Outcome) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The tokens of both arms, of every sample; makes room for another run."""
    assert found.code == 0, found.err
    tokens = [(sample.baseline.tokens, sample.method.tokens) for sample in found.samples()]
    shutil.rmtree(found.cwd / "results")
    return tokens


@pytest.mark.slow
@pytest.mark.processor
@pytest.mark.usefixtures("compiling", "as_users_call_it")
def test_by_default_rounds_are_compiled_which_is_said_and_timed_apart(run: Command) -> None:
    found = run()
    (row,) = found.table()
    assert (row["status"], row["lossless"]) == ("ok", "identical")
    assert (row["tier"], row["tier_resolved"]) == ("auto", "compile")
    assert f"note: tier compile: {compiled.COMPILING}" in found.err.splitlines()
    assert min(float(row["ready_seconds"]), float(row["baseline_ready_seconds"])) > 0
    assert all(float(row[name]) > 0 for name in ("c", "v", "speedup", "speedup_calibrated"))


@pytest.mark.slow
@pytest.mark.processor
@pytest.mark.usefixtures("compiling")
def test_a_run_emits_the_same_text_in_every_tier(run: Command) -> None:
    sampled = ("--temperature", "1", "--ignore-eos")
    eager, compiled = (texts(run("--tier", tier, *sampled)) for tier in ("eager", "compile"))
    assert eager == compiled
    assert len(eager) == 2


@pytest.mark.slow
def test_data_sets_share_what_was_compiled_for_the_longest_of_their_prompts(
    run: Command,
    compiling: list[Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    other = prompts(tmp_path_factory.mktemp("other") / "longer.jsonl", 12, 3, first=7)
    found = run("--tier", "compile", "--dataset", other)
    assert [row["status"] for row in found.table()] == ["ok", "ok"]
    assert len(compiling) == 2  # a baseline and a method


@pytest.mark.slow
def test_methods_whose_rounds_differ_have_their_passes_compiled(run: Command, compiling: list[Any]) -> None:
    found = run("--tier", "compile", "--schedule", "auto")
    (row,) = found.table()
    assert (row["status"], row["lossless"], row["tier_resolved"]) == ("ok", "identical", "compile")
    assert len(compiling) >= 4  # a baseline, two widths of a draft, and a verify pass at least


@pytest.mark.usefixtures("as_users_call_it")
def test_auto_is_eager_where_nothing_can_be_compiled_and_says_why(run: Command, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(compiled.shutil, "which", lambda name: None)
    found = run()
    assert found.table()[0]["tier_resolved"] == "eager"
    assert "note: tier eager: torch needs a C++ compiler (g++ or clang++) and none was found on the PATH" in found.err


@pytest.mark.usefixtures("as_users_call_it")
@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--method", "triforce"), "triforce"),
        pytest.param(("--schedule", "auto"), "--schedule auto", marks=pytest.mark.slow),
    ],
)
def test_auto_is_eager_where_compiling_takes_minutes_and_says_why(
    run: Command, options: tuple[str, ...], named: str
) -> None:
    found = run(*options)
    assert found.table()[0]["tier_resolved"] == "eager"
    assert f"note: tier eager: rounds of {named} differ in shape, and to compile all shapes takes minutes" in found.err
