"""Which layers a head reads, by every rule there is, and what it borrows of its target and makes of it."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.models.heads.build import built
from specbench.models.heads.parts import Borrowed
from specbench.models.heads.taps import Meaning, agreement, boundaries, masks, named_in, read, shifted, whole_pass
from specbench.models.network.attention import NAME
from tests.support.checkpoints import llama, refusal_of
from tests.support.families import ARCHITECTURES, UNLIKE
from tests.support.head_passes import head_of, in_pieces, module_of, random, tokens
from tests.support.heads import write_head
from tests.support.tiny import network, worst

RULES: list[tuple[Meaning, list[int] | None, int, int, tuple[int, ...], str]] = [
    ("either", None, 32, 3, (2, 16, 29), "names none, and these are usual"),
    ("boundary", None, 28, 3, (2, 14, 25), "names none, and these are usual"),
    ("boundary", [2, 18, 33], 36, 3, (2, 18, 33), "names them"),
    ("boundary", [1, 46, 90], 94, 3, (1, 46, 90), "names them"),
    ("either", [1, 46, 90], 94, 3, (2, 47, 91), "names the outputs of layers 1, 46, 90"),  # Qwen3-235B
    ("either", [24, 30, 36], 36, 3, (24, 30, 36), "names them"),  # gpt-oss-120b, the last layer among them
    ("output", [1, 9, 17, 25, 33], 36, 5, (2, 10, 18, 26, 34), "names the outputs"),
    ("output", [0, 5], 6, 2, (1, 6), "names the outputs"),
    ("output", None, 36, 5, (2, 10, 18, 26, 34), "usual"),
    ("output", None, 36, 1, (19,), "usual"),
]


@pytest.mark.parametrize(("meaning", "ids", "layers", "count", "expected", "why"), RULES)
def test_the_rule_of_every_format(
    meaning: Meaning, ids: list[int] | None, layers: int, count: int, expected: tuple[int, ...], why: str
) -> None:
    found = boundaries(meaning, ids, layers, count)
    assert found.taken == expected
    assert why in found.why
    assert ", ".join(map(str, expected)) in found.why


def test_what_the_user_names_is_taken_as_it_is() -> None:
    found = boundaries("output", [1, 2, 3], 8, 3, override=(0, 4, 8))
    assert found.taken == (0, 4, 8)
    assert "--aux-layers names them" in found.why


NAMED: list[tuple[str, dict[str, Any], tuple[Meaning, list[int] | None]]] = [
    ("eagle3", {}, ("either", None)),
    ("eagle3", {"aux": (1, 4, 6)}, ("either", [1, 4, 6])),
    ("eagle3", {"aux": (1, 4, 6), "names": "speculators"}, ("boundary", [1, 4, 6])),
    ("eagle3", {"config": {"eagle_aux_hidden_state_layer_ids": [5, 4, 3]}}, ("boundary", [3, 4, 5])),
    ("dflash", {"aux": (1, 4)}, ("output", [1, 4])),
    ("dflash", {"aux": (1, 4), "names": "speculators"}, ("boundary", [1, 4])),
    ("dspark", {"aux": (1, 4), "config": {"dflash_config": None, "target_layer_ids": [2, 5]}}, ("output", [2, 5])),
]


@pytest.mark.parametrize(("kind", "how", "expected"), NAMED)
def test_where_the_list_stands_says_what_it_means(
    tmp_path: Path, kind: str, how: dict[str, Any], expected: tuple[Meaning, list[int] | None]
) -> None:
    assert named_in(head_of(write_head(tmp_path, kind, llama(num_hidden_layers=8), **how))) == expected


def test_a_list_of_other_things_is_refused(tmp_path: Path) -> None:
    folder = write_head(tmp_path, "eagle3", llama(), config={"eagle_aux_hidden_state_layer_ids": ["x"]})
    assert "unusable config.json" in refusal_of(named_in, head_of(folder))


V, T = 11, 9


@pytest.mark.parametrize("name", UNLIKE)
@torch.no_grad()
def test_taps_are_the_residual_stream_and_z_is_what_the_head_is_given(name: str) -> None:
    net = network(name, V)
    ids = tokens(net, 2, T)
    features, logits = read(net, ids, (0, 1, 2, "z"))
    told = net(input_ids=ids, output_hidden_states=True)
    first, inner, last, z = features.chunk(4, -1)
    assert worst(first, told.hidden_states[0]) == 0
    assert worst(inner, told.hidden_states[1]) == 0
    assert worst(z, told.hidden_states[2]) == 0  # transformers' last one is normed
    assert worst(last, z) > 1e-3
    assert worst(logits, told.logits) == 0


def word_by_word(seed: int = 0) -> Any:
    """A target that sees one token at a time, so that repeated ones are followed by the same token again."""
    net = copy.deepcopy(network("llama", V, seed))
    for layer in net.model.layers:
        layer.self_attn.o_proj.weight.data.zero_()
    return net


def copying(folder: Path, target: Any, tap: int) -> Any:
    """A head that says what the target would say if what it reads were the last hidden state."""

    def still(tensors: dict[str, Tensor]) -> None:
        tensors["fc.weight"] = torch.eye(16, dtype=torch.float64)
        tensors["norm.weight"] = target.model.norm.weight.detach().clone()
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            tensors[f"midlayer.{name}.weight"].zero_()

    write_head(folder, "eagle3", target.config, aux=(tap,), lm_head=False, dtype=torch.float64, change=still,
               config={"rms_norm_eps": target.config.rms_norm_eps})  # fmt: skip
    return module_of(folder, target, (tap,))


def test_a_tap_that_is_one_off_is_seen(tmp_path: Path) -> None:
    target, text = word_by_word(), torch.arange(V).repeat_interleave(6).unsqueeze(0)
    right, wrong = copying(tmp_path / "a", target, 2), copying(tmp_path / "b", target, 1)
    best = agreement(right, target, text)
    assert best.share > 0.8  # all but where the text goes on to another token
    below = agreement(wrong, target, text)
    assert shifted(wrong.taps, 2) == (2,)
    above = agreement(wrong, target, text, taps=(2,))
    assert above.share == best.share
    assert below.share < 0.5
    assert below.clearly_below(above)
    assert not above.clearly_below(below)
    assert not above.clearly_below(best)
    assert best.rows == len(text[0]) - 1
    assert best.error == pytest.approx((best.share * (1 - best.share) / best.rows) ** 0.5)


def test_there_is_nothing_after_the_last_layer_and_nothing_beside_z() -> None:
    assert shifted((1, 2), 3) == (2, 3)
    assert shifted((1, 3), 3) is None
    assert shifted(("z",), 3) is None


# --- what a head borrows ----------------------------------------------------------------------------------------------


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
