"""Heads are told from their files alone: every format is what it is, an ordinary network is none, some are refused."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from specbench.models.heads import files
from specbench.models.heads.files import read_head
from specbench.models.heads.recognition import without_mtp
from tests.support.checkpoints import llama, refusal_of
from tests.support.head_passes import head_of
from tests.support.heads import NAMES, save, write_head

TARGET = llama(num_hidden_layers=8)
KINDS = ("eagle1", "eagle3", "peagle", "medusa", "dflash", "dspark")
FORMATS = [(kind, "midlayer") for kind in KINDS] + [
    *(("eagle3", names) for names in NAMES if names not in ("midlayer", "old")),
    *(("eagle1", names) for names in ("model", "old", "draft_model")),
    ("peagle", "speculators"),
    ("dflash", "speculators"),
    ("dspark", "speculators"),
]


class Touches:
    """A pickle of it makes a file when it is read by a loader that runs code."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return Path.touch, (self.path,)


def network(folder: Path, **keys: Any) -> Path:
    """An ordinary checkpoint, with some more keys in its config.json."""
    LlamaForCausalLM(llama()).save_pretrained(folder)
    config = folder / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **keys}))
    return folder


@pytest.mark.parametrize(("kind", "names"), FORMATS)
def test_every_format_is_recognised_and_has_the_same_tensors(tmp_path: Path, kind: str, names: str) -> None:
    switches = {"layers": 2, "vocab": 5} if kind == "eagle3" else {}
    head = head_of(write_head(tmp_path / "head", kind, TARGET, names=names, **switches))
    plain = head_of(write_head(tmp_path / "plain", kind, TARGET, **switches))
    assert head.kind == plain.kind == kind
    assert head.tensors.keys() == plain.tensors.keys()
    assert all(torch.equal(head.tensors[name], plain.tensors[name]) for name in plain.tensors)
    assert head.format == ("speculators" if names in ("speculators", "old") else "")


@pytest.mark.parametrize("file", ["sharded", "pytorch_model.bin", "model.pt"])
def test_a_head_may_lie_in_shards_and_in_pickles_of_tensors(tmp_path: Path, file: str) -> None:
    head = head_of(write_head(tmp_path / "head", "eagle1", TARGET, file=file))
    plain = head_of(write_head(tmp_path / "plain", "eagle1", TARGET))
    assert all(torch.equal(head.tensors[name], plain.tensors[name]) for name in plain.tensors | head.tensors)


def test_old_pickles_are_read(tmp_path: Path) -> None:
    folder = write_head(tmp_path, "medusa", TARGET)
    tensors = load_file(folder / "medusa_lm_head.safetensors")
    (folder / "medusa_lm_head.safetensors").unlink()
    torch.save(tensors, folder / "medusa_lm_head.pt", _use_new_zipfile_serialization=False)
    head = head_of(folder)
    assert head.tensors.keys() == tensors.keys()


def test_a_whole_network_with_medusa_heads(tmp_path: Path) -> None:
    heads = load_file(write_head(tmp_path / "heads", "medusa", TARGET) / "medusa_lm_head.safetensors")
    weights = network(tmp_path / "whole") / "model.safetensors"
    save_file(load_file(weights) | {f"medusa_head.{name}": tensor for name, tensor in heads.items()}, weights)
    head = head_of(tmp_path / "whole")
    assert (head.kind, head.format) == ("medusa", "Medusa-2")
    assert head.tensors.keys() == heads.keys()


def test_a_network_that_drafts_in_parallel_is_left_to_who_loads_networks(tmp_path: Path) -> None:
    head = head_of(write_head(tmp_path, "pard", TARGET))
    assert head.kind == "pard"
    assert not head.tensors
    assert head.config["pard_token"] == TARGET.vocab_size - 1


@pytest.mark.parametrize("family", ["DeepSeek", "Qwen3-Next", "MiMo", "speculators"])
def test_a_module_in_the_files_of_a_target_or_its_own(tmp_path: Path, family: str) -> None:
    target = tmp_path if family == "speculators" else network(tmp_path)
    layer = {"self_attn.q_proj.weight": torch.ones(2), "input_layernorm.weight": torch.ones(3)}
    head = head_of(write_head(target, "mtp", llama(), family=family, layer=layer))
    assert (head.kind, head.format) == ("mtp", family)
    parts = {"proj.weight", "embed_norm.weight", "hidden_norm.weight", "norm.weight"}
    assert head.tensors.keys() == parts | {f"layer.{name}" for name in layer}


def test_the_layer_of_a_speculators_head_is_in_one_level_with_the_rest(tmp_path: Path) -> None:
    head = head_of(write_head(tmp_path, "eagle3", TARGET, names="speculators", norm_before_residual=True))
    assert head.config["norm_before_residual"] is True
    assert head.config["rope_theta"] == 5000.0
    assert "transformer_layer_config" not in head.config


