"""Scale models compute the function of their original: in float64, in bfloat16, and through the whole decode."""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from specbench.decoding.decode import decode
from specbench.decoding.drafters.chain import ModelDrafter
from specbench.decoding.loop import Speculate
from specbench.decoding.randomness import seeded
from specbench.decoding.verifiers.rejection import Rejection
from specbench.metrics import Trace
from specbench.models.checkpoints.description import load_tokenizer
from specbench.models.checkpoints.loading import load_model
from specbench.models.checkpoints.names import Checkpoint, resolve
from specbench.models.network.attention import NAME
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from specbench.models.scale import growth as grow
from specbench.models.scale.growth import Growth, grown_config, obstacle
from specbench.models.scale.shapes import Shape, shapes
from tests.support.cases import quick_or_slow
from tests.support.rounding import in_float64, same_texts
from tests.support.tiny import CPU, in_double

V, D = 40, 48  # of every original
TOLERANCE = 1e-9  # total variation; the issue asks for 1e-6
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "llama3": {"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 16},
}  # fmt: skip
MINI: dict[str, Any] = {  # half as wide again, all else as in the original
    "hidden_size": 72, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": V, "max_position_embeddings": 64,
}  # fmt: skip
EVERYTHING = {"hidden_size": 90, "intermediate_size": 90, "num_hidden_layers": 4, "num_attention_heads": 9,
              "num_key_value_heads": 3, "head_dim": 24, "vocab_size": 101}  # fmt: skip
COMBINATIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # of the original and of the shape
    "wider": ({}, {}),
    "not wider": ({}, {"hidden_size": D}),
    "grouped queries → one key/value head each": ({}, {"num_attention_heads": 8, "num_key_value_heads": 8}),
    "larger groups": ({}, {"num_attention_heads": 12, "num_key_value_heads": 2}),
    "smaller groups": ({"num_key_value_heads": 1}, {"num_attention_heads": 9, "num_key_value_heads": 3}),
    "groups that do not divide": (
        {"num_attention_heads": 6},
        {"num_attention_heads": 8, "num_key_value_heads": 4},
    ),
    "head dimension × 2": ({}, {"head_dim": 16}),
    "head dimension × 3": ({}, {"head_dim": 24}),
    "more layers": ({}, {"num_hidden_layers": 5}),
    "wider feed-forward": ({}, {"intermediate_size": 100}),
    "larger vocabulary": ({}, {"vocab_size": 77}),
    "larger vocabulary, tied": ({"tie_word_embeddings": True}, {"vocab_size": 77, "tie_word_embeddings": True}),
    "tied original, free shape": ({"tie_word_embeddings": True}, {"vocab_size": 77}),
    "free original, tied shape": ({}, {"vocab_size": 77, "tie_word_embeddings": True}),
    "scaled rope": ({"rope": "llama3"}, {"head_dim": 16, "rope_theta": 10000.0}),
    "everything": ({"tie_word_embeddings": True}, EVERYTHING),
}


def shape_of(**changes: Any) -> Shape:
    return Shape(**{"name": "mini", **MINI, **changes})


