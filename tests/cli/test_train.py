"""`specbench train`: a draft that runs, is gone on with and is judged; what cannot be trained is refused in a line."""

import json
from pathlib import Path

import pandas as pd
import pytest

from specbench.jobs.training import train
from specbench.training.distil import Pace
from tests.support.frontdoor import SHORT, Command
from tests.support.tinypair import Pair, prompts

TINY = ("--max-new-tokens", "8", "--batch", "4", "--length", "32", "--hidden", "32", "--layers", "1", "--tokens", "400",
        "--evaluations", "2", "--rows", "4")  # fmt: skip


@pytest.fixture
def data(tmp_path: Path) -> str:
    return prompts(tmp_path / "words.jsonl", *[3 + n % 6 for n in range(24)])


def last(text: str) -> str:
    return text.strip().splitlines()[-1]


def test_a_trained_draft_runs_and_the_same_command_goes_on_with_it(
    command: Command, pair: Pair, data: str, tmp_path: Path
) -> None:
    words = ("train", "draft", "--target", pair.target, "--data", data, *TINY, "--output", "mine", "--format", "json")
    found = command(*words).ok()
    (row,) = json.loads(found.out)
    assert row["category"] == "all"
    assert 0 <= row["alpha"] <= 1
    assert 1 <= row["accepted"] <= 5
    unseen = "jsonl:mine/held-out.jsonl"
    assert last(found.err) == f"specbench sweep-k --target {pair.target} --draft mine --dataset {unseen}"
    assert "before any training, held out α" in found.err
    card = (tmp_path / "mine" / "README.md").read_text()
    curve = pd.read_csv(tmp_path / "mine" / "curve.csv")
    assert set(curve.category) > {"all"}
    evaluations = curve.groupby("category").size()
    assert (evaluations == evaluations["all"]).all()
    assert curve.alpha.between(0, 1).all()
    assert (curve.tokens_per_round >= 1).all()
    assert "| 0 |  |" in card
    assert "license: unknown" in card
    again = command(*words)
    assert again.out == found.out
    assert "continuing a fresh draft" in again.err
    ran = command("run", "--target", pair.target, "--draft", "mine", "--dataset", unseen, *SHORT)
    (cell,) = ran.table()
    assert (cell["status"], cell["lossless"]) == ("ok", "identical")
    held_out = (tmp_path / "mine" / "held-out.jsonl").read_text().splitlines()
    assert f", {len(held_out)} held out" in found.err
    other = command(*words, "--rate", "0.1")
    assert (other.code, other.out) == (2, "")
    assert "mine was begun with rate 0.001, not 0.1" in last(other.err)


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (("--from", "pruned", "--layers", "1"), "a part of the target: 1 layer of width"),
        (("--hidden", "32", "--draft-vocabulary", "30"), "a head of 30 tokens"),
    ],
)
def test_a_draft_may_be_begun_otherwise(
    command: Command, pair: Pair, data: str, start: tuple[str, ...], said: str
) -> None:
    few = ("--max-new-tokens", "6", "--batch", "4", "--length", "32", "--tokens", "60", "--evaluations", "1")
    few += ("--rate-warmup", "0.1")  # a setting of runs has that name, too
    found = command("train", "draft", "--target", pair.target, "--data", data, *few, *start, "--output", "mine").ok()
    assert said in found.err
    assert ("its vocabulary covers" in found.err) == ("--draft-vocabulary" in start)
    ran = command("run", "--target", pair.target, "--draft", "mine", "--dataset", data, *SHORT)
    assert ran.table()[0]["lossless"] == "identical"


def test_a_checkpoint_may_be_trained_further_on_text_as_it_is(command: Command, pair: Pair, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.mkdir()
    for name in ("a", "b", "c", "d"):
        (text / f"{name}.txt").write_text(" ".join(f"w{n % 37}" for n in range(100)))
    few = ("--as-it-is", "--length", "16", "--tokens", "200", "--evaluations", "1", "--from", pair.draft)
    command("train", "draft", "--target", pair.target, "--data", f"text:{text}", *few, "--output", "mine").ok()
    assert "the text of text:" in (tmp_path / "mine" / "README.md").read_text()


def test_boosted_drafts_run_together(command: Command, pair: Pair, data: str) -> None:
    words = ("train", "boost", "--target", pair.target, "--data", data, *TINY, "--output", "three", "--format", "json")
    found = command(*words).ok()
    rows = json.loads(found.out)
    assert [row["draft"] for row in rows] == [1, 2, 3]
    shares = [row["together"] for row in rows]
    assert shares == sorted(shares)
    line = last(found.err).split()
    assert line[:2] == ["specbench", "run"]
    ran = command(*line[1:], *SHORT)
    (cell,) = ran.table()
    assert (cell["status"], cell["lossless"]) == ("ok", "identical")
    assert command(*words).out == found.out
    assert "was begun with boosted True, not False" in last(command(*words, "--alike").err)


def test_hours_set_the_tokens_once(
    command: Command, pair: Pair, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("train", "draft", "--target", pair.target, "--data", data, *TINY, "--hours", "0.01", "--output", "mine")
    monkeypatch.setattr(train, "pace", lambda *_: Pace(10.0, 0.0, 10.0, 1))
    found = command(*words)
    assert "10 tokens/s here: 360 tokens in 0.01 h" in found.err
    assert json.loads((tmp_path / "mine" / "training.json").read_text())["tokens"] == 360
    monkeypatch.setattr(train, "pace", lambda *_: Pace(99.0, 0.0, 99.0, 1))
    again = command(*words)
    assert again.out == found.out
    assert "tokens/s here" not in again.err


def test_a_training_that_diverges_keeps_the_best_draft(command: Command, pair: Pair, data: str, tmp_path: Path) -> None:
    words = ("train", "draft", "--target", pair.target, "--data", data, *TINY, "--output", "mine")
    found = command(*words, "--rate", "1e30", "--clip", "1e30", "--rate-warmup", "0")
    assert found.code == 6
    assert "mine has the best draft before that; try a smaller --rate" in last(found.err)
    ran = command("run", "--target", pair.target, "--draft", "mine", "--dataset", data, *SHORT)
    assert ran.table()[0]["lossless"] == "identical"
