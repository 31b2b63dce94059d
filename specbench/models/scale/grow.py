"""The weights of a scale model: those of a small Llama checkpoint in a larger one that computes the same function.

Knows Llama's weights by name; must not know files, or what the network is used for.

The residual stream keeps the d dimensions of the original and gains zeros, over which the norms average too (weights
× √(d/D)). New heads, neurons and layers write nothing. Where the vocabulary grows, one new dimension carries a small
constant, hidden from every layer by a norm weight of 0; the head reads it for padded ids alone, which it sinks so far
that none is ever drawn. Zeros are stored and multiplied like any number, and as few as can be: whatever meets an exact
zero is noise, because hardware takes less power, and so a higher clock, for weights that are all zero. What stays below
the real thing's power is the residual stream, of which D − d dimensions are zero.
"""

import math
import zlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedConfig

from specbench.models.scale.growth import Growth

NOISE, STD = 1_048_573, 0.02  # numbers that all tensors are filled from: a prime, so that hardly two rows are alike
SEEN, SUNK = 2.0**5, 2.0**15  # logits of padded ids are −SEEN · SUNK ÷ rms of the last hidden state

Weights = Mapping[str, Tensor]


def network(
    source: Weights, small: PreTrainedConfig, large: PreTrainedConfig, device: torch.device, attention: str
) -> Any:
    """The large model as a network on `device`, in the dtype of its configuration; `source` are the original's weights.

    Its weights are made where they are to lie, one by one: nothing is held twice.
    """
    net, growth = skeleton(large, attention), Growth.of(small, large)
    made = {name: grown(name, empty, source, growth, device) for name, empty in empty_weights(net).items()}
    net.load_state_dict(made, strict=False, assign=True)
    net.tie_weights()
    net.model.rotary_emb = type(net.model.rotary_emb)(config=large).to(device)  # its frequencies are no weights
    return net.eval().requires_grad_(False)


def skeleton(config: PreTrainedConfig, attention: str | None = None) -> Any:
    """A network whose weights have no memory."""
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=config.dtype, attn_implementation=attention
        )


def empty_weights(net: Any) -> dict[str, Tensor]:
    """The weights of a skeleton by name, which have a shape and a dtype; a tied head is left out."""
    return {
        name: weight
        for name, weight in net.state_dict().items()
        if name != "lm_head.weight" or not net.config.tie_word_embeddings
    }


def grown(name: str, empty: Tensor, source: Weights, growth: Growth, device: torch.device) -> Tensor:
    """One weight of the large model, of the shape and dtype of `empty`; `source` holds the original's, in any dtype."""
    original = source.get(name)
    if name == "lm_head.weight" and original is None:
        original = source["model.embed_tokens.weight"]  # tied in the original alone
    out = noise(empty, zlib.crc32(name.encode()), device)
    old = torch.empty(0, 0, dtype=torch.float64) if original is None else original.detach().cpu().double()
    PLACED[name.split(".")[-2]](out, old, growth)
    return out


@cache
def pool() -> Tensor:
    """Standard normal numbers, the same for every device."""
    return torch.randn(NOISE, generator=torch.Generator().manual_seed(0))


def noise(empty: Tensor, start: int, device: torch.device) -> Tensor:
    """Noise like weights at their initialisation. It repeats: drawing seven billion numbers would take minutes."""
    period = (pool().roll(-start % NOISE) * STD).to(device, empty.dtype)
    out = torch.empty(empty.numel(), dtype=empty.dtype, device=device)
    whole = len(out) // NOISE * NOISE
    out[:whole].view(-1, NOISE)[:] = period
    out[whole:] = period[: len(out) - whole]
    return out.view(empty.shape)


# Each of these turns noise `out` into the weight, given the original's `old`; a new layer's has no rows.


def corner(out: Tensor, old: Tensor, growth: Growth) -> None:
    """The original's block; what else reads or is read here is noise that nothing non-zero meets."""
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
    out[:] = 0  # rather here than in the values, so that the cache is dense
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
