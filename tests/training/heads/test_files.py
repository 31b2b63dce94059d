"""Trained heads as files: the published names and shapes, and the very logits of the module that was trained."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from specbench.models.heads.build import built
from specbench.models.heads.files import read_head
from specbench.models.heads.taps import whole_pass
from specbench.training.new_heads import HeadKind, HeadOptions, beginning, save_head
from tests.support.tiny import network

V, H = 11, 16
KNOWN = (0, 2, 3, 7, 9)


def trained(kind: HeadKind, folder: Path, dtype: torch.dtype, known: Any = None, name: str = "llama") -> Any:
    """A head that has moved away from where it began, and its folder."""
    net = network(name, V, dtype=dtype)
    student, layout = beginning(kind, net, HeadOptions(known, 3, "org/target", 20, seed=1))
    generator = torch.Generator().manual_seed(0)
    for weight in student.parameters():
        weight.data += 0.1 * torch.randn(weight.shape, generator=generator).to(weight)
    save_head(student, layout, folder, dtype)
    return net, student.head


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("kind", "known"), [("eagle3", None), ("eagle3", KNOWN), ("medusa", None), ("medusa", KNOWN), ("mtp", None)]
)
def test_what_was_written_is_read_as_the_module_that_was_trained(
    kind: HeadKind, known: Any, dtype: torch.dtype, tmp_path: Path
) -> None:
    net, head = trained(kind, tmp_path, dtype, known)
    found = read_head(tmp_path)
    assert found is not None
    assert found.kind == kind
    assert found.trained_for == "org/target"
    again = built(found, net)
    assert again.taps == head.taps
    assert again.warnings == ()
    for name, weight in head.state_dict().items():
        assert torch.equal(again.state_dict()[name], weight), name
    head.dtype, head.config._attn_implementation = again.dtype, again.config._attn_implementation
    assert torch.equal(logits(again), logits(head.to(dtype)))


@torch.no_grad()
def logits(head: Any) -> Tensor:
    states = torch.randn(2, 5, len(head.taps) * H, generator=torch.Generator().manual_seed(3)).to(head.dtype)
    if head.at_once:
        return torch.stack([head.row(number, states)[0] for number in range(3)])
    return whole_pass(head, torch.arange(10).view(2, 5), head.enter(states))[0]


def test_an_eagle3_head_has_the_published_names_and_shapes(tmp_path: Path) -> None:
    net, _ = trained("eagle3", tmp_path, torch.float32, KNOWN)
    heads, groups = net.config.num_attention_heads, net.config.num_key_value_heads
    size = net.config.hidden_size // heads
    shapes = {name: tuple(tensor.shape) for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    taps = len(json.loads((tmp_path / "config.json").read_text())["eagle_aux_hidden_state_layer_ids"])
    assert shapes == {
        "fc.weight": (H, taps * H),
        "layers.0.hidden_norm.weight": (H,),
        "layers.0.input_layernorm.weight": (H,),
        "layers.0.post_attention_layernorm.weight": (H,),
        "layers.0.self_attn.q_proj.weight": (heads * size, 2 * H),
        "layers.0.self_attn.k_proj.weight": (groups * size, 2 * H),
        "layers.0.self_attn.v_proj.weight": (groups * size, 2 * H),
        "layers.0.self_attn.o_proj.weight": (H, heads * size),
        "layers.0.mlp.gate_proj.weight": (20, H),
        "layers.0.mlp.up_proj.weight": (20, H),
        "layers.0.mlp.down_proj.weight": (H, 20),
        "norm.weight": (H,),
        "lm_head.weight": (len(KNOWN), H),
        "d2t": (len(KNOWN),),
        "t2d": (V,),
    }
    stored = load_file(tmp_path / "model.safetensors")
    assert (stored["d2t"].dtype, stored["t2d"].dtype) == (torch.int64, torch.bool)
    assert stored["t2d"].nonzero()[:, 0].tolist() == list(KNOWN)
    assert (stored["d2t"] + torch.arange(len(KNOWN))).tolist() == list(KNOWN)


def test_the_description_of_an_eagle3_head_is_that_of_speculators(tmp_path: Path) -> None:
    net, _ = trained("eagle3", tmp_path, torch.float32, KNOWN)
    config = json.loads((tmp_path / "config.json").read_text())
    about = config["speculators_config"]
    assert config["architectures"] == ["Eagle3Speculator"]
    assert config["speculators_model_type"] == about["algorithm"] == "eagle3"
    assert config["draft_vocab_size"] == len(KNOWN)
    assert about["verifier"] == {"name_or_path": "org/target", "architectures": ["LlamaForCausalLM"]}
    assert about["default_proposal_method"] == "greedy"
    assert about["proposal_methods"] == [
        {"proposal_type": "greedy", "speculative_tokens": 3, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    ]
    layer = config["transformer_layer_config"]
    assert (layer["model_type"], layer["num_hidden_layers"], layer["vocab_size"]) == ("llama", 1, V)
    assert layer["rope_theta"] == net.config.rope_parameters["rope_theta"]
    assert layer["hidden_size"] == H


def test_medusa_heads_have_the_names_and_shapes_of_the_authors(tmp_path: Path) -> None:
    trained("medusa", tmp_path, torch.float32)
    shapes = {name: tuple(tensor.shape) for name, tensor in load_file(tmp_path / "medusa_lm_head.safetensors").items()}
    one = {"0.linear.weight": (H, H), "0.linear.bias": (H,), "1.weight": (V, H)}
    assert shapes == {f"{number}.{name}": shape for number in range(3) for name, shape in one.items()}
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["medusa_num_heads"], config["medusa_num_layers"]) == (3, 1)
    assert config["base_model_name_or_path"] == "org/target"


def test_medusa_heads_that_know_some_tokens_have_the_names_of_vllm(tmp_path: Path) -> None:
    trained("medusa", tmp_path, torch.float32, KNOWN)
    stored = load_file(tmp_path / "model.safetensors")
    one = {"blocks.{}.layers.0.weight": (H, H), "blocks.{}.layers.0.bias": (H,), "lm_heads.{}.weight": (len(KNOWN), H)}
    shapes = {name.format(number): shape for number in range(3) for name, shape in one.items()}
    assert {name: tuple(tensor.shape) for name, tensor in stored.items()} == {**shapes, "token_map": (len(KNOWN),)}
    assert stored["token_map"].tolist() == list(KNOWN)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["model_type"], config["num_heads"], config["truncated_vocab_size"]) == ("medusa", 3, len(KNOWN))


@torch.no_grad()
def test_fresh_medusa_heads_say_what_the_target_says(tmp_path: Path) -> None:
    net = network("llama", V, dtype=torch.float32)
    student, _ = beginning("medusa", net, HeadOptions(None, 2, "org/target"))
    z = torch.randn(3, H, generator=torch.Generator().manual_seed(0))
    assert torch.equal(student.head.row(1, z)[0], net.get_output_embeddings()(z))


def test_a_head_borrows_the_embedding_of_its_target_and_has_an_output_of_its_own(tmp_path: Path) -> None:
    net = network("llama", V, dtype=torch.float32)
    student, _ = beginning("eagle3", net, HeadOptions(KNOWN, 3, "org/target"))
    names = {name for name, _ in student.named_parameters()}
    assert not any("embed" in name for name in names)
    output = net.get_output_embeddings().weight
    assert torch.equal(student.head.lm_head.weight, output[list(KNOWN)])
    assert student.head.lm_head.weight.data_ptr() != output.data_ptr()
