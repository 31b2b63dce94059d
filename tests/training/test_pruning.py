"""Drafts that are parts of their target: what is left out is left out, and what does not matter changes nothing."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor

from specbench.errors import UsageError
from specbench.models.checkpoints.loading import load_model
from specbench.models.checkpoints.names import Checkpoint
from specbench.models.network.skipping import with_layers
from specbench.models.scale import growth
from specbench.training import pruning, start
from specbench.training.pruning import Widths
from tests.support.cases import quick_or_slow
from tests.support.families import ARCHITECTURES, CONFIGS, UNLIKE
from tests.support.tiny import CPU, in_double, network, worst

V = 11
TEXT = torch.tensor([[1, 5, 2, 10, 3, 0, 7, 4]])
TEXTS = [torch.randint(V, (12,), generator=torch.Generator().manual_seed(n)).tolist() for n in range(6)]
NO_IDS: dict[str, Any] = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
IDS = dict.fromkeys(NO_IDS, 2)  # what is written as none is read as the default of its architecture
architectures = pytest.mark.parametrize("name", quick_or_slow(ARCHITECTURES, lambda name: name in UNLIKE))


def deep(name: str, layers: int = 4) -> Any:
    """A network of a family with twice its layers, all different."""
    config, shape = CONFIGS[name]
    turned = {key: value[::-1] for key, value in shape.items() if isinstance(value, list)}
    shape = {key: (value + turned[key]) * (layers // 4) if key in turned else value for key, value in shape.items()}
    shape["n_layer" if name == "gpt2" else "num_hidden_layers"] = layers
    torch.manual_seed(0)
    built = hf.AutoModelForCausalLM.from_config(config(vocab_size=V, **IDS, **shape)).eval()
    for weight in built.parameters():
        weight.data += 0.2 * torch.randn_like(weight)
    return built


@torch.no_grad()
def logits(net: Any, text: Tensor = TEXT) -> Tensor:
    found: Tensor = net(text).logits
    return found


@architectures
def test_evenly_kept_layers_are_a_checkpoint_of_their_architecture(name: str, tmp_path: Path) -> None:
    target = deep(name)
    before = copy.deepcopy(target.state_dict())
    draft = pruning.pruned(target, layers=2)
    assert torch.equal(logits(draft), logits(with_layers(target, [0, 3])))
    start.save_draft(draft, tmp_path)
    again = load_model(Checkpoint("draft", str(tmp_path)), torch.float32, CPU)
    assert again.warnings == ()
    assert worst(logits(again.model), logits(draft)) < 1e-5
    for weight in draft.parameters():
        weight.data.zero_()
    assert all(torch.equal(weight, before[name]) for name, weight in target.state_dict().items())


@pytest.mark.parametrize(("layers", "kept"), [(1, [0]), (2, [0, 5]), (3, [0, 2, 5]), (6, [0, 1, 2, 3, 4, 5])])
def test_layers_are_kept_evenly_with_the_first_and_the_last(layers: int, kept: list[int]) -> None:
    assert pruning.chosen_layers(deep("llama", 6), layers, "even", ()) == kept
    assert pruning.chosen_layers(deep("llama", 6), layers, "first", ()) == list(range(layers))


def test_layers_are_kept_by_how_much_they_change() -> None:
    target = deep("gpt2", 4)
    for index in (0, 2):  # these write nothing
        for part in (target.transformer.h[index].attn.c_proj, target.transformer.h[index].mlp.c_proj):
            part.weight.data.zero_()
            part.bias.data.zero_()
    influence = pruning.block_influence(target, TEXTS)
    assert influence[0] == pytest.approx(0, abs=1e-9)
    assert min(influence[1], influence[3]) > 1e-3
    draft = pruning.pruned(target, layers=2, keep="importance", texts=TEXTS)
    assert torch.equal(logits(draft), logits(target))
    assert not any(module._forward_hooks for module in target.modules())


def test_influence_is_the_mean_over_tokens_of_the_angle() -> None:
    target, (first, second) = deep("llama", 2), TEXTS[:2]
    found = pruning.block_influence(target, [first, second[:3]])
    with torch.no_grad():
        states = [target(torch.tensor([text]), output_hidden_states=True).hidden_states for text in (first, second[:3])]
    angles = [1 - torch.cosine_similarity(one[0].double(), one[1].double(), dim=-1).flatten() for one in states]
    assert found[0] == pytest.approx(float(torch.cat(angles).mean()))


def precise(net: Any) -> Any:
    return in_double(net.double())


@pytest.mark.parametrize("name", pruning.LIKE_LLAMA)
def test_to_cut_nothing_changes_nothing(name: str) -> None:
    target = network(name, V)
    draft = pruning.pruned(target, hidden=16, texts=TEXTS)
    assert not torch.allclose(draft.model.embed_tokens.weight, target.model.embed_tokens.weight), "nothing was turned"
    assert worst(logits(in_double(draft)), logits(target)) < 1e-9


def test_biases_and_a_tied_head_turn_with_the_rest() -> None:
    shape = {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}
    config = hf.LlamaConfig(vocab_size=V, **NO_IDS, **CONFIGS["llama"][1], **shape)
    target = precise(hf.LlamaForCausalLM(config).eval())
    for weight in target.parameters():
        weight.data += 0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    draft = pruning.pruned(target, hidden=16, texts=TEXTS)
    assert not draft.config.tie_word_embeddings
    assert worst(logits(in_double(draft)), logits(target)) < 1e-9


def test_what_a_scale_model_has_besides_is_what_is_cut() -> None:
    """Grown to twice the width, heads, channels and layers, and cut to the original's: the original's function."""
    sizes: dict[str, Any] = {**CONFIGS["llama"][1], "intermediate_size": 32, "vocab_size": V, **NO_IDS}
    small = precise(hf.LlamaForCausalLM(hf.LlamaConfig(**sizes, rms_norm_eps=1e-5, dtype=torch.float64)))
    for weight in small.parameters():
        weight.data += 0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    twice = {name: 2 * sizes[name] for name in ("hidden_size", "intermediate_size", "num_attention_heads")}
    twice |= {"num_key_value_heads": 4, "num_hidden_layers": 4, "rms_norm_eps": 1e-5 / 2, "dtype": torch.float64}
    large = hf.LlamaConfig(**{**sizes, **twice})
    target = in_double(growth.network(small.state_dict(), small.config, large, CPU, "sdpa"))
    assert worst(logits(target), logits(small)) < 1e-9
    draft = pruning.pruned(target, layers=2, hidden=16, keep="importance", texts=TEXTS * 2)
    assert Widths.of(draft.config) == Widths.of(small.config)
    assert draft.config.rms_norm_eps == pytest.approx(1e-5)
    assert worst(logits(in_double(draft)), logits(small)) < 1e-9


def test_narrower_and_shallower_drafts_are_ordinary_checkpoints(tmp_path: Path) -> None:
    for name in pruning.LIKE_LLAMA:
        draft = pruning.pruned(deep(name), layers=2, hidden=8, texts=TEXTS)
        assert Widths.of(draft.config).hidden == 8
        start.save_draft(draft, tmp_path / name)
        again = load_model(Checkpoint("draft", str(tmp_path / name)), torch.float32, CPU)
        assert worst(logits(again.model), logits(draft)) < 1e-5


@pytest.mark.parametrize(
    ("old", "hidden", "new"),
    [
        (Widths(576, 1536, 9, 3, 64), 256, Widths(256, 704, 4, 2, 64)),  # three heads do not divide 256
        (Widths(576, 1536, 9, 3, 64), 192, Widths(192, 512, 3, 1, 64)),
        (Widths(4096, 14336, 32, 8, 128), 1024, Widths(1024, 3584, 8, 2, 128)),
        (Widths(896, 4864, 14, 2, 64), 256, Widths(256, 1408, 4, 1, 64)),
    ],
)
def test_all_widths_are_cut_in_proportion(old: Widths, hidden: int, new: Widths) -> None:
    assert old.cut(hidden) == new


@pytest.mark.parametrize(
    ("name", "asked", "said"),
    [
        ("gemma2", {"hidden": 8}, "only the width of llama, .*, and this is gemma2: keep its width"),
        ("llama", {"hidden": 18}, "a width of 18: it must be even and at most the target's, 16"),
        ("llama", {"hidden": 7}, "a width of 7"),
        ("llama", {"layers": 3}, "keeps 1 to 2 of the layers"),
        ("llama", {"layers": 0}, "keeps 1 to 2 of the layers"),
        ("llama", {"layers": 1, "keep": "importance", "texts": ()}, "measured on texts, and no texts were given"),
        ("llama", {"hidden": 8, "texts": ([],)}, "measured on texts, and no texts were given"),
    ],
)
def test_what_cannot_be_cut_is_refused_in_one_line(name: str, asked: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as refusal:
        pruning.pruned(network(name, V), **{"texts": TEXTS, **asked})
    assert "\n" not in str(refusal.value)


def test_layers_that_are_told_apart_by_their_number_cannot_be_left_out() -> None:
    sizes: dict[str, Any] = {**CONFIGS["qwen3-moe"][1], "num_hidden_layers": 4, "mlp_only_layers": [0, 1]}
    target = hf.Qwen3MoeForCausalLM(hf.Qwen3MoeConfig(vocab_size=V, **NO_IDS, **sizes))
    with pytest.raises(UsageError, match=r"cannot lose layers or width here .*: start from a fresh draft"):
        pruning.pruned(target, layers=2)


def test_what_the_components_miss_of_the_stream_is_not_made_up_by_the_norm() -> None:
    """A norm of fewer components alone would give them the length of all of them."""
    target = network("llama", V)
    draft = pruning.pruned(target, hidden=8, texts=TEXTS)
    tokens = torch.tensor(TEXTS).flatten()
    ours, theirs = (net.model.embed_tokens.weight[tokens].norm(dim=-1) for net in (draft, target))
    share = float((ours / theirs).detach().mean())
    assert share < 0.99
    weight = draft.model.layers[0].input_layernorm.weight
    assert torch.allclose(weight, torch.full_like(weight, 2**0.5 * share))
