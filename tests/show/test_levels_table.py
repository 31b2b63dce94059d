"""Nests, trees and lossy rules as a reader sees them: tables, the page, notes, verdicts and reasons."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from specbench.judge.advice import drafts_trees, losing
from specbench.judge.candidates import flaw
from specbench.judge.verdict import recommend
from specbench.measure.lossless import Rescored, losslessness_of
from specbench.metrics import Trace
from specbench.results.cells import Losslessness
from specbench.results.reading import read_run
from specbench.show.report.page import write_report
from specbench.show.run_output import notes
from specbench.show.verdict import sentences
from specbench.spec import RunSpec
from tests.support.measured import baseline_trace, cell, one_round, prompt_set, sample
from tests.support.nested_samples import SPANS, nested_sample, tree_sample
from tests.support.simulated_sweeps import write_run


@pytest.mark.usefixtures("undrawn")
def test_a_run_of_a_nest_leaves_its_levels_in_the_files_and_on_the_page(tmp_path: Path) -> None:
    path = write_run(tmp_path, [cell(nested_sample("p1")), cell(sample("p1"), k=2)])
    page = write_report([path], png=False).read_text()
    assert 'aria-label="Numbers of every level"' in page
    assert all(f'data-column="{name}"' in page for name in ("alpha_2", "v_2", "term_levels"))
    header = (path / "results.csv").read_text().splitlines()[0].split(",")
    assert {"alpha_2", "tokens_per_round_2", "c_2", "v_2", "rounds_2", "draft_hit_rate", "law_distance"} <= set(header)
    (back, _) = read_run(path).cells
    assert back.row()["alpha_2"] == 0.5
    assert pd.read_parquet(path / "rounds.parquet")["rounds_2"].tolist()[0] == 3


LOSSY = Losslessness("lossy")


def lossy_cell(**changes: Any) -> dict[str, Any]:
    rounds = (replace(one_round(4), distance=0.5), replace(one_round(2), distance=0.3))
    one = sample("p1", baseline=baseline_trace(range(8)), method=Trace(tuple(range(8)), rounds, 0.039, 0.1, SPANS))
    samples = (one, replace(one, prompt="p2"))
    return cell(*samples, method="lenience", temperature=1.0, lossless=LOSSY, **changes).row()


def test_a_lossy_cell_says_so_with_its_distance_and_is_never_recommended() -> None:
    row = lossy_cell()
    assert row["law_distance"] == pytest.approx(0.1)
    said = "not lossless: its output differs from the target's by 0.100 per token"
    assert said in flaw(row)
    assert any(said in note for note in notes([row]))
    (found,) = recommend([row])
    assert (found.answer, found.candidates) == ("UNCLEAR", 0)
    assert any(said in line for line in sentences(found))
    assert cell(sample("p1")).row()["law_distance"] == 0
    assert lossy_cell(acceptance=(0.5,))["law_distance"] is None


@pytest.mark.parametrize(
    ("method", "temperature", "said"),
    [("lenience", 1.0, "lossy"), ("chain", 1.0, "not compared"), ("lenience", 0.0, "identical"),
     ("chain", 0.0, "identical")],
)  # fmt: skip
def test_a_lossy_rule_is_compared_when_greedy_alone(method: str, temperature: float, said: str) -> None:
    spec = RunSpec(method=method, temperature=temperature)
    found = losslessness_of(
        spec, prompt_set("p1").ids, [sample("p1")], Rescored(lambda *_: pytest.fail("nothing differs"))
    )
    assert found.verdict == said


def test_the_noise_of_a_greedy_tree_is_that_of_a_pass_over_all_its_nodes() -> None:
    one, widths = tree_sample(4), []

    def scores(ids: Any, start: int, block: int) -> torch.Tensor:
        widths.append(block)
        return torch.ones(len(ids) - start, 9)

    other = replace(one, baseline=replace(one.baseline, tokens=(7, *one.baseline.tokens[1:])))
    losslessness_of(RunSpec(), prompt_set("p1").ids, [other], Rescored(scores))
    assert widths == [1, 22]


def test_a_cell_that_is_predicted_to_lose_says_what_eats_its_gain_and_what_levels_cost() -> None:
    row, chain = cell(tree_sample(1, 0, 0, 1)).row(), cell(sample("p1", (4, 4))).row()
    (line,) = losing(row)
    assert (drafts_trees(row), drafts_trees(chain), losing(chain)) == (True, False, [])
    assert "verifying 21.0 drafted tokens in a pass makes it cost 2.10 steps" in line
    assert "a round gains 0.50 tokens and pays 1.30 steps for them" in line
    assert line in notes([row])
    one = nested_sample(accepted=(0, 0))
    dear = replace(one, method=replace(one.method, seconds=0.2, spans={**SPANS, "draft": 0.16, "draft/verify": 0.12}))
    (line,) = losing(cell(dear).row())
    assert "drafting 4.0 tokens costs 8.00 steps (level 2 emits 1.3 tokens per pass of 2.00 steps)" in line


@pytest.mark.usefixtures("undrawn")
def test_questions_that_differ_in_the_temperature_are_told_apart_on_the_page(tmp_path: Path) -> None:
    path = write_run(tmp_path, [cell(sample("p1"), sample("p2"), temperature=t) for t in (0.0, 1.0)])
    page = write_report([path], png=False).read_text()
    assert all(f"· T {t}</h3>" in page for t in (0.0, 1.0))
    assert "temperature 0.0</h3>" not in page
