"""MTP modules, read from the files of their target, against transformers' own and against the equations."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.modeling_layers import MtpModel

from specbench.decoding.drafters.chain import ModelDrafter
from specbench.decoding.loop import Speculate
from specbench.decoding.verifiers.rejection import Rejection
from specbench.models.checkpoints.description import attention, experts
from specbench.models.heads.build import joined
from specbench.models.heads.taps import whole_pass
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from tests.support import head_oracle as oracle
from tests.support.checkpoints import refusal_of
from tests.support.head_passes import head_of, in_pieces, module_of, random, tokens
from tests.support.heads import layer_like, with_separate_experts, write_head
from tests.support.tiny import TOLERANCE, difference, enumerate_law, in_double, network, oracle_law, worst

V, T, ROWS = 13, 8, 2
TIGHT = 1e-11
SHAPE = {"hidden_size": 16, "intermediate_size": 24, "moe_intermediate_size": 8, "num_hidden_layers": 2}
SHAPE |= {"num_attention_heads": 4, "max_position_embeddings": 64, "first_k_dense_replace": 1, "n_routed_experts": 4}
SHAPE |= {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "vocab_size": V}
LATENT = {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4}
CONFIGS: dict[str, tuple[type, dict[str, Any]]] = {
    "deepseek": (hf.DeepseekV3Config, {**SHAPE, **LATENT, "num_key_value_heads": 4}),
    "glm": (hf.Glm4MoeConfig, {**SHAPE, "num_key_value_heads": 2, "head_dim": 4, "use_qk_norm": True}),
}


def built(family: str) -> Any:
    kind, shape = CONFIGS[family]
    config = kind(**shape, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    how = {"attn_implementation": attention(config), "experts_implementation": experts(config, torch.float64)}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = hf.AutoModelForCausalLM.from_config(config, **how).double().eval()
        for parameter in made.parameters():
            parameter.data.normal_(std=0.4)
    return made


@pytest.mark.parametrize("family", CONFIGS)
def test_it_is_transformers_own_from_the_same_files(tmp_path: Path, family: str) -> None:
    target = built(family)
    target.save_pretrained(tmp_path)
    write_head(tmp_path, "mtp", target.config, layer=with_separate_experts(layer_like(target, 1)))
    target.config.name_or_path, target.config.dtype = str(tmp_path), torch.float64
    target._keys_to_ignore_on_load_unexpected = [r"model\.layers\.2.*"]  # by which it knows the module
    own = MtpModel.from_pretrained(target).double().eval()
    module = module_of(tmp_path, target)
    assert module.warnings == ()
    ids, z = tokens(target, ROWS, T), random(ROWS, T, 16)
    with torch.no_grad():
        after = torch.arange(1, T + 1).expand(ROWS, -1)  # transformers counts positions from the token
        expected = own.forward_layer(0, z, after, None, input_ids=ids)
        logits, states = whole_pass(module, ids, z)
        assert worst(states, expected) < 1e-5  # its norms and its routers compute in float32
        assert worst(logits, own.shared_head(expected)) < 1e-5


@pytest.mark.parametrize("family", CONFIGS)
def test_in_pieces_it_is_what_it_is_at_once(tmp_path: Path, family: str) -> None:
    target = built(family)
    target.save_pretrained(tmp_path)
    write_head(tmp_path, "mtp", target.config, layer=with_separate_experts(layer_like(target, 1)))
    module = module_of(tmp_path, target)
    ids, z = tokens(target, ROWS, T), random(ROWS, T, 16)
    assert worst(in_pieces(module, ids, z, [1, 2, 5]), whole_pass(module, ids, z)[0]) < 1e-5


def saved(folder: Path, target: Any) -> Path:
    target = copy.deepcopy(target)
    target.config.num_nextn_predict_layers = 1
    target.save_pretrained(folder)
    return folder


@torch.no_grad()
def by_hand(target: Any, head: Any, number: int, ids: Tensor, z: Tensor, one: float, hidden_first: bool) -> Tensor:
    """[1, T, H] the normed states of a module, by the equations around a layer of the target's with its weights."""
    w, eps = head.tensors, target.config.rms_norm_eps
    token = oracle.rms(target.get_input_embeddings()(ids), w["embed_norm.weight"], eps, one)
    state = oracle.rms(z, w["hidden_norm.weight"], eps, one)
    x = torch.nn.functional.linear(torch.cat([state, token] if hidden_first else [token, state], -1), w["proj.weight"])
    layer = in_double(copy.deepcopy(target.get_decoder().layers[number]))
    own = {name.removeprefix("layer."): tensor for name, tensor in w.items() if name.startswith("layer.")}
    layer.load_state_dict({name: own.get(name, tensor) for name, tensor in layer.state_dict().items()})
    positions = torch.arange(T).unsqueeze(0)
    mask = torch.zeros(1, 1, T, T, dtype=z.dtype).masked_fill(~oracle.causal(T), torch.finfo(z.dtype).min)
    angles = target.get_decoder().rotary_emb(x, positions)
    y = layer(x, attention_mask=mask, position_ids=positions, position_embeddings=angles)
    return oracle.rms(y, w["norm.weight"], eps, one)


