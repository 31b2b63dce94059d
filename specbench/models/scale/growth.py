"""Scale models as configurations: a Llama checkpoint grown to another shape, and its name."""

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import LlamaConfig, PreTrainedConfig

from specbench.models.scale.shapes import Shape

KEY = "specbench_scale_model"  # in config.json: the origin of a scale model
ROPES = ("default", "linear", "llama3")  # scalings that depend on a pair's frequency alone, not on its index
NEVER_FEWER = ("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size")
SIZES = (*NEVER_FEWER, "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings")


@dataclass(frozen=True)
class Growth:
    """The sizes of the original `small`, those of the grown model, and the positions of its parts there."""

    small: Shape
    large: Shape

    @staticmethod
    def of(small: PreTrainedConfig, large: PreTrainedConfig) -> "Growth":
        return Growth(sizes_of(small), sizes_of(large))

    @property
    def scale(self) -> float:
        """√(d/D): the factor by which zeros added to the original's dimensions lower the root mean square."""
        return math.sqrt(self.small.hidden_size / self.large.hidden_size)

    @property
    def constant(self) -> float:
        """The value in the spare dimension of the residual stream; 0 if not needed."""
        return spare_constant(self.small, self.large.vocab_size)

    @cached_property
    def kv_heads(self) -> list[int]:
        """The original's head for every key/value head in use, in order."""
        return carried(self.small, self.large)

    @cached_property
    def heads(self) -> list[int]:
        """The position of every query head of the original: in the group of a key/value head that carries its own."""
        room, copies = self.large.group, math.ceil(self.small.group / self.large.group)
        return [
            (old * copies + member // room) * room + member % room
            for old in range(self.small.num_key_value_heads)
            for member in range(self.small.group)
        ]

    @cached_property
    def dims(self) -> Tensor:
        """The position of every dimension of a head: rotary pair j becomes pair r·j, which has the same frequency."""
        ratio, half = self.large.head_dim // self.small.head_dim, self.small.head_dim // 2
        pairs = ratio * torch.arange(half)
        return torch.cat([pairs, pairs + self.large.head_dim // 2])

    def rows(self, heads: list[int]) -> Tensor:
        """The rows of a projection to heads that are the dimensions of the given ones."""
        return (torch.tensor(heads)[:, None] * self.large.head_dim + self.dims).flatten()


def sizes_of(config: PreTrainedConfig) -> Shape:
    known = (*SIZES, "rms_norm_eps", "tie_word_embeddings")
    return Shape(name="", **{name: getattr(config, name) for name in known}, rope_theta=rope_of(config)["rope_theta"])


def rope_of(config: PreTrainedConfig) -> dict[str, Any]:
    return dict(getattr(config, "rope_parameters", None) or {})


def carried(small: Shape, large: Shape) -> list[int]:
    """The original's key/value heads in the large model, each as often as its queries need groups there."""
    copies = math.ceil(small.group / large.group)
    return [old for old in range(small.num_key_value_heads) for _ in range(copies)]


def spare_constant(small: Shape, vocabulary: int) -> float:
    """The largest power of two whose square is at most eps · d / 2, which the norms' eps offsets (`grown_config`)."""
    if vocabulary == small.vocab_size:
        return 0.0
    return float(2.0 ** math.floor(math.log2(small.rms_norm_eps * small.hidden_size / 2) / 2))


def obstacle(config: PreTrainedConfig, shape: Shape) -> str | None:
    """Why a checkpoint with this configuration cannot be grown to `shape`; None if it can."""
    if type(config) is not LlamaConfig:
        return f"only Llama checkpoints can be grown to another shape, and this one is {config.model_type}"
    if config.attention_bias or config.mlp_bias:
        return "its projections have biases, which shapes have not: it cannot be grown"
    if (rope := rope_of(config)["rope_type"]) not in ROPES:
        return f"its rope scaling is {rope}: only {', '.join(ROPES)} can be grown"
    small = sizes_of(config)
    for name in NEVER_FEWER:
        if (have := getattr(small, name)) > (room := getattr(shape, name)):
            return f"its {name} is {have}, more than the {room} of {shape.name}: choose a larger shape"
    if shape.head_dim % small.head_dim:
        return f"the head_dim of {shape.name}, {shape.head_dim}, is no multiple of its {small.head_dim}"
    if (need := len(carried(small, shape))) > shape.num_key_value_heads:
        return (
            f"its {small.num_attention_heads} heads on {small.num_key_value_heads} key/value heads need {need} "
            f"key/value heads of {shape.name}, which has {shape.num_key_value_heads}: choose a larger shape"
        )
    if shape.vocab_size == small.vocab_size:
        return None
    if shape.hidden_size == small.hidden_size:
        return f"{shape.name} has more vocabulary but the same hidden_size: no dimension is spare to sink padded ids"
    return None if small.rms_norm_eps > 0 else "its rms_norm_eps is 0: a larger vocabulary needs some"


def grown_config(config: PreTrainedConfig, shape: Shape, origin: str) -> LlamaConfig:
    """The configuration of a checkpoint grown to `shape`, marked as such; `origin` is its name.

    Norms divide the sum of squares by D instead of d, and one square is added: eps changes so that they agree.
    """
    small, added = sizes_of(config), spare_constant(sizes_of(config), shape.vocab_size) ** 2
    kept = ("hidden_act", "initializer_range", "bos_token_id", "eos_token_id", "pad_token_id", "dtype")
    stated = {"from": origin, "like": shape.name, "vocabulary": small.vocab_size, "notes": notes(config, shape)}
    settings: dict[str, Any] = {name: getattr(shape, name) for name in SIZES}
    settings |= {name: getattr(config, name) for name in kept}
    settings |= {"architectures": ["LlamaForCausalLM"], "rope_parameters": rope_of(config), KEY: stated}
    return LlamaConfig(
        **settings,
        rms_norm_eps=(small.rms_norm_eps * small.hidden_size - added) / shape.hidden_size,
        tie_word_embeddings=shape.tie_word_embeddings and small.tie_word_embeddings,
    )


def notes(config: PreTrainedConfig, shape: Shape) -> list[str]:
    """The differences of a scale model from its shape, needed to keep its function."""
    found, rope = [], rope_of(config)
    if rope["rope_theta"] != shape.rope_theta or rope["rope_type"] != "default":
        found.append(f"rope base {rope['rope_theta']:g} ({rope['rope_type']}) as in the original")
    if shape.tie_word_embeddings and not config.tie_word_embeddings:
        found.append("embeddings not tied, as in the original")
    return found


def label(config: PreTrainedConfig) -> str | None:
    """The name of a scale model, such as demo@llama-7b; None for an ordinary model."""
    stated = getattr(config, KEY, None)
    if stated is None:
        return None
    origin, like = (stated.get("from"), stated.get("like")) if isinstance(stated, dict) else (None, None)
    return " ".join(f"{origin or '?'}@{like or '?'}".split())[:100]


def vocabulary(config: PreTrainedConfig) -> int | None:
    """The number of original rows in a scale model's head, None for any other model.

    The logits after them are so low that their rounding errors alone exceed all differences between real ones.
    """
    stated = getattr(config, KEY, None)
    known = stated.get("vocabulary") if isinstance(stated, dict) else None
    return known if isinstance(known, int) and known > 0 else None


def warnings(name: str, config: PreTrainedConfig) -> list[str]:
    """The warnings about a model that is a scale model, for stderr."""
    called = label(config)
    if called is None:
        return []
    stated = getattr(config, KEY)
    unlike = stated.get("notes") if isinstance(stated, dict) else None
    small, _, like = called.rpartition("@")
    line = f"{name}: scale model: the function of {small} at the cost of {like}; acceptance is the small pair's"
    return ["; ".join([line, *map(str, unlike if isinstance(unlike, list) else [])])]


# --- grow -------------------------------------------------------------------------------------------------------------
# The weights of a small Llama checkpoint in a larger one that computes the same function. The residual stream keeps
# the d dimensions of the original and gains zeros, over which the norms average too (weights × √(d/D)). New heads,
# neurons and layers write nothing. If the vocabulary grows, one new dimension carries a small constant, hidden from
# every layer by a norm weight of 0; the head reads it for padded ids alone, whose logits become so low that none is
# ever drawn. Zeros are stored and multiplied like any number, and there are as few as possible: weights that meet
# an exact zero are noise, because hardware takes less power, and so a higher clock, for weights that are all zero.
# Only the residual stream, of which D − d dimensions are zero, takes less power than in a real model.

NOISE, STD = 1_048_573, 0.02  # the numbers that fill all tensors: a prime, so that few rows are alike
SEEN, SUNK = 2.0**5, 2.0**15  # logits of padded ids are −SEEN · SUNK ÷ rms of the last hidden state

Weights = Mapping[str, Tensor]


def network(
    source: Weights, small: PreTrainedConfig, large: PreTrainedConfig, device: torch.device, attention: str
) -> Any:
    """The large model as a network on `device`, in the dtype of its configuration; `source` are the original's weights.

    Its weights are made in place, one by one: nothing is held twice.
    """
    net, growth = skeleton(large, attention), Growth.of(small, large)
    made = {name: grown(name, empty, source, growth, device) for name, empty in empty_weights(net).items()}
    net.load_state_dict(made, strict=False, assign=True)
    net.tie_weights()
    net.model.rotary_emb = type(net.model.rotary_emb)(config=large).to(device)  # its frequencies are not weights
    return net.eval().requires_grad_(False)


def skeleton(config: PreTrainedConfig, attention: str | None = None) -> Any:
    """A network without memory for its weights."""
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=config.dtype, attn_implementation=attention
        )


def empty_weights(net: Any) -> dict[str, Tensor]:
    """The weights of a skeleton by name, with shape and dtype; a tied head is left out."""
    return {
        name: weight
        for name, weight in net.state_dict().items()
        if name != "lm_head.weight" or not net.config.tie_word_embeddings
    }


def grown(name: str, empty: Tensor, source: Weights, growth: Growth, device: torch.device) -> Tensor:
    """One weight of the large model, of the shape and dtype of `empty`; `source` holds the original's, in any dtype."""
    original = source.get(name)
    if name == "lm_head.weight" and original is None:
        original = source["model.embed_tokens.weight"]  # tied in the original only
    out = noise(empty, zlib.crc32(name.encode()), device)
    old = torch.empty(0, 0, dtype=torch.float64) if original is None else original.detach().cpu().double()
    PLACED[name.split(".")[-2]](out, old, growth)
    return out


@cache
def pool() -> Tensor:
    """Standard normal numbers, the same for every device."""
    return torch.randn(NOISE, generator=torch.Generator().manual_seed(0))


def noise(empty: Tensor, start: int, device: torch.device) -> Tensor:
    """Noise like initial weights. It repeats: drawing seven billion numbers would take minutes."""
    period = (pool().roll(-start % NOISE) * STD).to(device, empty.dtype)
    out = torch.empty(empty.numel(), dtype=empty.dtype, device=device)
    whole = len(out) // NOISE * NOISE
    out[:whole].view(-1, NOISE)[:] = period
    out[whole:] = period[: len(out) - whole]
    return out.view(empty.shape)


# Each function turns noise `out` into the weight, given the original's `old`; a new layer's has no rows.


def corner(out: Tensor, old: Tensor, growth: Growth) -> None:
    """Write the original's block; other entries that are read or read from here are noise that meets only zeros."""
    out[: old.shape[0], : old.shape[1]] = old.to(out)


def embedding(out: Tensor, old: Tensor, growth: Growth) -> None:
    ids, width = old.shape
    out[:, width:] = 0
    corner(out, old, growth)
    if growth.constant:
        out[:, width] = growth.constant
        if growth.large.tie_word_embeddings:  # read as a head, the constant shifts the logits of all real ids alike
            out[ids:, width] = -SUNK


def head(out: Tensor, old: Tensor, growth: Growth) -> None:
    ids, width = old.shape
    corner(out, old, growth)
    if growth.constant:
        out[:ids, width] = 0
        out[ids:, width] = -SUNK


def layer_norm(out: Tensor, old: Tensor, growth: Growth) -> None:
    out[:] = 1
    out[: old.shape[0]] = (old.flatten() * growth.scale).to(out)
    if growth.constant:
        out[growth.small.hidden_size] = 0  # the weights that read it may be noise


def last_norm(out: Tensor, old: Tensor, growth: Growth) -> None:
    layer_norm(out, old, growth)
    if growth.constant:
        out[growth.small.hidden_size] = SEEN * growth.scale / growth.constant


def query(out: Tensor, old: Tensor, growth: Growth) -> None:
    if len(old):
        heads = out.view(-1, growth.large.head_dim, out.shape[1])
        heads[growth.heads, :, : old.shape[1]] = 0  # their other dimensions meet noise in the keys
        wider = math.sqrt(growth.large.head_dim / growth.small.head_dim)  # scores are divided by √head_dim
        out[growth.rows(growth.heads), : old.shape[1]] = (old * wider).to(out)


def key_or_value(out: Tensor, old: Tensor, growth: Growth) -> None:
    if len(old):
        copies = old.view(growth.small.num_key_value_heads, growth.small.head_dim, -1)[growth.kv_heads]
        out[growth.rows(list(range(len(growth.kv_heads)))), : old.shape[1]] = copies.flatten(0, 1).to(out)


def output(out: Tensor, old: Tensor, growth: Growth) -> None:
    out[:] = 0  # here rather than in the values, so that the cache is dense
    if len(old):
        out[: old.shape[0]].index_copy_(1, growth.rows(growth.heads).to(out.device), old.to(out))


def up(out: Tensor, old: Tensor, growth: Growth) -> None:
    out[:, : growth.small.hidden_size] = 0  # a new neuron is 0 whatever its gate says, and what reads it may be noise
    corner(out, old, growth)


def down(out: Tensor, old: Tensor, growth: Growth) -> None:
    out[:, : old.shape[1]] = 0
    corner(out, old, growth)


PLACED: dict[str, Callable[[Tensor, Tensor, Growth], None]] = {
    "embed_tokens": embedding,
    "lm_head": head,
    "input_layernorm": layer_norm,
    "post_attention_layernorm": layer_norm,
    "norm": last_norm,
    "q_proj": query,
    "k_proj": key_or_value,
    "v_proj": key_or_value,
    "o_proj": output,
    "gate_proj": corner,
    "up_proj": up,
    "down_proj": down,
}
