"""What a head borrows gives what the target itself makes of its last hidden state, however it scales and caps.

A head is in the dtype of its target, attends as its target does, and has angles of its own.
"""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.models.heads.build import built
from specbench.models.heads.parts import Borrowed
from specbench.models.heads.taps import masks, whole_pass
from specbench.models.network.attention import NAME
from tests.support.families import ARCHITECTURES
from tests.support.head_passes import head_of, in_pieces, module_of, random, tokens
from tests.support.heads import write_head
from tests.support.tiny import network, worst


@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.no_grad()
def test_logits_of_the_last_hidden_state_are_those_of_the_target(name: str) -> None:
    net, ids = network(name, 7), torch.tensor([[1, 2, 3, 4]])
    seen: list[torch.Tensor] = []
    hook = net.get_output_embeddings().register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    expected = net(input_ids=ids).logits
    hook.remove()
    target = Borrowed(net)
    assert worst(target.logits(seen[0]), expected) < 1e-12
    assert target.embed(ids).shape == (1, 4, net.get_input_embeddings().weight.shape[1])
    assert (target.vocabulary, target.dtype, target.device.type) == (7, torch.float64, "cpu")


V, T = 11, 9
AUX = (0, 1, 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("kind", "switches"), [("eagle1", {}), ("eagle3", {"aux": AUX, "vocab": 5})])
def test_weights_are_in_the_dtype_of_the_target_and_ids_stay_whole(
    tmp_path: Path, kind: str, switches: dict[str, Any], dtype: torch.dtype
) -> None:
    folder = write_head(tmp_path, kind, network("llama", V).config, **switches)
    target, exact = network("llama", V, dtype=dtype), module_of(folder, network("llama", V))
    module = built(head_of(folder), target)
    assert {weight.dtype for weight in module.parameters()} == {dtype} == {module.dtype}
    assert not any(weight.requires_grad for weight in module.parameters())
    if kind == "eagle3":
        assert module.lm_head.ids.dtype == torch.int64
    ids, features = tokens(target, 2, T), random(2, T, len(module.taps) * 16)
    found, states = whole_pass(module, ids, module.enter(features.to(dtype)))
    expected = whole_pass(exact, ids, exact.enter(features))[0]
    known = expected.isfinite()
    assert found.dtype == states.dtype == dtype
    assert torch.equal(found.isfinite(), known)
    step = {torch.bfloat16: 0.3, torch.float16: 0.05, torch.float32: 1e-4}[dtype]  # of logits of about 10
    assert worst(found[known].double(), expected[known]) < step * float(expected[known].abs().max())


@pytest.mark.parametrize("how", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", ["eagle1", "eagle3"])
def test_every_attention_gives_the_same(tmp_path: Path, kind: str, how: str) -> None:
    switches: dict[str, Any] = {"aux": AUX} if kind == "eagle3" else {}
    folder = write_head(tmp_path, kind, network("llama", V).config, dtype=torch.float64, **switches)
    usual, other = network("llama", V), copy.deepcopy(network("llama", V))
    other.config._attn_implementation = how
    modules = [module_of(folder, target) for target in (usual, other)]
    assert [module.config._attn_implementation for module in modules] == [NAME, how]
    ids, states = tokens(usual, 2, T), random(2, T, 16)
    assert worst(*(whole_pass(module, ids, states)[0] for module in modules)) < 1e-5  # eager adds up in float32
    assert worst(*(in_pieces(module, ids, states, [2, 5]) for module in modules)) < 1e-5


def rows(module: Any, ids: Tensor, states: Tensor, positions: Tensor) -> Tensor:
    with torch.no_grad():
        slots = torch.arange(T).expand_as(ids)
        found: Tensor = module(ids, states, positions.expand_as(ids), masks(module, slots, T))[0]
    return found


def test_angles_are_those_of_the_heads_own_description_however_it_is_spelled(tmp_path: Path) -> None:
    target = network("llama", V)

    def module(name: str, **config: Any) -> Any:
        keys = {"rope_theta": None, **config}
        folder = write_head(tmp_path / name, "eagle1", target.config, dtype=torch.float64, config=keys)
        return module_of(folder, target)

    ids, states, at = tokens(target, 2, T), random(2, T, 16), torch.arange(T)
    old = rows(module("old", rope_theta=300.0), ids, states, at)
    new = rows(module("new", rope_parameters={"rope_type": "default", "rope_theta": 300.0}), ids, states, at)
    assert torch.equal(old, new)
    assert worst(old, rows(module("usual"), ids, states, at)) > 1e-3
    halved = module("halved", rope_theta=300.0, rope_scaling={"type": "linear", "factor": 2.0})
    assert worst(rows(halved, ids, states, 2 * at), old) < 1e-5


def test_a_copy_of_a_head_borrows_from_the_same_target(tmp_path: Path) -> None:
    target = network("llama", V)
    module = module_of(write_head(tmp_path, "eagle1", target.config), target)
    copied = copy.deepcopy(module)
    assert copied.target.network is target
    assert copied.fc.weight.data_ptr() != module.fc.weight.data_ptr()
    borrowed = {weight.data_ptr() for weight in target.parameters()}
    assert not borrowed & {weight.data_ptr() for weight in module.parameters()}


HOLLOW: dict[str, tuple[str, str, dict[str, Any]]] = {
    "eagle1": ("llama", "eagle1", {"embed": True}),
    "eagle3": ("llama", "eagle3", {"aux": AUX, "vocab": 5, "embed": True}),
    "medusa": ("llama", "medusa", {}),
    "mtp": ("qwen2", "mtp", {"family": "MiMo", "head": False}),
}


@pytest.mark.parametrize("case", HOLLOW)
def test_a_head_can_be_made_for_a_target_whose_weights_are_not_there(tmp_path: Path, case: str) -> None:
    name, kind, switches = HOLLOW[case]
    target = network(name, V)
    if kind == "mtp":
        target.save_pretrained(tmp_path)
        layer = target.get_decoder().layers[0].state_dict()
        switches = {**switches, "layer": {key: tensor + 1 for key, tensor in layer.items()}}
    folder = write_head(tmp_path, kind, target.config, **switches)
    head = head_of(folder)
    with torch.device("meta"):
        hollow = type(target)(target.config)
    made, real = built(head, hollow.to(torch.float64)), built(head, target)
    assert {weight.device.type for weight in made.parameters()} == {"meta"}
    shapes = [{name: weight.shape for name, weight in module.named_parameters()} for module in (made, real)]
    assert shapes[0] == shapes[1]
    assert made.taps == real.taps