FAMILIES = {  # of a target with such names: a tiny one, which of its layers, what norms add to weights, the order
    "MiMo": ("qwen2", 0, 0.0, True),
    "Qwen3-Next": ("qwen3-next", 1, 1.0, False),
    "speculators": ("qwen3", 0, 0.0, False),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_its_equations(tmp_path: Path, family: str) -> None:
    name, number, one, hidden_first = FAMILIES[family]
    target = network(name, V)
    folder = tmp_path if family == "speculators" else saved(tmp_path, target)
    write_head(folder, "mtp", target.config, family=family, layer=layer_like(target, number))
    module, head = module_of(folder, target), head_of(folder)
    ids, z = tokens(target, 1, T), random(1, T, 16)
    logits, states = whole_pass(module, ids, z)
    expected = by_hand(target, head, number, ids, z, one, hidden_first)
    assert worst(states, expected) < TIGHT
    assert worst(logits, target.lm_head(expected).detach()) < TIGHT


def mimo(folder: Path, **more: Any) -> tuple[Any, Path]:
    target = network("qwen2", V)
    return target, write_head(
        saved(folder, target), "mtp", target.config, family="MiMo", layer=layer_like(target, 0), **more
    )


def test_what_is_fed_back_changes_the_second_token_and_not_the_first(tmp_path: Path) -> None:
    target, folder = mimo(tmp_path)
    post, pre = module_of(folder, target), module_of(folder, target)
    pre.feeds_normed = False
    ids, z = tokens(target, 1, T), random(1, T, 16)
    (first, fed), (same, unnormed) = whole_pass(post, ids, z), whole_pass(pre, ids, z)
    assert torch.equal(first, same)
    assert torch.equal(fed, pre.norm(unnormed))
    second = [whole_pass(module, ids, states)[0] for module, states in ((post, fed), (pre, unnormed))]
    assert worst(*second) > 1e-3


def test_a_head_of_its_own_is_used_and_a_copy_is_borrowed(tmp_path: Path) -> None:
    target = built("glm")
    target.save_pretrained(tmp_path)
    layer = with_separate_experts(layer_like(target, 1))
    write_head(tmp_path, "mtp", target.config, layer=layer, head=True)
    own = module_of(tmp_path, target)
    weights = load_file(tmp_path / "model.safetensors")
    copied = {"shared_head.head": target.lm_head.weight, "embed_tokens": target.get_input_embeddings().weight}
    save_file(weights | {f"model.layers.2.{name}.weight": w.detach().clone() for name, w in copied.items()},
              tmp_path / "model.safetensors")  # fmt: skip
    borrowing = module_of(tmp_path, target)
    assert own.lm_head is not None
    assert borrowing.lm_head is None
    assert borrowing.embed_tokens is None
    ids, z = tokens(target, 1, T), random(1, T, 16)
    states = whole_pass(borrowing, ids, z)[1]
    assert torch.equal(whole_pass(borrowing, ids, z)[0], target.lm_head(states).detach())
    assert torch.equal(whole_pass(own, ids, z)[0], own.lm_head(states))


def test_further_modules_are_said_to_be_unused(tmp_path: Path) -> None:
    target = built("glm")
    target.config.num_mtp_layers = 3
    target.save_pretrained(tmp_path)
    write_head(tmp_path, "mtp", target.config, layer=with_separate_experts(layer_like(target, 1)))
    assert module_of(tmp_path, target).warnings == ("head: the first of its 3 MTP modules drafts all tokens",)


def test_what_is_missing_or_left_over_is_refused(tmp_path: Path) -> None:
    target, folder = mimo(tmp_path)
    file = folder / "model.safetensors"
    whole, name = load_file(file), "model.mtp_layers.0.final_layernorm.weight"
    save_file({key: tensor for key, tensor in whole.items() if key != name}, file)
    assert "weights are missing: norm.weight" in refusal_of(module_of, folder, target)
    save_file(whole | {"model.mtp_layers.0.gate.weight": torch.ones(2)}, file)
    assert "layer.gate.weight" in refusal_of(module_of, folder, target)
    save_file(whole | {name: torch.ones(16).to(torch.float8_e4m3fn)}, file)
    assert "quantised (norm.weight is float8_e4m3fn)" in refusal_of(module_of, folder, target)
    save_file(whole | {name: torch.ones(8)}, file)
    assert "norm.weight is [8], not [16]" in refusal_of(module_of, folder, target)


def test_the_module_of_another_target_is_refused(tmp_path: Path) -> None:
    _, folder = mimo(tmp_path)
    assert "target of vocabulary 13" in refusal_of(module_of, folder, network("qwen2", V + 1))
    assert "no MTP module can be made" in refusal_of(module_of, folder, network("gpt2", V))


# --- in the loop ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["MiMo", "speculators"])
def test_the_law_of_a_decode_is_that_of_the_target_alone(tmp_path: Path, family: str) -> None:
    target = network(FAMILIES[family][0], 3)
    folder = tmp_path if family == "speculators" else saved(tmp_path, target)
    write_head(folder, "mtp", target.config, family=family, layer=layer_like(target, 0))
    judge, draft = joined(Causal(target, Sampling(), 3), module_of(folder, target), 2)
    method = Speculate(ModelDrafter(draft, 2), judge, Rejection())
    found = enumerate_law(method, [[1, 2, 0]], 3).law[0]
    assert difference(found, oracle_law(target, Sampling(), 3, [1, 2, 0], 3)) <= TOLERANCE
