"""Heads from the command line: recognised by their files, recorded in the row, refused where they do not fit."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, GPT2Config, GPT2LMHeadModel, LlamaConfig

from specbench.measure.pair import cost_per
from specbench.spec import RunSpec
from tests.support.frontdoor import Command
from tests.support.heads import write_head
from tests.support.tinypair import EOS, Pair, prompts, save_tokenizer

SETTINGS = ("--k", "2", "--tier", "eager")


@pytest.fixture(scope="module")
def config(pair: Pair) -> Any:
    return AutoConfig.from_pretrained(pair.target)


def written(folder: Path, kind: str, config: Any, **switches: Any) -> Path:
    head = write_head(folder / "heads" / kind, kind, config, **switches)
    if kind == "pard":  # a network like any other, but for its masks
        save_tokenizer(head)
    return head


@pytest.mark.parametrize(("kind", "switches", "said"), [
    ("eagle1", {}, "EAGLE-1"),
    ("eagle3", {"aux": (0, 1)}, "EAGLE-3"),
    ("eagle3", {"aux": (0, 1), "vocab": 20, "names": "speculators"}, "EAGLE-3 (speculators format)"),
    ("medusa", {}, "Medusa"),
    ("peagle", {"aux": (0, 1), "names": "speculators"}, "P-EAGLE (speculators format)"),
    ("dflash", {}, "DFlash"),
    ("dspark", {}, "DSpark"),
    ("pard", {}, "safetensors"),
])  # fmt: skip
@pytest.mark.parametrize("words", [
    ("--method", "chain"),
    pytest.param(("--method", "tree-dynamic"), marks=pytest.mark.slow),
    pytest.param(("--method", "tree-iid", "--temperature", "1"), marks=pytest.mark.slow),
    pytest.param(("--batch", "2", "--temperature", "0.8"), marks=pytest.mark.slow),
], ids=" ".join)  # fmt: skip
def test_a_head_drafts_for_its_target(
    run: Command, config: Any, tmp_path: Path, kind: str, switches: dict[str, Any], said: str, words: tuple[str, ...]
) -> None:
    head = written(tmp_path, kind, config, **switches)
    found = run("--draft", head, *SETTINGS, *words).ok()
    (row,) = found.table()
    assert row["status"] == "ok", found.err
    assert row["draft_weights"] == said
    assert row["draft_rollback"] == "position"
    assert row["draft_cost_per"] == ("token" if kind in ("eagle1", "eagle3") else "round")
    assert row["lossless"] in ("identical", "not compared")
    assert float(row["tokens_per_round"]) >= 1


@pytest.mark.parametrize(("method", "chain", "head"), [
    ("baseline", "", ""),
    ("chain", "token", "round"),
    ("tree-dynamic", "token", "round"),
    ("prompt-lookup", "round", "round"),
    ("merge", "token", "round"),
    ("boosted-merge", "token", "token"),  # its second and third model are none
    ("early-exit", "token", "token"),
    ("cascade", "token", "token"),
    ("cascade-vertical", "token", "token"),
])  # fmt: skip
def test_what_the_cost_of_drafting_goes_with(method: str, chain: str, head: str) -> None:
    spec = RunSpec(method=method)
    assert (cost_per(spec, {}), cost_per(spec, {"draft_at_once": True})) == (chain, head)


def test_the_layers_that_are_read_are_said_and_can_be_named(run: Command, config: Any, tmp_path: Path) -> None:
    head = written(tmp_path, "eagle3", config, aux=(0, 1))
    found = run("--draft", head, *SETTINGS, "--aux-layers", "1,2")
    assert "reads the target at boundaries 1, 2: --aux-layers names them" in found.err
    (row,) = found.table()
    assert (row["status"], row["aux_layers"]) == ("ok", "1,2")
    usual = run("--draft", head, *SETTINGS)
    assert "reads the target at boundaries 0, 1: its config.json names them" in usual.err
    assert re.search(r"drafts its target's most probable token at \d+% of \d+ places of an article", usual.err)


EAGLE3: dict[str, Any] = {"kind": "eagle3", "aux": (0, 1)}
NO_NETWORK = "its draft must be a network by itself"


@pytest.mark.parametrize(("head", "words", "code", "line"), [
    (EAGLE3, ("--aux-layers", "1,2,3"), 4, "its fc reads 2 layers of the target, and there are 3"),
    (EAGLE3, ("--aux-layers", "first"), 2, "--aux-layers first: write numbers of layers of the target, such as 2,1"),
    (EAGLE3, ("--draft-quantize", "w8a8"), 2, "--draft-quantize w8a8: "),
    (EAGLE3, ("--method", "online"), 2, f"--method online: {NO_NETWORK}"),
    (EAGLE3, ("--method", "triforce"), 2, f"--method triforce: {NO_NETWORK}"),
    (EAGLE3, ("--method", "cascade-vertical"), 2, f"--method cascade-vertical: {NO_NETWORK}"),
    ({"kind": "medusa"}, ("--draft-vocabulary", "25%"), 2, "(Medusa) has no single output"),
    ({"kind": "medusa", "heads": 3}, ("--k", "4"), 2, "(Medusa) drafts 3 tokens"),
])  # fmt: skip
def test_what_a_head_cannot_do_is_one_line_before_anything_is_loaded(
    run: Command, config: Any, tmp_path: Path, head: dict[str, Any], words: tuple[str, ...], code: int, line: str
) -> None:
    found = run("--draft", written(tmp_path, config=config, **head), *SETTINGS, *words)
    assert (found.code, line in found.err) == (code, True), found.err
    assert "Traceback" not in found.err


def test_a_head_of_some_tokens_says_how_much_of_the_text_it_could_draft(
    run: Command, config: Any, tmp_path: Path
) -> None:
    known = written(tmp_path, "eagle3", config, aux=(0, 1), vocab=20)
    found = run("--draft", known, *SETTINGS, "--temperature", "1", "--ignore-eos")
    (row,) = found.table()
    offsets = load_file(known / "model.safetensors")["d2t"]
    ids = set((torch.arange(20) + offsets).tolist())
    (folder,) = (tmp_path / "results").iterdir()
    lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    turns = [line["body"]["turn"] for line in lines if "turn" in line["body"]]
    traces = [arm["trace"] for turn in turns for arm in turn["arms"].values()]
    tokens = [token for trace in traces for token in trace["tokens"]]
    assert 0 < float(row["draft_coverage"]) < 1
    assert float(row["draft_coverage"]) == pytest.approx(sum(token in ids for token in tokens) / len(tokens))
    assert float(row["alpha"]) <= 1
    assert row["draft_head"] == "EAGLE-3"


@pytest.mark.parametrize(("kind", "switches"), [("eagle1", {}), ("eagle3", {"aux": (0, 1)})])
def test_the_output_of_a_head_can_be_cut(
    run: Command, config: Any, tmp_path: Path, kind: str, switches: dict[str, Any]
) -> None:
    found = run("--draft", written(tmp_path, kind, config, **switches), *SETTINGS, "--draft-vocabulary", "25%")
    (row,) = found.table()
    assert (row["status"], row["lossless"]) == ("ok", "identical"), found.err
    assert row["draft_vocabulary_resolved"].startswith("16 of 64 tokens")
    assert 0 <= float(row["draft_coverage"]) < 1


def test_a_head_that_names_another_target_says_so(run: Command, config: Any, tmp_path: Path) -> None:
    head = written(tmp_path, "eagle3", config, aux=(0, 1), names="speculators")
    assert "it was trained for org/target, and the target is" not in run("--draft", head, *SETTINGS).err
    described = json.loads((head / "config.json").read_text())
    described["speculators_config"]["verifier"]["name_or_path"] = "org/another-8b"
    (head / "config.json").write_text(json.dumps(described))
    assert "it was trained for org/another-8b, and the target is" in run("--draft", head, *SETTINGS).err


def test_a_target_without_the_module_that_its_description_speaks_of_is_no_draft_for_itself(
    run: Command, pair: Pair, tmp_path: Path
) -> None:
    target = shutil.copytree(pair.target, tmp_path / "target")
    described = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**described, "num_nextn_predict_layers": 1}))
    found = run("--target", target, "--draft", target, *SETTINGS)
    assert (found.code, "its config.json names an MTP module, but its files have no MTP module" in found.err) == (
        4, True), found.err  # fmt: skip


def test_a_target_of_few_positions_is_probed_with_as_many(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Learned positions end somewhere, and the text of the probe is longer."""
    config = GPT2Config(vocab_size=EOS + 1, n_positions=48, n_embd=32, n_layer=2, n_head=2, bos_token_id=None)
    config.eos_token_id = EOS
    target = tmp_path / "gpt2"
    GPT2LMHeadModel(config).save_pretrained(target)
    save_tokenizer(target)
    sizes = {"num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 48, "rms_norm_eps": 1e-6}
    described = LlamaConfig(vocab_size=EOS + 1, hidden_size=32, num_hidden_layers=2, **sizes)
    head = write_head(tmp_path / "head", "eagle1", described)
    words = ("--dataset", prompts(tmp_path / "words.jsonl", 4), "--max-new-tokens", 4, "--warmup", 0)
    found = command("run", "--target", target, "--draft", head, *words, *SETTINGS)
    assert (found.code, "places of an article" in found.err) == (0, True), found.err


def test_a_head_of_another_target_is_refused(run: Command, config: Any, tmp_path: Path) -> None:
    other = AutoConfig.from_pretrained(config.name_or_path, hidden_size=2 * config.hidden_size)
    found = run("--draft", written(tmp_path, "eagle1", other), *SETTINGS)
    assert (found.code, "it is for a target of width" in found.err) == (4, True), found.err
