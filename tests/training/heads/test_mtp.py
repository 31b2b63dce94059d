"""MTP modules that learn: their files in the format of speculators, how they begin, and those that learn on."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from specbench.models.heads.build import built
from specbench.models.heads.files import read_head
from specbench.models.heads.taps import whole_pass
from specbench.training.new_heads import HeadOptions, beginning, save_head
from tests.support.checkpoints import refusal_of
from tests.support.head_passes import head_of, tokens
from tests.support.heads import write_head
from tests.support.tiny import network, worst

V, H = 11, 16
OPTIONS = HeadOptions(None, 3, "org/target", seed=1)


def written(net: Any, options: HeadOptions, folder: Path) -> Any:
    """The student that `options` begins with, and what its folder is read as."""
    student, layout = beginning("mtp", net, options)
    save_head(student, layout, folder, torch.float32)
    found = read_head(folder)
    assert found is not None
    return student, built(found, net)


def test_a_module_has_the_names_and_shapes_of_speculators(tmp_path: Path) -> None:
    net = network("llama", V, dtype=torch.float32)
    written(net, OPTIONS, tmp_path)
    layer = {name: tuple(weight.shape) for name, weight in net.get_decoder().layers[0].state_dict().items()}
    own = {"input_proj": (H, 2 * H), "token_layernorm": (H,), "hidden_layernorm": (H,), "final_layernorm": (H,)}
    expected = {**layer, **{f"{name}.weight": shape for name, shape in own.items()}}
    stored = load_file(tmp_path / "model.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in stored.items()} == {
        f"mtp_layers.0.{name}": shape for name, shape in expected.items()
    }


def test_its_description_is_that_of_speculators_and_says_what_is_fed_back(tmp_path: Path) -> None:
    net = network("llama", V, dtype=torch.float32)
    written(net, OPTIONS, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    about = config["speculators_config"]
    assert config["architectures"] == ["MTPDraftModel"]
    assert config["speculators_model_type"] == about["algorithm"] == "mtp"
    assert (config["num_nextn_predict_layers"], config["norm_output"]) == (1, True)
    assert about["verifier"]["name_or_path"] == "org/target"
    assert about["proposal_methods"][0]["speculative_tokens"] == 3
    layer = config["transformer_layer_config"]
    assert (layer["model_type"], layer["hidden_size"], layer["vocab_size"]) == ("llama", H, V)


@pytest.mark.parametrize("name", ["llama", "qwen3-moe", "qwen3-next", "gemma2"])
@torch.no_grad()
def test_a_fresh_module_begins_near_what_its_target_says(name: str) -> None:
    """Its state begins as the target's, whatever class of norm that has; the layer writes little beside it."""
    net = network(name, V, dtype=torch.float32)
    student, _ = beginning("mtp", net, OPTIONS)
    for weight in [tensor for part, tensor in student.head.layer.named_parameters() if "norm" not in part]:
        weight.zero_()
    student.head.proj.weight[:, :H] = 0
    z = net.get_decoder()(input_ids=tokens(net, 2, 6), use_cache=False).last_hidden_state
    _, states = whole_pass(student.head, tokens(net, 2, 6), z)
    likeness = torch.nn.functional.cosine_similarity(states, z, dim=-1)
    assert likeness.min() > 0.98  # projections have a little of everything
    assert 0.5 < float((states.norm(dim=-1) / z.norm(dim=-1)).mean()) < 2


def test_equal_seeds_make_equal_modules() -> None:
    net = network("llama", V, dtype=torch.float32)
    first, again, other = (
        beginning("mtp", net, HeadOptions(None, 3, "t", seed=seed))[0].state_dict() for seed in (1, 1, 2)
    )
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())
    assert not torch.equal(first["head.proj.weight"], other["head.proj.weight"])


FAMILIES = {"MiMo": "qwen2", "Qwen3-Next": "qwen3-next", "DeepSeek": "qwen3-moe", "speculators": "llama"}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_module_that_is_there_learns_on_from_what_it_is(family: str, tmp_path: Path) -> None:
    """Of every family of names and orders: begun from its files, and again as it was written, it says the same."""
    net = network(FAMILIES[family], V, dtype=torch.float32)
    folder = tmp_path / "own"
    net.save_pretrained(folder)
    layer = {name: tensor + 0.1 for name, tensor in net.get_decoder().layers[-1].state_dict().items()}
    write_head(folder, "mtp", net.config, family=family, layer=layer)
    own = built(head_of(folder), net)
    student, again = written(net, HeadOptions(None, 3, "org/target", begin=head_of(folder)), tmp_path / "mine")
    ids, z = tokens(net, 2, 6), torch.randn(2, 6, H, generator=torch.Generator().manual_seed(0))
    expected = whole_pass(own, ids, z)[0]
    again.config._attn_implementation = own.config._attn_implementation
    assert worst(whole_pass(again, ids, z)[0], expected) < 1e-5
    assert worst(whole_pass(student.head, ids, z)[0], expected) < 1e-4


def test_a_module_that_is_fed_states_before_their_norm_stays_one(tmp_path: Path) -> None:
    net = network("llama", V, dtype=torch.float32)
    written(net, OPTIONS, tmp_path / "first")
    file = tmp_path / "first" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "norm_output": False}))
    student, again = written(
        net, HeadOptions(None, 3, "org/target", begin=head_of(tmp_path / "first")), tmp_path / "mine"
    )
    assert student.head.feeds_normed is again.feeds_normed is False


def test_what_cannot_learn_is_refused(tmp_path: Path) -> None:
    assert "no MTP module can be made of a GPT2Block" in refusal_of(beginning, "mtp", network("gpt2", V), OPTIONS)
    assert "layers of this target use sliding-window attention" in refusal_of(
        beginning, "mtp", network("mistral", V), OPTIONS
    )
    net = network("qwen3-moe", V)
    net.save_pretrained(tmp_path)
    layer = net.get_decoder().layers[-1].state_dict()
    write_head(tmp_path, "mtp", net.config, family="DeepSeek", layer=layer, head=True)
    options = HeadOptions(None, 3, "t", begin=head_of(tmp_path))
    assert "it has an embedding or an output of its own" in refusal_of(beginning, "mtp", net, options)
