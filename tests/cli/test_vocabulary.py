"""Pairs with two tokenizers through the front door: which rule it is, what the row says, and what is refused."""

import json
import os
from pathlib import Path

import pytest

from specbench.backends.native import open_pair
from specbench.errors import UsageError
from specbench.spec import RunSpec
from tests.support.foreign import byte_level, save_pair, sentence_pieces
from tests.support.frontdoor import Command, Outcome
from tests.support.tinypair import Pair

THE = [("Ġ", "t"), ("h", "e"), ("Ġt", "he")]
FEW = ("--max-new-tokens", "10", "--warmup", "0", "--k", "3")


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("foreign")
    return save_pair(folder, byte_level(THE), sentence_pieces(["▁the", "▁a", "é"]))


@pytest.fixture
def run(command: Command, foreign: Pair, tmp_path: Path) -> Command:
    texts = ["the thé", "a", " 日本 the"]
    rows = [json.dumps({"id": f"p{n}", "prompt": text}) + "\n" for n, text in enumerate(texts)]
    (tmp_path / "texts.jsonl").write_text("".join(rows))

    def call(*arguments: object) -> Outcome:
        return command("run", *foreign.options, "--dataset", f"jsonl:{tmp_path / 'texts.jsonl'}", *FEW, *arguments)

    return call


@pytest.mark.parametrize("rule", ["common", "strings"])
def test_greedy_output_is_the_baselines_and_the_row_says_by_which_rule(run: Command, rule: str) -> None:
    found = run("--vocabulary", rule).ok()
    (row,) = found.table()
    assert (row["lossless"], row["vocabulary_resolved"]) == ("identical", rule)
    assert row["vocabulary_shared"].endswith("of the draft's")
    assert int(row["drafted"]) > 0
    (note,) = [line for line in found.err.splitlines() if "tokens are common" in line]
    assert f"vocabulary {rule}: the draft has another tokenizer; " in note


def test_left_to_us_it_is_the_common_tokens_where_there_are_enough(run: Command) -> None:
    (row,) = run().table()
    assert (row["vocabulary_resolved"], row["vocabulary"]) == ("common", "")


def test_a_pair_with_one_tokenizer_says_nothing_of_it(command: Command, pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "words.jsonl").write_text('{"id": "p", "prompt": "w1 w2"}\n')
    found = command("run", *pair.options, "--dataset", f"jsonl:{tmp_path / 'words.jsonl'}", *FEW)
    assert (found.code, found.table()[0]["vocabulary_resolved"]) == (0, "")
    assert "tokenizer" not in found.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("--method", "tree-distinct"),
        pytest.param(("--method", "tree-dynamic"), marks=pytest.mark.slow),
        pytest.param(("--method", "merge"), marks=pytest.mark.slow),
        ("--method", "cascade"),
        ("--method", "block", "--temperature", "1"),
        pytest.param(("--batch", "3"), marks=pytest.mark.slow),
        ("--batch", "2", "--method", "tree-top"),
        pytest.param(("--vocabulary", "strings", "--batch", "2"), marks=pytest.mark.slow),
        pytest.param(("--vocabulary", "strings", "--schedule", "confidence"), marks=pytest.mark.slow),
        ("--vocabulary", "strings", "--temperature", "1"),
        pytest.param(("--vocabulary", "strings", "--method", "token-match"), marks=pytest.mark.slow),
        pytest.param(("--vocabulary", "strings", "--method", "merge"), marks=pytest.mark.slow),
        pytest.param(("--vocabulary", "strings", "--method", "tree-top", "--batch", "2"), marks=pytest.mark.slow),
        ("--vocabulary", "strings", "--method", "tree-dynamic", "--temperature", "1"),
    ],
    ids=" ".join,
)
def test_methods_that_draft_with_such_a_model(run: Command, arguments: tuple[str, ...]) -> None:
    row = run(*arguments).row()
    assert row["lossless"] == ("not compared" if "--temperature" in arguments else "identical")
    assert int(row["drafted"]) > 0


def test_check_says_the_rule_and_both_shares(command: Command, foreign: Pair, tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text('{"id": "p", "prompt": "the a"}\n')
    usual = (*foreign.options, "--max-new-tokens", "9", "--dataset", f"jsonl:{tmp_path / 'texts.jsonl'}")
    found = command("check", *usual).ok()
    assert "vocabulary common: the draft has another tokenizer; " in found.err
    assert "% of the target's and " in found.err
    strings = command("check", *usual, "--vocabulary", "strings")
    assert "vocabulary strings: " in strings.err
    assert "tier eager: texts are re-tokenised" in strings.err


def test_what_looks_into_a_pair_is_refused_where_the_rows_of_its_draft_say_nothing(foreign: Pair) -> None:
    """Calibration and searches; what scores texts again by the draft alone leaves it out by either rule."""
    spec = RunSpec(target=str(foreign.target), draft=str(foreign.draft), vocabulary="strings", tier="eager")
    opened = open_pair([spec])
    with pytest.raises(UsageError, match="use --vocabulary common"):
        opened.models(spec)
    for rule in ("common", "strings"):
        loaded = open_pair([spec.with_(vocabulary=rule)])
        loaded.load()
        assert loaded.plain == {"target"}


def test_every_model_of_a_method_has_its_own_rule(command: Command, foreign: Pair, tmp_path: Path) -> None:
    second = save_pair(tmp_path / "second", byte_level(THE), byte_level([("t", "h")], eos="<s>"))
    drafters = [{"ModelDrafter": {"model": name, "k": 2}} for name in ("draft", "second")]
    method = {"Speculate": {"drafter": {"Merge": {"drafters": drafters}}, "model": "target", "verifier": "Rejection"}}
    file = tmp_path / "two.yaml"
    file.write_text(json.dumps({"summary": "s", "paper": "p", "lossless": True, "method": method}))
    (tmp_path / "texts.jsonl").write_text('{"id": "p", "prompt": "the a"}\n')
    row = command(
        *("run", *foreign.options, "--model", f"second={second.draft}", "--method", file),
        *("--dataset", f"jsonl:{tmp_path / 'texts.jsonl'}", *FEW),
    ).row()
    assert row["vocabulary_resolved"] == "common, second common"
    first, other = row["vocabulary_shared"].split("; ")
    assert first.endswith("of the draft's")
    assert other == "257 tokens are common, 98.8% of the target's and 99.6% of the second's"
    assert row["lossless"] == "identical"


@pytest.mark.parametrize("rule", ["common", "strings"])
def test_smollm2_with_the_shipped_draft(command: Command, tmp_path: Path, rule: str) -> None:
    if "SPECBENCH_SMOLLM2" not in os.environ:
        pytest.skip("SPECBENCH_SMOLLM2 names no folder with smollm2-135m")
    folder = Path(os.environ["SPECBENCH_SMOLLM2"], "smollm2-135m")
    (tmp_path / "code.jsonl").write_text('{"id": "p", "prompt": "def add(a, b):\\n    return"}\n')
    row = command(
        *("run", "--target", folder, "--draft", "demo-draft", "--vocabulary", rule, "--chat-template", "none"),
        *("--dataset", f"jsonl:{tmp_path / 'code.jsonl'}", "--max-new-tokens", "24", "--warmup", "0", "--k", "3"),
    ).row()
    assert (row["lossless"], row["vocabulary_resolved"]) == ("identical", rule)
    assert row["vocabulary_shared"] == "3,476 tokens are common, 7.1% of the target's and 84.9% of the draft's"
    assert float(row["alpha"]) > 0
