"""The cells of one run against each other: paired by prompt, Holm-corrected, by the names that a user gives them."""

import json
from pathlib import Path

import numpy as np
import pytest

from specbench.errors import NotComparableError, UsageError
from specbench.judge.compare_input import read_records
from specbench.judge.holm_test import METRICS, estimate
from specbench.judge.rivals import Duel, duels, means
from specbench.show.rivals_table import rivals_tables
from tests.support.frontdoor import Command
from tests.support.measured import cell, sample
from tests.support.simulated_sweeps import sweep, write_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A sweep of three K: two differ surely, two hardly."""
    return write_run(tmp_path, sweep("code", prompts=20, ks=(1, 2, 4)))


def found(run: Path, *chosen: str, confidence: float = 0.95) -> list[Duel]:
    return duels(read_records(run), chosen, confidence)


def test_every_cell_is_compared_with_the_fastest_and_the_numbers_are_those_of_the_paired_test(run: Path) -> None:
    records = {int(record["k"]): record for record in read_records(run)}
    best = max(records.values(), key=lambda record: record.number("speedup"))
    some = found(run)
    assert {duel.best for duel in some} == {f"chain K{best['k']}"}
    assert len(some) == 2
    for duel in some:
        other = records[int(duel.other.removeprefix("chain K"))]
        totals = [{name: one.totals[name].to_numpy() for name in one.totals} for one in (best, other)]
        by_hand = estimate(METRICS["speedup"], *totals, paired=True)
        assert duel.change == pytest.approx(np.expm1(by_hand.log))
        assert (duel.best_speedup, duel.other_speedup) == (
            pytest.approx(best.number("speedup")), pytest.approx(other.number("speedup")),
        )  # fmt: skip
        assert duel.low is not None
        assert duel.high is not None
        assert duel.low < duel.change < duel.high <= duel.change + 1
        assert (duel.outcome == "slower") == (duel.p is not None and duel.p < 0.05)


def test_the_correction_is_over_all_pairs(run: Path) -> None:
    alone = {name: found(run, max(found(run), key=lambda d: 0).best, name)[0] for name in (d.other for d in found(run))}
    together = {duel.other: duel for duel in found(run)}
    assert min(one.p or 1 for one in together.values()) >= min(one.p or 1 for one in alone.values())
    smallest = min(alone, key=lambda name: alone[name].p or 1)
    assert together[smallest].p == pytest.approx(min(1.0, 2 * (alone[smallest].p or 1)))


def test_two_equal_cells_show_no_difference(tmp_path: Path) -> None:
    same = [cell(*(sample(f"p{n}", (n % 4, 2)) for n in range(20)), method=name) for name in ("chain", "block")]
    (duel,) = found(write_run(tmp_path, same))
    assert (duel.change, duel.outcome) == (0, "no difference seen")
    assert duel.p == 1


def test_chosen_cells_are_compared_with_the_first_of_them(run: Path) -> None:
    (duel,) = found(run, "K = 1", "chain K4")
    assert (duel.best, duel.other) == ("chain K1", "chain K4")
    (back,) = found(run, "k4", "k1")
    assert (1 + (duel.change or 0)) * (1 + (back.change or 0)) == pytest.approx(1)
    assert back.p == pytest.approx(duel.p)


@pytest.mark.parametrize(
    ("given", "name", "meant"),
    [
        ("K4", "chain K4", True), ("k = 4", "chain K4", True), ("K=4", "chain K4", True), ("chain", "chain K4", True),
        ("chain, K = 4", "chain K4", True), ("Chain K4", "chain K4", True), ("K4", "chain K40", False),
        ("block", "chain K4", False), ("auto", "chain auto K≤12", True), ("4", "chain K4", False),
        ("", "chain K4", False),
    ],
)  # fmt: skip
def test_a_cell_is_named_as_people_write_it(given: str, name: str, meant: bool) -> None:
    assert means(given, name) == meant


def test_unknown_and_ambiguous_names_are_refused(run: Path) -> None:
    with pytest.raises(UsageError, match="no cell is called K9: there are chain K1, chain K2, chain K4"):
        found(run, "K9")
    with pytest.raises(UsageError, match=r"--cell chain is several cells \(chain K1, chain K2, chain K4\)"):
        found(run, "chain", "K1")


def test_a_single_cell_has_no_rival_and_questions_stay_apart(tmp_path: Path) -> None:
    with pytest.raises(NotComparableError, match="no question of this run has two cells"):
        found(write_run(tmp_path / "one", [cell(sample("p1"), sample("p2"))]))
    both = [*sweep("code", prompts=6, ks=(1, 2)), *sweep("articles", prompts=6, ks=(1, 2))]
    assert [duel.question for duel in found(write_run(tmp_path / "two", both))] == [
        "code, T = 0.0, batch 1", "articles, T = 0.0, batch 1",
    ]  # fmt: skip


def test_questions_that_differ_in_another_setting_have_names_and_tables_of_their_own(tmp_path: Path) -> None:
    both = [one for new in (16, 32) for one in sweep("code", prompts=6, ks=(1, 2), max_new_tokens=new)]
    some = found(write_run(tmp_path, both))
    assert [duel.question for duel in some] == [f"code, T = 0.0, batch 1, max new tokens {new}" for new in (16, 32)]
    assert len(rivals_tables(some, 0.95)) == 2


def test_the_command_compares_the_cells_of_one_run(run: Path, command: Command) -> None:
    shown = command("compare", run, "--cell", "all")
    assert shown.code == 0, shown.err
    assert "against chain K" in shown.out
    assert "Holm-corrected over 2 pairs" in " ".join(shown.out.split())
    (one,) = json.loads(command("compare", run, "--cell", "K1", "--cell", "K2", "--format", "json").out)
    assert (one["best"], one["other"]) == ("chain K1", "chain K2")
    assert "| cell | speedup | change |" in command("compare", run, "--cell", "all", "--format", "md").out
    assert command("compare", run, "--cell", "all", "--quiet").out == ""
    assert command("compare", run, "--cell", "all", "--fail-on", "c>+1%").code == 2
    assert command("compare", run, run, "--cell", "K1").code == 2
    assert command("compare", run, "--cell", "all", "--format", "junit").code == 2
    assert command("compare", run).code == 2, "a gate must not pass because NEW is missing"
    against = json.loads(command("compare", run, "--cell", "K1", "--format", "json").out)
    assert {(one["best"], one["other"]) for one in against} == {("chain K1", "chain K2"), ("chain K1", "chain K4")}
