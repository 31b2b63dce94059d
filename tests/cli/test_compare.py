"""`specbench compare` as a CI calls it: what it decides, and with which exit code."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specbench.jobs.reading import SYNONYMS, USUAL
from specbench.results.numbers import NUMBERS
from tests.support import measured
from tests.support.compared_runs import Cell, cell, decoded, folder
from tests.support.frontdoor import Command, Outcome
from tests.support.simulated_sweeps import write_run

pytestmark = pytest.mark.usefixtures("made_runs")
Runs = Callable[..., list[Path]]


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    """One folder per list of cells."""

    def make(*lists: list[Cell]) -> list[Path]:
        return [folder(tmp_path / f"run{i}", *cells) for i, cells in enumerate(lists)]

    return make


@pytest.fixture
def compare(command: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)

    def call(*arguments: object) -> Outcome:
        return command("compare", "--format", "json", *arguments)

    return call


def rows(found: Outcome) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["cell"], row["metric"]): row for row in json.loads(found.out)["rows"]}


def outcomes(found: Outcome) -> dict[str, str]:
    """metric → outcome, of a comparison of one cell."""
    return {metric: row["outcome"] for (_, metric), row in rows(found).items()}


def row(found: Outcome, metric: str) -> dict[str, Any]:
    return next(row for (_, name), row in rows(found).items() if name == metric)


# --- the three tiers --------------------------------------------------------------------------------------------------


def test_a_run_compared_with_itself_is_fine_and_cells_are_told_apart_by_their_seed(
    compare: Command, runs: Runs
) -> None:
    run, seeds = runs([cell(), cell(dataset="articles")], [cell(seed=0), cell(decoded(seed=1, slower=2), seed=1)])
    found = compare(run, run)
    assert (found.code, found.err) == (0, "")
    assert {outcome["outcome"] for outcome in rows(found).values()} == {"ok"}
    assert len(rows(found)) == 2 * 7
    assert row(found, "speedup")["change"] == 0
    names = {name for name, _ in rows(compare(seeds, seeds).ok())}
    assert names == {"code chain K4 · seed 0", "code chain K4 · seed 1"}


def test_what_is_compared_is_what_the_run_says(compare: Command, tmp_path: Path) -> None:
    shared = {"prompts_sha256": "5" * 64, "fingerprint": "f" * 12, "torch": "2", "transformers": "5"}
    done = measured.cell(measured.sample("p1"), measured.sample("p2", (4, 1)), resolved=shared)
    run = write_run(tmp_path, [done])
    found = compare(run / "results.csv", run)
    assert set(outcomes(found).values()) == {"ok"}
    for name in ("speedup", "alpha", "c", "v", "tokens_per_second", "baseline_tokens_per_second"):
        assert row(found, name)["base"] == pytest.approx(done.row()[name]), "from the samples as in the table"


@pytest.mark.parametrize("column", ["rounds", "drafted", "tested", "accepted", "tokens", "output_sha256"])
def test_a_changed_count_is_a_regression_that_names_the_prompt(compare: Command, runs: Runs, column: str) -> None:
    changed = decoded()
    changed[3][column] = "1e99" if column == "output_sha256" else changed[3][column] + 1
    base, new = runs([cell()], [cell(changed)])
    for again in ((), (base,)):  # it needs no second run
        found = compare("--checks", "deterministic", base, new, *again)
        assert found.code == 3
        assert f"prompt p3, repeat 0: {column} {decoded()[3][column]} → {changed[3][column]}; 1 of 24" in found.line
        assert "make NEW the new baseline" in found.line


def test_a_slower_method_is_a_regression_and_the_last_line_names_the_worst_number(compare: Command, runs: Runs) -> None:
    slower, worst = cell(decoded(slower=1.1, seed=1)), cell(decoded(slower=1.5, seed=1), k=8)
    base, new, bases, news = runs(
        [cell()], [slower], [cell(), cell(k=8), cell(k=2)], [slower, worst, cell(k=2, status="oom")]
    )
    found = compare("--checks", "ratios", base, new)
    assert found.code == 3
    assert outcomes(found) == {"speedup": "REGRESSION", "alpha": "ok", "c": "REGRESSION", "v": "REGRESSION"}
    assert row(found, "speedup")["change"] == pytest.approx(1 / 1.1 - 1, abs=0.003)
    assert "3 of 4 comparisons regressed, worst: code chain K4 " in found.line
    assert found.line.endswith("; and 2 more")
    found = compare("--checks", "absolute", bases, news)
    assert found.code == 3
    worst_of_all = r"3 of 5 comparisons regressed, worst: code chain K8 tokens_per_second -33\.\d %; and 2 more$"
    assert re.search(worst_of_all, found.line)


LOADED = {"load_average": 8.0, "threads": 2}
QUIET = {"load_average": 0.4, "threads": 2}
OTHERWISE = [
    (QUIET, LOADED, "load 8.0 on 2 threads against 0.4"),
    (LOADED, QUIET, "load 0.4 on 2 threads against 8.0"),
    ({"cpu_steal": 0.002}, {"cpu_steal": 0.041}, "steal 4.1% against 0.2%"),
    ({"cpu_mhz": 3600.0}, {"cpu_mhz": 2400.0}, "the processor's clock 2,400 MHz against 3,600"),
    ({"gpu_mhz": 1410.0}, {"gpu_mhz": 1980.0}, "the GPU's clock 1,980 MHz against 1,410"),
    ({"gpu_throttled": 0.0}, {"gpu_throttled": 0.4}, "throttled decodes 40.0% against 0.0%"),
]


DOUBLE = {"dtype_resolved": "float64", "draft_dtype_resolved": "float64", "target_commit": "", "draft_commit": ""}
PLACE = "specbench/assets/pair/target"
BETTER, NOTHING = decoded(), [{**one, "overlap": 0.0} for one in decoded()]
BETTER[0]["rounds"] -= 1
ELSEWHERE = cell(decoded(slower=3), fingerprint="0" * 12)
DECIDED: list[tuple[list[Cell], list[Cell], str, int, str]] = [  # BASE, NEW, options, the exit code, and the line
    ([cell()], [cell(BETTER)], "--checks deterministic", 3, "rounds"),  # fewer rounds are a difference, too
    ([cell()], [ELSEWHERE], "--checks absolute", 7, ""),
    ([cell()], [ELSEWHERE], "--fail-on tokens_per_second<-10%", 7, ""),
    ([cell()], [ELSEWHERE], "--fail-on speedup<-10%", 3, ""),
    ([cell(**DOUBLE, target_source=f"/a/{PLACE}", device_name="a", threads=1)],
     [cell(**DOUBLE, target_source=f"/b/lib/{PLACE}", device_name="b", threads=9)], "--checks deterministic", 0, ""),
    ([cell(round_ms=None)], [cell(round_ms=None)], "--fail-on round_ms>+5%", 7, ""),  # there is nothing to judge
    ([cell(), cell(k=2)], [cell()], "--fail-on speedup<-5%", 7, ""),  # the cell of a gate is gone
    ([cell(status="oom", error="no memory")], [cell(status="oom", error="no memory")], "", 7, ""),
    ([cell()], [cell(NOTHING)], "--fail-on alpha<-5%", 3, ""),
    ([cell()], [cell(status="oom")], "--fail-on speedup<-5%", 7, ""),
    ([cell(decoded(noise=1e-4))], [cell(decoded(slower=1.02, noise=1e-4))], "--checks ratios --margin 1", 3, ""),
    ([cell(status="oom"), cell(k=2)], [cell(status="oom"), cell(k=2)], "--checks ratios", 0, ""),
    ([cell(NOTHING)], [cell(NOTHING)], "--checks ratios", 0, ""),
    ([cell()], [cell(temperature=0.8)], "", 7, "no cell is in both"),
    ([cell()], [cell(status="oom", error="why")], "", 3, "ok → oom why"),
    ([cell()], [cell(status="nan", error="why")], "", 3, "ok → nan why"),
    ([cell()], [cell(status="mismatch", error="why")], "", 3, "ok → mismatch why"),
    ([cell()], [cell(status="error", error="why")], "", 3, "ok → error why"),
    ([cell(status="skipped"), cell(k=2)], [cell(status="oom"), cell(k=2)], "", 7, ""),
    # of times under conditions of which nothing is known to differ
    ([cell()], [cell(decoded(slower=1.3), **LOADED)], "--checks absolute", 3, ""),
    ([cell(**LOADED)], [cell(decoded(slower=1.3), load_average=8.9, threads=2)], "--checks absolute", 3, ""),
    ([cell(**QUIET)], [cell(decoded(slower=1.3), load_average=2.4, threads=2)], "--checks absolute", 3, ""),
    ([cell(cpu_steal=0.019)], [cell(decoded(slower=1.3), cpu_steal=0.021)], "--checks absolute", 3, ""),
    ([cell(cpu_steal=None)], [cell(decoded(slower=1.3), cpu_steal=0.9)], "--checks absolute", 3, ""),
    ([cell(cpu_mhz=3600.0)], [cell(decoded(slower=1.3), cpu_mhz=3300.0)], "--checks absolute", 3, ""),
    # gates that are refused
    ([cell()], [cell()], "--fail-on speedup<-100%", 2, "could never fail"),
    ([cell()], [cell()], "--fail-on thruput<-5%", 2, "did you mean tokens_per_second?"),
    ([cell()], [cell()], "--fail-on speedups<-5%", 2, "did you mean speedup"),
    ([cell()], [cell()], "--fail-on qwertz<-5%", 2,
     "try speedup, tokens_per_second, accepted_per_drafted, tokens_per_round"),
    ([cell()], [cell()], "--fail-on latency>+5%", 2, "did you mean"),
    ([cell()], [cell()], "--fail-on dataset<-10%", 2, "not a number"),
    ([cell()], [cell()], "--fail-on c>1% --checks ratios", 2, "leave out --checks"),
    ([cell()], [cell()], "--checks vibes", 2, "choose deterministic, ratios, absolute"),
    ([cell(), cell()], [cell(), cell()], "", 2, "two rows for one cell"),
    ([cell()], [], "", 2, "give two runs, BASE and NEW"),  # a gate must not pass because NEW is missing
    ([cell()], [], "", 2, "`specbench verdict RUN` and `specbench sweep-k`"),
]  # fmt: skip


@pytest.mark.whole
@pytest.mark.parametrize(("base", "new", "options", "code", "line"), DECIDED)
def test_two_runs_end_with_the_code_of_their_comparison(
    compare: Command, runs: Runs, base: list[Cell], new: list[Cell], options: str, code: int, line: str
) -> None:
    found = compare(*runs(*filter(None, (base, new))), *options.split())
    assert found.code == code, found.err
    assert line in found.err
    assert "target" not in found.err or code != 2


@pytest.mark.parametrize(("before", "now", "reason"), OTHERWISE)
def test_times_under_other_conditions_are_not_comparable_and_ratios_are(
    compare: Command, runs: Runs, before: dict[str, Any], now: dict[str, Any], reason: str
) -> None:
    base, new = runs([cell(**before)], [cell(decoded(slower=3), **now)])
    found = compare("--checks", "absolute", base, new)
    assert (found.code, set(outcomes(found).values())) == (7, {"not comparable"})
    assert row(found, "tokens_per_second")["detail"] == reason
    assert reason in found.line
    assert compare("--fail-on", "round_ms>+5%", base, new).code == 7
    assert compare("--fail-on", "speedup<-5%", base, new).code == 3
    assert outcomes(compare("--checks", "ratios", base, new))["speedup"] == "REGRESSION"


@pytest.mark.parametrize(
    ("base", "new", "expected"),
    [
        ([cell()], [cell(decoded(slower=0.9, seed=1))], {"speedup": "better", "tokens_per_second": "better"}),
        ([cell(decoded(noise=1e-4))], [cell(decoded(slower=1.02, noise=1e-4))], {"speedup": "ok"}),
        ([cell(status="oom"), cell(k=2)], [cell(), cell(k=2)], {"status": "better"}),
    ],
    ids=["faster", "within the margin, however certain", "failed before"],
)
def test_what_is_no_regression(
    compare: Command, runs: Runs, base: list[Cell], new: list[Cell], expected: dict[str, str]
) -> None:
    found = compare("--checks", "ratios", "--checks", "absolute", *runs(base, new)).ok()
    assert expected.items() <= outcomes(found).items()


def test_noise_is_inconclusive_and_says_what_would_have_been_seen(compare: Command, runs: Runs) -> None:
    base, new = runs([cell(decoded(noise=0.2))], [cell(decoded(noise=0.2, seed=1, slower=1.03))])
    found = compare("--checks", "ratios", base, new)
    assert (found.code, outcomes(found)["speedup"]) == (0, "inconclusive")
    assert row(found, "speedup")["smallest"] > 0.05
    assert "noise" in row(found, "speedup")["detail"]


def test_another_machine_has_its_ratios_judged_and_its_times_not(compare: Command, runs: Runs) -> None:
    base, new = runs([cell()], [cell(decoded(seed=1), fingerprint="0" * 12, device_name="other")])
    found = compare(base, new)
    assert found.code == 7
    assert outcomes(found) == {
        "counts": "not judged", "speedup": "ok", "alpha": "ok", "c": "ok", "v": "ok",
        "tokens_per_second": "not comparable", "baseline_tokens_per_second": "not comparable",
    }  # fmt: skip
    assert "device_name abacus ≠ other" in found.line
    assert compare("--checks", "ratios", base, new).code == 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"seed": 1}, "seed 0 ≠ 1"),
        ({"torch": "2.12.0"}, "torch 2.13.0 ≠ 2.12.0"),
        ({"target_commit": "10000000000"}, "target_commit 1e10 ≠ 10000000000"),
        ({"draft_commit": "7"}, "draft_commit 007 ≠ 7"),
        ({"target_commit": "", "target_source": "/x"}, "target_source o/big ≠ /x"),
        ({"threads": 4}, "threads 2 ≠ 4"),
        ({"prompts_sha256": "6" * 64}, "prompts_sha256"),
    ],
)
def test_counts_are_judged_only_where_they_must_agree(
    compare: Command, runs: Runs, change: dict[str, Any], reason: str
) -> None:
    base, new = runs([cell()], [cell(**change)])
    found = compare("--checks", "deterministic", base, new)
    assert (found.code, row(found, "counts")["outcome"]) == (7, "not judged")
    assert reason in row(found, "counts")["detail"]


def test_of_a_lookahead_that_follows_the_clock_only_the_baseline_must_agree(compare: Command, runs: Runs) -> None:
    changed, broken = decoded(), decoded()
    changed[0]["rounds"] += 1
    broken[0]["baseline_output_sha256"] = "other"
    base, new, bad = ([cell(rows, schedule="auto")] for rows in (decoded(), changed, broken))
    base, new, bad = runs(base, new, bad)
    assert compare("--checks", "deterministic", base, new).code == 0
    assert compare("--checks", "deterministic", base, bad).code == 3


# --- cells ------------------------------------------------------------------------------------------------------------


def test_cells_are_matched_by_what_is_asked_and_the_others_are_listed(compare: Command, runs: Runs) -> None:
    base, new = runs([cell(), cell(k=2)], [cell(k=8), cell(seed=0)])
    found = compare(base, new)
    assert found.code == 7, "what BASE watched is gone"
    assert json.loads(found.out)["missing"] == ["code chain K2: only in BASE", "code chain K8: only in NEW"]
    assert rows(found)["code chain K2", "status"]["detail"] == "NEW lacks this cell"
    assert compare(new, new).code == 0


@pytest.mark.parametrize(
    ("gate", "column"),
    [
        ("throughput<-5%", "tokens_per_second"),
        ("tok/s<-5%", "tokens_per_second"),
        ("TPS<-5%", "tokens_per_second"),
        ("tokens-per-second<-5%", "tokens_per_second"),
        ("acceptance rate<-5%", "accepted_per_drafted"),
        ("acceptance<-5%", "accepted_per_drafted"),
        ("acceptance_length<-5%", "tokens_per_round"),
        ("tau<-5%", "tokens_per_round"),
        ("ttft>+5%", "ttft_ms"),
        ("ttft_p99>+5%", "ttft_p99_ms"),
        ("latency>+5%", "per_token_median_ms"),
        ("round>+5%", "round_ms"),
    ],
)
def test_a_gate_may_be_called_as_other_tools_call_it(compare: Command, runs: Runs, gate: str, column: str) -> None:
    numbers = {"accepted_per_drafted": 0.5, "tokens_per_round": 3.0, "ttft_ms": 9.0, "ttft_p99_ms": 20.0}
    (run,) = runs([cell(**numbers, latency_median_ms=None, per_token_median_ms=8.0)])
    found = compare(run, run, "--fail-on", gate)
    assert (found.code, outcomes(found)) == (0, {column: "ok"}), found.err


def test_every_word_of_the_field_is_for_a_column() -> None:
    assert set(SYNONYMS) | set(USUAL) <= set(NUMBERS)


def test_numbers_that_change_in_opposite_directions_from_nothing_are_not_judged(compare: Command, runs: Runs) -> None:
    made = runs(*([cell(outliers=n)] for n in (0, 5, 5, 0)))
    found = compare(made[0], made[1], made[3], "--base-rerun", made[2], "--fail-on", "outliers>+10%")
    assert (found.code, row(found, "outliers")["outcome"]) == (7, "not judged")


@pytest.mark.parametrize("status", ["skipped", "partial"])
@pytest.mark.parametrize("back", [False, True])
def test_a_cell_that_was_not_measured_is_not_comparable(compare: Command, runs: Runs, status: str, back: bool) -> None:
    slow = decoded(slower=2)[:9] if status == "partial" else None
    made = [[cell(), cell(k=2)], [cell(slow, status=status, error="interrupted"), cell(k=2)]]
    found = compare(*runs(*(reversed(made) if back else made)))
    assert found.code == 7
    assert rows(found)["code chain K4", "status"]["outcome"] == "not comparable"
    assert "REGRESSION" not in found.out


def test_a_run_that_was_cut_short_is_judged_by_the_prompts_it_has(compare: Command, runs: Runs) -> None:
    found = compare(*runs([cell()], [cell(decoded()[:9], status="partial")]))
    assert found.code == 7
    assert (outcomes(found)["status"], outcomes(found)["counts"]) == ("not comparable", "ok")
    assert row(found, "speedup")["change"] == 0, "the same nine prompts"


# --- reruns -----------------------------------------------------------------------------------------------------------


def test_a_slowdown_counts_only_if_every_new_run_shows_it(compare: Command, runs: Runs) -> None:
    slow, again, fast = (cell(decoded(slower=s, seed=n)) for n, s in ((1, 1.1), (2, 1.1), (3, 1.0)))
    base, slow_run, again_run, fast_run = runs([cell()], [slow], [again], [fast])
    both = compare("--checks", "ratios", base, slow_run, again_run)
    assert (both.code, outcomes(both)["speedup"]) == (3, "REGRESSION")
    one = compare("--checks", "ratios", base, slow_run, fast_run)
    assert (one.code, outcomes(one)["speedup"]) == (0, "inconclusive")
    assert "only 1 of 2 new runs show it" in row(one, "speedup")["detail"]
    assert len(row(one, "speedup")["new"]) == 2, "each is shown"


def test_a_machine_that_slowed_down_for_both_is_seen_by_a_rerun_of_base(compare: Command, runs: Runs) -> None:
    base, new, later = runs([cell()], [cell(decoded(slower=1.1))], [cell(decoded(slower=1.1))])
    assert compare("--checks", "absolute", base, new, later).code == 3
    assert compare("--checks", "absolute", base, base, new, "--base-rerun", later).code == 0
    assert compare(base, new, "--base-rerun", later).code == 2
