"""`specbench tree`: places counted from rounds, the search on what was counted, and the command as users call it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from specbench.decoding.decode import begin, steps
from specbench.decoding.drafters.tree import Distinct, Expand, Planned
from specbench.decoding.loop import Speculate
from specbench.decoding.methods import build
from specbench.decoding.randomness import seeded
from specbench.decoding.verifiers.rejection import Rejection
from specbench.errors import UsageError
from specbench.measure.parsing import write_method
from specbench.measure.search import ChildCounts, best_tree, child_counts, tree_method
from specbench.spec import RunSpec
from specbench.theory.optimum import Costs
from tests.support.frontdoor import Command, Outcome
from tests.support.tinypair import Pair, prompts
from tests.support.toys import CPU, KINDS, Toy, random_pair
from tests.theory.test_sequoia import expected_tokens

SHORT = ("--limit", "2", "--max-new-tokens", "6", "--children", "2", "--nodes", "3", "--depth", "2", "--repeat", "1")
COSTS = Costs(0.1, 0.1, tuple(1 + 0.02 * n for n in range(9)), 0.02)


# --- counting and choosing --------------------------------------------------------------------------------------------


def test_every_judged_level_counts_once_by_the_child_that_was_accepted() -> None:
    p, q = random_pair(KINDS.index("flat"), 3, 5)
    method = Speculate(Expand(Toy(q), 2, (2, 2), Distinct()), Toy(p), Rejection())
    texts = [begin([(0,)], 40, method.drafter.room, (), CPU) for _ in range(8)]
    found = [step for seed, text in enumerate(texts) for step in steps(method, text, 40, seeded([seed], CPU))]
    seen = [child_counts(step) for step in found]
    assert sum(int(step.round.emitted) for step in found) == 320
    tested, hits = sum(s.tested for s in seen), [sum(s.accepted[b] for s in seen) for b in (0, 1)]
    assert tested == sum(int(step.round.tested) for step in found)
    assert sum(hits) == sum(int(step.round.accepted) for step in found)
    chances = [sum(bool(step.verdict.path[0, 0] == child) for step in found) / len(found) for child in (0, 1)]
    assert [h / tested for h in hits] == pytest.approx(chances, abs=0.06)
    assert 0 < hits[1] < hits[0]


def test_chances_end_with_the_last_place_that_was_ever_accepted() -> None:
    assert ChildCounts(10, (5, 2, 0, 0)).acceptance == (0.5, 0.2)
    assert ChildCounts(10, (5, 0, 1, 0)).acceptance == (0.5, 0.0, 0.1)
    assert ChildCounts(0, (0, 0)).acceptance == (0.0,)
    with pytest.raises(UsageError, match="no tree pays"):
        best_tree(ChildCounts(10, (0, 0)), 8, COSTS, 4, 2, "speedup")


def test_the_best_tree_is_better_than_the_best_chain_where_passes_are_cheap() -> None:
    found = best_tree(ChildCounts(100, (50, 20, 10)), 64, COSTS, 8, 4, "speedup")
    assert found.tree.speedup == max(size.speedup for size in found.trees) > found.chain.speedup
    assert expected_tokens(found.parents, (0.5, 0.2, 0.1)) == pytest.approx(found.tree.tokens)
    assert len(found.parents) == found.tree.nodes
    most = best_tree(ChildCounts(100, (50, 20, 10)), 64, COSTS, 8, 4, "tokens")
    assert most.tree.tokens >= found.tree.tokens
    assert (most.tree.nodes, most.chain.nodes) == (8, 4)


@pytest.mark.parametrize(("temperature", "branching"), [(0.0, "Top"), (0.7, "Distinct")])
def test_the_file_is_a_method(temperature: float, branching: str, tmp_path: Path) -> None:
    found = best_tree(ChildCounts(100, (50, 20, 10)), 64, COSTS, 8, 4, "speedup")
    file = tmp_path / "tree.yaml"
    write_method(file, tree_method(found, RunSpec(draft="demo-draft", temperature=temperature), ["code"]))
    method: Any = build(str(file), dict.fromkeys(("target", "draft"), Toy(torch.ones(1, 1))), 4)
    assert isinstance(method.drafter, Planned)
    assert tuple(method.drafter.parents) == found.parents
    assert type(method.drafter.branching).__name__ == branching
    assert "demo and demo-draft" in yaml.safe_load(file.read_text())["summary"]


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def tree(command: Command, pair: Pair, tmp_path: Path) -> Command:
    def call(*arguments: object) -> Outcome:
        data = prompts(tmp_path / "words.jsonl", 4, 6, 5)
        return command("tree", *pair.options, "--dataset", data, *SHORT, *arguments)

    return call


@pytest.mark.slow
@pytest.mark.parametrize("temperature", ["0", "1"])
def test_a_tree_that_was_found_runs(tree: Command, run: Command, temperature: str) -> None:
    found = tree("--temperature", temperature, "--by", "tokens", "--output", "mine.yaml").ok()
    assert "Which child of a node is" in found.out
    assert found.err.splitlines()[-1] == "wrote mine.yaml: specbench run --method mine.yaml"
    assert not (found.cwd / "results").exists()
    content = yaml.safe_load((found.cwd / "mine.yaml").read_text())
    assert len(content["method"]["Speculate"]["drafter"]["Planned"]["parents"]) == 3
    (row,) = run("--method", "mine.yaml", "--temperature", temperature).table()
    assert (row["status"], row["method"]) == ("ok", "mine.yaml")


def test_programs_get_numbers_and_nothing_else(tree: Command) -> None:
    found = tree("--format", "json", "-q")
    rows = json.loads(found.out)
    assert (found.err, [row["shape"] for row in rows]) == ("", ["tree", "chain"])
    assert all(isinstance(row["tokens_per_round"], float) and row["nodes"] <= 3 for row in rows)
    assert tree("--format", "csv", "-q").out.startswith("shape,nodes,depth,")


def test_a_file_that_is_there_is_replaced_when_asked(tree: Command, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("precious")
    found = tree("--output", file, "--overwrite")
    assert (found.code, f"replaced {file}" in found.err) == (0, True)
    assert file.read_text() != "precious"
