"""Pairs with a recurrent state through the front door: what they do, and what is refused before a weight is read."""

from pathlib import Path

import pytest
import torch

from tests.support.frontdoor import SHORT, Command
from tests.support.tiny import network
from tests.support.tinypair import Pair, prompts, save_tokenizer


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("recurrent")
    for place, family in ((folder / "target", "mamba2"), (folder / "draft", "mamba")):
        network(family, 64, dtype=torch.float32).save_pretrained(place)
        save_tokenizer(place)
    return Pair(folder / "target", folder / "draft")


def test_a_run_is_lossless_and_says_what_taking_back_costs(command: Command, recurrent: Pair, tmp_path: Path) -> None:
    found = command("run", *recurrent.options, "--dataset", prompts(tmp_path / "words.jsonl", 4, 6), *SHORT).ok()
    (row,) = found.table()
    assert row["lossless"] in ("identical", "numeric")
    assert (row["tier_resolved"], row["dtype_resolved"]) == ("eager", "float32")
    assert "(mamba2) keeps a recurrent state" in found.err
    taken_back = "rejected tokens are taken back by a copy of its state, and accepted ones read again: that is part of"
    assert f"target: {taken_back} v\n" in found.err
    assert f"draft: {taken_back} c; it continues from a state one token at a time only\n" in found.err
    assert (row["target_rollback"], row["draft_rollback"]) == ("snapshot", "single")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--method", "tree-top"), "--method tree-top drafts trees, and"),
        (("--method", "early-exit"), "keeps a recurrent state, and drafts from some of its layers are not known"),
        (("--batch", "2"), "--batch 2:"),
        (("--tier", "compile"), "--tier compile:"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason_and_what_works(
    options: tuple[str, ...], said: str, command: Command, recurrent: Pair
) -> None:
    found = command("run", *recurrent.options, "--dataset", "code", *SHORT, *options).refused(said, "recurrent state")
    assert "use " in found.line or "methods are" in found.line
