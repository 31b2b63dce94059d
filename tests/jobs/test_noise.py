"""`specbench noise`: the baseline against itself as numbers."""

import csv
import json
import math
from pathlib import Path

import pytest
from scipy.stats import norm, t

from specbench.results.cells import Cell
from specbench.show import documents
from tests.support.frontdoor import Command
from tests.support.measured import baseline_trace, cell, sample
from tests.support.tinypair import Pair, prompts

STEPS = (0.010, 0.011, 0.009, 0.010)  # seconds per token of the second arm; the first one takes 0.010


def a_against_a(*steps: float) -> Cell:
    """Prompts of eight tokens decoded twice by the same loop."""
    arms = [{"baseline": baseline_trace(range(8)), "method": baseline_trace(range(8), step)} for step in steps]
    return cell(*(sample(f"p{n}", turn=n, **arm) for n, arm in enumerate(arms)), method="baseline", k=0)


def test_the_numbers_of_equal_arms_are_those_computed_by_hand() -> None:
    row = documents.noise_row(a_against_a(*STEPS))
    left_out = [math.log(0.030 / (sum(STEPS) - step)) for step in STEPS]
    error = math.sqrt(3 / 4 * sum((x - sum(left_out) / 4) ** 2 for x in left_out))
    sure = norm.ppf(0.975) + norm.ppf(0.8)
    assert row["ratio"] == pytest.approx(1.0, rel=1e-12)
    assert row["ratio_high"] == pytest.approx(math.exp(t.ppf(0.975, 3) * error), rel=1e-9)
    assert row["log_sd"] == pytest.approx(2 * error, rel=1e-9)
    assert row["smallest_effect"] == pytest.approx(math.expm1(sure * error), rel=1e-9)
    assert row["prompts_for_5_percent"] == math.ceil((sure * 2 * error / math.log(1.05)) ** 2)


def test_a_smaller_effect_needs_more_prompts_by_its_square_and_one_prompt_tells_no_noise() -> None:
    assert documents.prompts_for(0.01, 0.1) == pytest.approx(100 * documents.prompts_for(0.1, 0.1), rel=0.15)
    assert (documents.prompts_for(0.05, 0.0), documents.prompts_for(0.05, math.nan)) == (2, None)
    row = documents.noise_row(a_against_a(0.010))
    assert row["ratio"] == pytest.approx(1.0)
    assert math.isnan(row["smallest_effect"])
    assert row["prompts_for_1_percent"] is None
    assert "–" in documents.noise_markdown(documents.noise_grid([row]))


def test_equal_arms_that_differ_are_said_openly_warnings_passed_on_and_hostile_names_stay_text() -> None:
    """The second arm is always slower, as it would be if something favoured the first."""
    biased, row = (documents.noise_row(a_against_a(*some)) for some in ((0.0119, 0.0120, 0.0121, 0.0120), STEPS))
    assert any("two equal arms differ" in note for note in documents.noise_notes([biased]))
    fair = documents.noise_notes([row])
    assert not any("two equal arms differ" in note for note in fair)
    assert fair[-1] == documents.FLOOR
    loaded = documents.noise_notes([row | {"load_average": 9.0, "threads": 2}])
    assert any("load average 9.0 on 2 threads" in note for note in loaded)
    hostile = row | {"dataset": "jsonl:/tmp/a|b\x1b[31m"}
    heading = documents.noise_markdown(documents.noise_grid([hostile])).splitlines()[0]
    assert "a\\|b" in heading
    assert "\x1b" not in heading


@pytest.fixture
def short(pair: Pair, tmp_path: Path) -> tuple[str, ...]:
    data = prompts(tmp_path / "words.jsonl", 4, 6, 5)
    return (*pair.options, "--dataset", data, "--limit", "3", "--max-new-tokens", "8", "--format", "jsonl")


def test_the_noise_is_measured_by_the_runner_of_every_run(command: Command, short: tuple[str, ...]) -> None:
    done = command("noise", *short, "--repeat", "2").ok()
    (row,) = [json.loads(line) for line in done.out.splitlines()]
    assert row["ratio_low"] <= row["ratio"] <= row["ratio_high"]
    assert (row["prompts"], row["repeat"]) == (3, 2)
    assert documents.FLOOR in done.err
    (cell,) = done.table()
    assert (cell["method"], cell["k"], cell["lossless"]) == ("baseline", "0", "identical")
    with (done.folder / "samples.csv").open(newline="") as file:
        places = [(s["baseline_place"], s["place"]) for s in csv.DictReader(file)]
    assert sorted(set(places)) == [("0", "1"), ("1", "0")]  # neither of the two equal arms is always first


def test_tables_are_read_by_people(command: Command, short: tuple[str, ...]) -> None:
    done = command("noise", *short[:-1], "table").ok()
    assert "smallest effect" in done.out
    assert "baseline ÷ itself" in done.out
