"""`specbench skip-layers`: a planted set comes out as a method file that runs; what cannot be searched is refused."""

import csv
import io
import json
from pathlib import Path

import pytest
import torch
import yaml
from transformers import LlamaForCausalLM

from specbench.decoding.method_files import HEADER
from tests.support.checkpoints import llama
from tests.support.frontdoor import SHORT, Command
from tests.support.tinypair import CONTEXT, EOS, Pair, prompts, save_tokenizer

FEW = ("--max-new-tokens", "8", "--cost", "share")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four layers; the second and third add nothing to what passes through them."""
    place: Path = tmp_path_factory.mktemp("planted")
    torch.manual_seed(0)
    shape = {"max_position_embeddings": CONTEXT, "bos_token_id": None, "eos_token_id": EOS, "pad_token_id": None}
    net = LlamaForCausalLM(llama(**shape, num_hidden_layers=4))
    for weight in (w for w in net.parameters() if w.ndim > 1):
        weight.data *= 15
    for layer in net.model.layers[1:3]:
        layer.self_attn.o_proj.weight.data.zero_()
        layer.mlp.down_proj.weight.data.zero_()
    net.save_pretrained(place)
    save_tokenizer(place)
    return place


def test_a_planted_set_becomes_a_method_that_runs(command: Command, target: Path, tmp_path: Path) -> None:
    data = prompts(tmp_path / "words.jsonl", 4, 6, 5, 7)
    found = command(
        "skip-layers", "--target", target, "--dataset", data, *FEW, "--output", "mine.yaml", "--format", "json"
    ).ok()
    rows = {row["step"]: row for row in json.loads(found.out)}
    assert rows["all layers"]["speedup_predicted"] == pytest.approx(1)
    best = max((row for row in rows.values() if row["kept"] < 4), key=lambda row: row["speedup_predicted"])
    assert (best["layers"], best["alpha"], best["alpha_held_out"], best["c"]) == ("target[0,3]", 1, 1, 0.5)
    assert {"early exit 25 %", "early exit 50 %", "early exit 75 %", "layer-skip"} <= rows.keys()
    assert "target[0,3] is predicted to give 1.80× at K 8" in found.err
    content = yaml.safe_load((tmp_path / "mine.yaml").read_text())
    assert set(content) == HEADER
    assert "2 of the 4 layers" in content["summary"]
    ran = command("run", "--target", target, "--method", "mine.yaml", "--dataset", data, *SHORT)
    (row,) = ran.table()
    assert (row["status"], row["lossless"], row["alpha"]) == ("ok", "identical", "1.0")


@pytest.mark.parametrize("style", ["table", "md", "csv"])
def test_the_steps_are_printed(command: Command, target: Path, tmp_path: Path, style: str) -> None:
    data = prompts(tmp_path / "words.jsonl", 4, 6)
    found = command("skip-layers", "--target", target, "--dataset", data, *FEW, "--format", style, "-q")
    assert (found.code, found.err) == (0, "")
    assert "target[0,3]" in found.out.replace("\\", "")  # which markdown needs before a bracket
    if style == "csv":
        assert len(list(csv.DictReader(io.StringIO(found.out)))) >= 8
    assert {file.name for file in tmp_path.iterdir()} == {"words.jsonl"}


def test_where_nothing_pays_it_says_so_and_enough_sets_are_scored_to_leave_every_layer_out(
    command: Command, pair: Pair, target: Path, tmp_path: Path
) -> None:
    """Two layers, each of which the other cannot do without."""
    usual = ("--dataset", prompts(tmp_path / "words.jsonl", 4, 6, 5, 7), *FEW, "--evaluations")
    found = command("skip-layers", "--target", pair.target, *usual, 3).ok()
    assert "no set of layers is predicted to pay: the best, target[" in found.err
    command("skip-layers", "--target", target, *usual, 4).refused("takes 5 to leave one out")
