"""Runs with a draft whose vocabulary was cut: greedy output is the target's, and what it covers is said by category."""

import json
from pathlib import Path

import pytest

from specbench.backends.choose import backend_for
from specbench.spec import RunSpec
from tests.support.frontdoor import Command
from tests.support.tinypair import EOS, Pair


def words(folder: Path) -> str:
    """Prompts of two categories, and a text in which the words of one are frequent."""
    rows = [
        {"id": f"{kind}{n}", "category": kind, "prompt": " ".join(f"w{first + (n + i) % 20}" for i in range(6))}
        for kind, first in (("low", 0), ("high", 30))
        for n in range(2)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "low.txt").write_text(" ".join(f"w{n}" for n in range(24)) * 3)
    return f"jsonl:{folder / 'rows.jsonl'}"


def test_a_cut_draft_is_lossless_and_its_coverage_is_shown_by_category(
    command: Command, pair: Pair, tmp_path: Path
) -> None:
    data = words(tmp_path)
    cut = f"20:{tmp_path / 'low.txt'}"
    settings = ("--dataset", data, "--limit", 4, "--max-new-tokens", 12, "--warmup", 0, "--k", 3, "--ignore-eos")
    found = command("run", *pair.options, *settings, "--draft-vocabulary", cut, "--explain").ok()
    (row,) = found.table()
    assert row["lossless"] == "identical"
    assert row["draft_vocabulary_resolved"] == "20 of 64 tokens, the most frequent of low.txt"
    assert f"note: the draft knows {row['draft_vocabulary_resolved']}, and drafts no other" in found.err
    assert 0 < float(row["draft_coverage"]) < 1
    lines = found.table("categories.csv")
    assert [line["category"] for line in lines] == ["high", "low"]
    both = [float(line["draft_coverage"]) for line in lines]
    assert sum(both) / 2 == pytest.approx(float(row["draft_coverage"]))
    assert "coverage" in found.out


@pytest.mark.parametrize("method", ["tree-top", "merge", "early-exit"])
def test_any_draft_may_be_cut(command: Command, pair: Pair, tmp_path: Path, method: str) -> None:
    settings = ("--dataset", words(tmp_path), "--limit", 2, "--max-new-tokens", 8, "--warmup", 0, "--k", 2)
    found = command("run", *pair.options, *settings, "--method", method, "--draft-vocabulary", "25%")
    (row,) = found.table()
    assert (row["status"], row["lossless"]) == ("ok", "identical")
    assert "16 of 64 tokens" in row["draft_vocabulary_resolved"]


def test_a_method_file_may_cut_its_draft_and_leaves_others_whole(pair: Pair) -> None:
    specs = [RunSpec(target=str(pair.target), draft=str(pair.draft), method=name) for name in ("chain", "fr-spec")]
    backend = backend_for(specs)
    backend.load()
    (name,) = backend.networks.pair.cuts  # type: ignore[union-attr]
    modules = backend.networks.modules  # type: ignore[union-attr]
    assert name == "draft vocabulary 25%"
    assert modules[name].get_output_embeddings().weight.shape[0] == 16
    assert EOS in modules[name].get_output_embeddings().ids.tolist()
    assert modules["draft"].get_output_embeddings().weight.shape[0] == 64
    assert backend.describe()["draft_vocabulary_resolved"] == "", "the other cells of the run have nothing cut"
    assert any(line.startswith("the draft vocabulary 25% knows 16 of 64 tokens") for line in backend.warnings)