@lru_cache
def original(seed: int = 0, rope: str = "default", **changes: Any) -> Any:
    """A random Llama in float64 whose laws are far from uniform and whose eps is not small beside its hidden states."""
    settings = {**MINI, "hidden_size": D, "rms_norm_eps": 1e-2, "rope_parameters": ROPES[rope], **changes}
    config = LlamaConfig(**settings, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    net = LlamaForCausalLM._from_config(config, attn_implementation=NAME).double().eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for weight in net.parameters():
        drawn = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        weight.data = 0.3 * drawn if weight.ndim > 1 else 1 + 0.3 * drawn
    return in_double(net)


def grown(small: Any, shape: Shape, change: Callable[[LlamaConfig], object] = lambda config: None) -> Any:
    """`small` grown to `shape` in float64; `change` may spoil the configuration first."""
    assert obstacle(small.config, shape) is None
    config = grown_config(small.config, shape, "small")
    config.dtype = torch.float64
    change(config)
    return in_double(grow.network(small.state_dict(), small.config, config, CPU, NAME))


@lru_cache
def texts() -> Tensor:
    return torch.randint(V, (3, 40), generator=torch.Generator().manual_seed(7))


@torch.inference_mode()
def errors(small: Any, large: Any, temperature: float = 1.0) -> tuple[float, float]:
    """The largest total variation between the laws after every token, and the largest probability of padded ids."""
    p, q = ((net(input_ids=texts(), use_cache=False).logits / temperature).softmax(-1) for net in (small, large))
    return float((p - q[..., :V]).abs().sum(-1).max() / 2), float(q[..., V:].sum(-1).max())


@pytest.mark.parametrize(("small", "shape"), COMBINATIONS.values(), ids=COMBINATIONS)
def test_growing_changes_no_law(small: dict[str, Any], shape: dict[str, Any]) -> None:
    source = original(**small)
    distance, padded = errors(source, grown(source, shape_of(**shape)))
    assert distance < TOLERANCE
    assert padded == 0


def test_the_originals_are_no_easy_ones() -> None:
    law = original()(input_ids=texts()).logits.softmax(-1)
    assert law.amax(-1).max() > 0.8
    assert law.amax(-1).min() < 0.4
    assert not torch.allclose(law[0, 5], law[0, 6], atol=0.1)


@pytest.mark.parametrize("temperature", [0.1, 3.0, 20.0])
def test_padded_ids_are_never_drawn_at_any_temperature(temperature: float) -> None:
    for tied in (False, True):
        small = original(tie_word_embeddings=tied)
        distance, padded = errors(small, grown(small, shape_of(vocab_size=77, tie_word_embeddings=tied)), temperature)
        assert padded == 0
        assert distance < TOLERANCE


# --- what must not go unnoticed ---------------------------------------------------------------------------------------


def placed(kind: str, change: Callable[[Tensor, Tensor, Growth], object]) -> Callable[[pytest.MonkeyPatch], None]:
    """Spoil the weights of a kind after they were placed."""
    place = grow.PLACED[kind]

    def spoilt(out: Tensor, old: Tensor, growth: Growth) -> None:
        place(out, old, growth)
        change(out, old, growth)

    return lambda patch: patch.setitem(grow.PLACED, kind, spoilt)


def instead(kind: str, place: Callable[[Tensor, Tensor, Growth], None]) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setitem(grow.PLACED, kind, place)


def growth_has(name: str, value: Callable[[Growth], object]) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(Growth, name, property(value))


def first_dims(growth: Growth) -> Tensor:
    half = torch.arange(growth.small.head_dim // 2)
    return torch.cat([half, half + growth.large.head_dim // 2])


MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "norm weights as they were": growth_has("scale", lambda growth: 1.0),
    "rotary pairs side by side": growth_has("dims", first_dims),
    "query heads in their order": growth_has("heads", lambda growth: list(range(4))),
    "key/value heads that change places": growth_has("kv_heads", lambda growth: [1, 0]),
    "queries not rescaled": placed("q_proj", lambda out, old, growth: out.div_(math.sqrt(2))),
    "noise in the queries": placed("q_proj", lambda out, old, growth: out[1].fill_(0.02)),
    "new neurons": instead("up_proj", grow.corner),
    "new heads": instead("o_proj", grow.corner),
    "a hidden state beside the original's": instead("embed_tokens", grow.corner),
    "neurons that write beside it": instead("down_proj", grow.corner),
    "a constant that layers see": placed("input_layernorm", lambda out, old, growth: out[D].fill_(1)),
    "padded logits of zero": placed("lm_head", lambda out, old, growth: out[V:].fill_(0)),
    "padded logits of noise": placed("norm", lambda out, old, growth: out[D].fill_(0)),
    "real ids that sink, too": placed("lm_head", lambda out, old, growth: out[:9, D].fill_(-1)),
}
SPOILT = {"num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 16, "vocab_size": 77, "num_hidden_layers": 3,
          "intermediate_size": 60}  # fmt: skip


@pytest.mark.mutant(test=test_growing_changes_no_law)
@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_growth_that_forgets_something_is_found_out(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    small, shape = original(), shape_of(**SPOILT)
    assert max(errors(small, grown(small, shape))) < TOLERANCE
    mutant(monkeypatch)
    assert max(errors(small, grown(small, shape))) > 1e-5


@pytest.mark.mutant(test=test_growing_changes_no_law)
@pytest.mark.parametrize("eps", [1e-2, 1e-2 * D / 72], ids="an eps of {:.4f}".format)
def test_an_eps_that_does_not_pay_for_the_constant_is_found_out(eps: float) -> None:
    small = original()
    wrong = grown(small, shape_of(vocab_size=77), lambda config: setattr(config, "rms_norm_eps", eps))
    assert errors(small, wrong)[0] > 1e-5


# --- the whole decode -------------------------------------------------------------------------------------------------


def decoded(target: Any, draft: Any, law: Sampling, k: int = 3) -> list[Trace]:
    """Three prompts, one after the other, through the loop of production with the same draws for any pair."""
    width = target.config.vocab_size
    method = Speculate(ModelDrafter(Causal(draft, law, width), k), Causal(target, law, width), Rejection())
    prompts = [row[: 3 + 4 * n].tolist() for n, row in enumerate(texts())]
    runs = [decode(method, [p], new=30, eos=[], rng=seeded([n], CPU), device=CPU) for n, p in enumerate(prompts)]
    return [trace for run in runs for trace in run]


@pytest.mark.slow
@pytest.mark.parametrize(
    "law",
    quick_or_slow(
        [Sampling(0), Sampling(1.0), Sampling(0.7, top_p=0.9), Sampling(1.3, top_k=50)],
        lambda law: law.top_p or not law.temperature,
    ),
    ids=str,
)
def test_a_grown_pair_decodes_the_same_tokens_from_the_same_draws(law: Sampling) -> None:
    target, draft = original(), original(num_hidden_layers=1)
    before = decoded(target, draft, law)
    draft_shape = shape_of(**{**SPOILT, "hidden_size": 96, "vocab_size": EVERYTHING["vocab_size"]})
    after = decoded(grown(target, shape_of(**EVERYTHING)), grown(draft, draft_shape), law)
    assert [trace.tokens for trace in after] == [trace.tokens for trace in before]
    counts = [[(r.drafted, r.tested, r.accepted) for r in trace.rounds] for trace in (*before, *after)]
    assert counts[:3] == counts[3:]
    assert sum(accepted for trace in counts for *_, accepted in trace) > 0


# --- the true cost ----------------------------------------------------------------------------------------------------


def zeros(net: Any, part: str) -> float:
    """The largest share of zeros among the weights of a kind."""
    return max(float((w == 0).double().mean()) for name, w in net.named_parameters() if part in name)


def test_nothing_is_left_out_and_few_weights_are_zero() -> None:
    small, shape = original(), shape_of(**EVERYTHING)
    net = grown(small, shape)
    weights = dict(net.named_parameters())
    assert sum(w.numel() for w in weights.values()) == shape.parameters
    assert all(w.device == CPU and w.is_contiguous() and w.layout is torch.strided for w in weights.values())
    assert {w.untyped_storage().nbytes() for w in weights.values()} == {w.nbytes for w in weights.values()}
    assert all(zeros(net, part) == 0 for part in ("k_proj", "v_proj", "gate_proj"))
    assert zeros(net, "q_proj") < D / 90 * 4 / 9
    assert zeros(net, "up_proj") == D / 90  # a new layer's
    assert zeros(net, "down_proj") == pytest.approx(48 / 90 * (1 - D / 90))
    assert zeros(net, "lm_head") == pytest.approx(V / 101 / 90)


def test_the_same_arguments_give_the_same_weights_and_noise_repeats_only_after_its_period() -> None:
    one, two = (grown(original(), shape_of(**EVERYTHING)).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)
    layers = [one[f"model.layers.{n}.self_attn.q_proj.weight"] for n in (2, 3)]
    assert not (layers[0] == layers[1]).any()
    assert layers[0].std() == pytest.approx(0.02, rel=0.05)
    tensor = grow.noise(torch.empty(3, grow.NOISE // 2, device="meta"), 5, CPU).flatten()
    assert torch.equal(tensor[grow.NOISE :], tensor[: len(tensor) - grow.NOISE])
    assert tensor[: grow.NOISE].unique().numel() > 0.8 * grow.NOISE


# --- the shipped pair -------------------------------------------------------------------------------------------------

REDUCED = Shape(name="reduced", hidden_size=1024, intermediate_size=704, num_hidden_layers=17, num_attention_heads=16,
                num_key_value_heads=16, head_dim=64, vocab_size=6000)  # fmt: skip


@torch.inference_mode()
def greedy(net: Any, ids: list[int], new: int = 20) -> list[int]:
    out, cache, feed = list(ids), None, torch.tensor([ids])
    for _ in range(new):
        answer = net(input_ids=feed, past_key_values=cache, use_cache=True)
        cache, feed = answer.past_key_values, answer.logits[:, -1:].argmax(-1)
        out.append(int(feed))
    return out[len(ids) :]


@pytest.mark.processor
@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"hidden_size": 512, "num_attention_heads": 4, "num_key_value_heads": 4,
                                          "head_dim": 128, "tie_word_embeddings": True}], ids=str)  # fmt: skip
def test_greedy_text_in_bfloat16_stays_the_same_but_for_near_ties(changes: dict[str, Any]) -> None:
    """Also where the factors √(d/D) and √(D_h/d_h) are no powers of two, and round."""
    demo, shape = resolve("demo"), REDUCED.model_copy(update=changes)
    small = load_model(demo, torch.bfloat16, CPU).model
    large = load_model(Checkpoint("demo@reduced", demo.source, shape=shape), torch.bfloat16, CPU).model
    assert (large.dtype, large.config.vocab_size, large.config.num_hidden_layers) == (torch.bfloat16, 6000, 17)
    tokenizer = load_tokenizer(demo)
    for prompt in ("class Reader:\n    def __init__(self, path):\n", "for key, value in sorted("):
        ids = tokenizer(prompt).input_ids
        same_texts([ids], [greedy(small, ids)], [greedy(large, ids)], small, large, exact=in_float64(small))


@pytest.mark.processor
@torch.inference_mode()
def test_the_shipped_draft_in_the_shape_of_llama_68m() -> None:
    small, large = (load_model(resolve(name), torch.float32, CPU) for name in ("demo-draft", "demo-draft@llama-68m"))
    assert sum(w.numel() for w in large.model.parameters()) == shapes()["llama-68m"].parameters == 68_030_208
    ids = torch.arange(100, 164).unsqueeze(0)
    p, q = (loaded.model(ids).logits.softmax(-1) for loaded in (small, large))
    assert (p - q[..., :4096]).abs().sum(-1).max() < 1e-5
    assert q[..., 4096:].max() == 0
    assert large.model.generation_config.eos_token_id == small.model.generation_config.eos_token_id == 0