def test_a_head_says_which_target_it_was_trained_for(tmp_path: Path) -> None:
    how = (("eagle3", "speculators"), ("medusa", "midlayer"), ("eagle1", "midlayer"))
    heads = [read_head(write_head(tmp_path / kind, kind, TARGET, names=names), "head") for kind, names in how]
    assert [head and head.trained_for for head in heads] == ["org/target", "base", None]
    assert heads[0] is not None
    assert heads[0].warnings_for("/somewhere/Target/") == ()
    assert heads[0].warnings_for("alias", "/somewhere/target") == ()
    assert "trained for org/target, and the target is org/other" in heads[0].warnings_for("org/other")[0]
    assert heads[2] is not None
    assert heads[2].warnings_for("anything") == ()


def test_why_a_target_has_no_module(tmp_path: Path) -> None:
    config = {"num_hidden_layers": 2}
    assert "have no MTP module" in without_mtp(config, {"model.layers.1.mlp.weight": (1,)})
    for name in ("model.mtp.layers.0.eh_proj.weight", "mtp_block.0.weight", "model.layers.2.e_proj.weight"):
        said = without_mtp(config, {"model.layers.1.mlp.weight": (1,), name: (1,)})
        assert name in said
        assert "DeepSeek, Qwen3-Next, MiMo" in said


# --- what is none -----------------------------------------------------------------------------------------------------


def test_an_ordinary_network_is_none_and_no_weight_of_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network(tmp_path, num_nextn_predict_layers=1)  # its module was left out by who saved it
    stored = files.open_files(tmp_path)
    assert stored is not None

    def refuse(names: object) -> dict[str, torch.Tensor]:
        raise AssertionError("weights were read")

    monkeypatch.setattr(files, "open_files", lambda folder: files.Stored(stored.shapes, refuse))
    assert read_head(tmp_path) is None


def test_a_network_with_a_reduced_vocabulary_is_none(tmp_path: Path) -> None:
    weights = network(tmp_path, draft_vocab_size=3) / "model.safetensors"
    save_file(load_file(weights) | {"d2t": torch.zeros(3, dtype=torch.long)}, weights)
    assert read_head(tmp_path) is None


def test_folders_without_description_or_weights_are_none(tmp_path: Path) -> None:
    assert read_head(tmp_path) is None
    assert read_head(tmp_path / "absent") is None
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 2}')
    assert read_head(tmp_path) is None
    (tmp_path / "config.json").write_text("[]")
    assert read_head(tmp_path) is None


# --- what is refused --------------------------------------------------------------------------------------------------


def test_pickles_with_more_than_tensors_are_refused(tmp_path: Path) -> None:
    folder = write_head(tmp_path, "eagle1", TARGET)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"fc.weight": Touches(tmp_path / "ran")}, protocol=2))
    assert "has more in it than tensors" in refusal_of(read_head, folder)
    assert not (tmp_path / "ran").exists()
    torch.save({"fc.weight": Path("x")}, folder / "pytorch_model.bin")
    assert "has more in it than tensors" in refusal_of(read_head, folder)
    torch.save({"state": {"fc.weight": torch.ones(2)}}, folder / "pytorch_model.bin")
    assert "no table of tensors" in refusal_of(read_head, folder)


@pytest.mark.parametrize(("kind", "tensor", "file"), [
    ("Hydra heads", "hydra_mlp.0.0.linear.weight", "hydra_lm_head.pt"),
    ("MLP speculators", "speculator.emb.0.weight", "model.safetensors"),
    ("ReDrafter heads", "rnn_u.weight", "model.safetensors"),
])  # fmt: skip
def test_kinds_that_are_not_supported_are_refused_with_those_that_are(
    tmp_path: Path, kind: str, tensor: str, file: str
) -> None:
    (tmp_path / "config.json").write_text("{}")
    save({tensor: torch.ones(1)}, tmp_path, file)
    known = "EAGLE-1, EAGLE-3, MTP module, Medusa, PARD, P-EAGLE, DFlash, DSpark"
    assert refusal_of(read_head, tmp_path, "head") == f"head: {kind} are not supported: use one of {known}"


def test_damaged_files_are_named(tmp_path: Path) -> None:
    folder = write_head(tmp_path, "eagle1", TARGET)
    (folder / "model.safetensors").write_bytes(b"\x01\x02")
    assert "model.safetensors is damaged" in refusal_of(read_head, folder)
    write_head(tmp_path, "eagle1", TARGET, file="sharded")
    (folder / "model.safetensors").unlink()
    (folder / "part1.safetensors").unlink()
    assert "part1.safetensors is missing" in refusal_of(read_head, folder)
    (folder / "model.safetensors.index.json").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"PK\x03\x04")
    assert "pytorch_model.bin is damaged" in refusal_of(read_head, folder)
    (folder / "model.safetensors.index.json").write_text("{}")
    assert "index.json is damaged" in refusal_of(read_head, folder)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../outside.safetensors"}}')
    assert "index.json is damaged" in refusal_of(read_head, folder)
