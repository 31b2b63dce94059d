"""`specbench train head`: a head that runs at once and is gone on with; what cannot be is refused in a line."""

import json
from pathlib import Path

import pandas as pd
import pytest

from tests.support.cases import quick_or_slow
from tests.support.frontdoor import SHORT, Command
from tests.support.tinypair import Pair, prompts

TINY = ("--max-new-tokens", "8", "--batch", "4", "--length", "32", "--tokens", "400", "--evaluations", "2",
        "--rows", "4", "--k", "3", "--steps", "3")  # fmt: skip


@pytest.fixture
def data(tmp_path: Path) -> str:
    return prompts(tmp_path / "words.jsonl", *[3 + n % 6 for n in range(24)])


def last(text: str) -> str:
    return text.strip().splitlines()[-1]


SOME = ("--draft-vocabulary", "30")
NAMES = {"eagle3": "EAGLE-3 head", "medusa": "Medusa head", "mtp": "MTP module"}


@pytest.mark.parametrize(
    ("kind", "some"),
    quick_or_slow(
        [("eagle3", ()), ("eagle3", SOME), ("medusa", ()), ("medusa", SOME), ("mtp", ())],
        lambda kind, some: (kind, bool(some)) in {("eagle3", True), ("mtp", False)},
    ),
)
def test_a_trained_head_runs_and_the_same_command_goes_on_with_it(
    command: Command, pair: Pair, data: str, tmp_path: Path, kind: str, some: tuple[str, ...]
) -> None:
    words = ("train", "head", "--kind", kind, "--target", pair.target, "--data", data, *TINY, *some)
    words += ("--output", "mine", "--format", "json")
    found = command(*words).ok()
    (row,) = json.loads(found.out)
    assert 1 <= row["accepted"] <= 4
    unseen = "jsonl:mine/held-out.jsonl"
    assert last(found.err) == f"specbench run --target {pair.target} --draft mine --dataset {unseen}"
    name = NAMES[kind]
    assert f"draft: a fresh {name}: " in found.err
    assert ("a vocabulary of 30 tokens" in found.err) == bool(some)
    assert ("its vocabulary covers" in found.err) == bool(some)
    card = (tmp_path / "mine" / "README.md").read_text()
    assert f"A head ({name.removesuffix(' head')}) that drafts tokens" in card
    assert "over the first drafts of all places" in card
    curve = pd.read_csv(tmp_path / "mine" / "curve.csv")
    assert (curve.tokens_per_round >= 1).all()
    again = command(*words)
    assert again.out == found.out
    assert f"continuing a fresh {name}: " in again.err
    ran = command("run", "--target", pair.target, "--draft", "mine", "--dataset", unseen, *SHORT, "--k", "3")
    (cell,) = ran.table()
    assert (cell["status"], cell["lossless"]) == ("ok", "identical")
    other = command(*words, "--rate", "0.1")
    assert (other.code, other.out) == (2, "")
    assert "mine was begun with rate 0.001, not 0.1" in last(other.err)


def test_a_trained_mtp_module_learns_on(command: Command, pair: Pair, data: str, tmp_path: Path) -> None:
    words = ("train", "head", "--kind", "mtp", "--target", pair.target, "--data", data, *TINY)
    assert command(*words, "--output", "mine").code == 0
    found = command(*words, "--from", "mine", "--output", "again").ok()
    assert "draft: the MTP module of mine: " in found.err
    own = command(*words, "--from", pair.target, "--output", "own")
    assert "it has no MTP module for" in last(own.err)


@pytest.mark.parametrize("some", [pytest.param((), marks=pytest.mark.slow), SOME], ids=["all tokens", "some tokens"])
def test_a_draft_that_learned_to_go_on_through_masks_runs(
    command: Command, pair: Pair, data: str, tmp_path: Path, some: tuple[str, ...]
) -> None:
    words = ("train", "head", "--kind", "pard", "--from", pair.draft, "--target", pair.target, "--data", data, *TINY)
    words += (*some, "--output", "mine", "--format", "json")
    found = command(*words).ok()
    assert "through masks: 1 layer of width" in found.err
    config = json.loads((tmp_path / "mine" / "config.json").read_text())
    assert f"its mask is the token {config['pard_token']}" in found.err
    again = command(*words)
    assert again.out == found.out
    unseen = "jsonl:mine/held-out.jsonl"
    ran = command("run", "--target", pair.target, "--draft", "mine", "--dataset", unseen, *SHORT, "--k", "3")
    (cell,) = ran.table()
    assert (cell["status"], cell["lossless"]) == ("ok", "identical")
