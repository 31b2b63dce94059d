"""Synthetic acceptance in settings and results: how rates are written, and that such cells stay apart from others."""

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from specbench.judge.verdict import recommend
from specbench.measure.grid import cells
from specbench.measure.lossless import Rescored, losslessness_of
from specbench.show.verdict import sentences
from specbench.spec import RunSpec
from tests.support import compared_runs
from tests.support.frontdoor import Command
from tests.support.measured import cell, prompt_set, sample
from tests.support.tinypair import Pair, prompts

# --- settings ---------------------------------------------------------------------------------------------------------


def test_rates_are_read_as_they_are_written() -> None:
    for given, rates in (("0.8", (0.8,)), (0.8, (0.8,)), (1, (1.0,)), ("0.8, 0.7,.6", (0.8, 0.7, 0.6)), (None, None)):
        assert [c.acceptance for c in cells({"acceptance": given, "dataset": "code"})] == [rates]
    axis = cells({"acceptance": [None, 0.5, "0.8,0.7"], "k": [1, 2], "dataset": "code"})
    assert [(c.acceptance, c.k) for c in axis[::2]] == [(None, 1), ((0.5,), 1), ((0.8, 0.7), 1)]
    assert len({c.baseline for c in axis}) == 1
    assert [c.acceptance for c in cells({"method": "baseline", "acceptance": 0.5, "dataset": "code"})] == [None]


# --- results ----------------------------------------------------------------------------------------------------------


def test_a_row_says_whether_its_acceptance_is_real() -> None:
    rows = [cell(sample(), acceptance=rates).row() for rates in (None, (0.5,), (0.8, 0.7))]
    assert [(r["acceptance"], r["acceptance_mode"]) for r in rows] == [
        (None, "real"), ("0.5", "synthetic"), ("0.8,0.7", "synthetic"),
    ]  # fmt: skip
    assert list(rows[0])[list(rows[0]).index("acceptance_mode") - 1] == list(RunSpec.model_fields)[-1]


def test_output_that_is_nobodys_law_is_not_compared_with_the_baselines() -> None:
    def scores(*args: object) -> Tensor:
        raise AssertionError("nothing is to be scored")

    base, other = sample("a", (4,)), sample("a", (2,))
    spoiled = sample("a", baseline=base.baseline, method=other.method)
    found = losslessness_of(RunSpec(acceptance=(0.5,)), prompt_set("a").ids, [spoiled], Rescored(scores))
    assert found.verdict == "not compared"


def test_the_verdict_on_synthetic_cells_is_no_answer_for_the_pair() -> None:
    fast = [sample(f"p{i}", (4, 4, 4, 3)) for i in range(20)]
    rows = [cell(*fast, k=4, acceptance=rates).row() | {"speedup_low": 1.5, "speedup_high": 5.0}
            for rates in (None, (0.9,), (0.5,))]  # fmt: skip
    assert len({r["speedup"] for r in rows}) == 1
    found = recommend(rows)
    assert [(v.answer, v.acceptance, v.candidates, v.more_prompts) for v in found] == [
        ("YES", "", 1, None), ("UNCLEAR", "0.9", 1, None), ("UNCLEAR", "0.5", 1, None),
    ]  # fmt: skip
    assert sentences(found[1])[0] == (
        "UNCLEAR. Synthetic acceptance shows what this engine makes of that acceptance, "
        "not what the pair accepts; with 0.9 the best is K = 4"
    )


def test_batches_are_questions_of_their_own() -> None:
    rows = [cell(*(sample(f"p{i}") for i in range(3)), batch=batch).row() for batch in (1, 4)]
    found = recommend(rows)
    assert [v.batch for v in found] == [1, 4]
    assert any("batch 4" in line for line in sentences(found[1]))
    assert found[0].not_measured[0] == "batch other than 1, 4"


@pytest.mark.usefixtures("made_runs")
@pytest.mark.parametrize("other", [{"acceptance": "0.5"}, {"batch": 4}], ids=str)
def test_cells_with_other_acceptance_or_batch_are_not_compared(
    other: dict[str, Any], command: Command, tmp_path: Path
) -> None:
    one = compared_runs.folder(tmp_path / "one", compared_runs.cell(acceptance=None, batch=1))
    two = compared_runs.folder(tmp_path / "two", compared_runs.cell(**{"acceptance": None, "batch": 1, **other}))
    found = command("compare", one, two)
    assert found.code == 7
    assert "no cell is in both runs" in found.err
    assert command("compare", two, two).code == 0


# --- whole runs -------------------------------------------------------------------------------------------------------

LONG = ("--max-new-tokens", 32, "--ignore-eos")


def test_a_run_at_a_rate_has_that_alpha(run: Command) -> None:
    found = run("--acceptance", "0.5", *LONG)
    assert found.code == 0, found.err
    (row,) = found.table()
    assert (row["status"], row["acceptance"], row["acceptance_mode"]) == ("ok", "0.5", "synthetic")
    assert (float(row["alpha"]), row["lossless"]) == (0.5, "not compared")
    assert float(row["tokens_per_round"]) == pytest.approx((1 - 0.5**4) / 0.5, abs=0.35)
    assert float(row["alpha_tested"]) == pytest.approx(0.5, abs=0.15)
    assert "synthetic acceptance" in found.out


def test_real_and_synthetic_cells_of_a_grid_share_their_baseline(command: Command, pair: Pair, tmp_path: Path) -> None:
    grid = tmp_path / "grid.yaml"
    data = prompts(tmp_path / "words.jsonl", 4, 6)
    grid.write_text(
        f"pair: [{{target: '{pair.target}', draft: '{pair.draft}'}}]\ndataset: '{data}'\nmax_new_tokens: 16\n"
        "warmup: 0\nk: 2\nacceptance: [null, 0.5, '1,0']\n"
    )
    found = command("sweep", grid)
    assert found.code == 0, found.err
    rows = found.table()
    assert [(r["acceptance"], r["acceptance_mode"]) for r in rows] == [
        ("", "real"), ("0.5", "synthetic"), ("1.0,0.0", "synthetic"),
    ]  # fmt: skip
    assert [r["lossless"] for r in rows] == ["identical", "not compared", "not compared"]
    assert len({r["baseline_tokens_per_second"] for r in rows}) == 1
    assert [float(rows[2][f"acceptance_at_{i}"]) for i in (1, 2)] == [1, 0]
