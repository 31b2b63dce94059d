"""The equations of trained heads, written out once more and slowly: whole sequences, no cache, one row, plain tensors.

From the published descriptions and not from `specbench.models.heads`. w: the tensors of a head by the names of its
layers as `layers.{i}.`; c: its config.json. All in the dtype of the tensors.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Weights = Mapping[str, Tensor]


def rms(x: Tensor, w: Tensor, eps: float = 1e-5, one: float = 0.0) -> Tensor:
    return (w + one) * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def rope(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """x [heads, T, d] turned by the angles of its positions [T], which are float32 in every engine."""
    size = x.shape[-1]
    angles = positions[:, None].float() * (1 / theta ** (torch.arange(0, size, 2).float() / size))
    angles = torch.cat([angles, angles], -1)
    turned = torch.cat([-x[..., size // 2 :], x[..., : size // 2]], -1)
    return x * angles.cos().to(x) + turned * angles.sin().to(x)


def causal(length: int, window: int | None = None) -> Tensor:
    seen = torch.ones(length, length).tril()
    return (seen if window is None else seen.triu(1 - window)).bool()


def attention(w: Weights, prefix: str, x: Tensor, c: Mapping[str, Any], window: int | None = None) -> Tensor:
    heads, groups, length = c["num_attention_heads"], c["num_key_value_heads"], len(x)
    size = w[prefix + "q_proj.weight"].shape[0] // heads
    query, key, value = (
        F.linear(x, w[f"{prefix}{name}_proj.weight"], w.get(f"{prefix}{name}_proj.bias")).view(length, -1, size)
        for name in "qkv"
    )
    if prefix + "q_norm.weight" in w:
        query, key = rms(query, w[prefix + "q_norm.weight"]), rms(key, w[prefix + "k_norm.weight"])
    query, key = (rope(y.transpose(0, 1), torch.arange(length), c["rope_theta"]) for y in (query, key))
    key, value = (y.repeat_interleave(heads // groups, 0) for y in (key, value.transpose(0, 1)))
    scores = (query @ key.transpose(1, 2)) / size**0.5
    shares = scores.masked_fill(~causal(length, window), -torch.inf).softmax(-1)
    return F.linear((shares @ value).transpose(0, 1).reshape(length, -1), w[prefix + "o_proj.weight"])


def mlp(w: Weights, prefix: str, x: Tensor) -> Tensor:
    inner = F.silu(F.linear(x, w[prefix + "gate_proj.weight"])) * F.linear(x, w[prefix + "up_proj.weight"])
    return F.linear(inner, w[prefix + "down_proj.weight"])


def window_of(c: Mapping[str, Any], layer: int) -> int | None:
    types = c.get("layer_types") or []
    return c["sliding_window"] if layer < len(types) and types[layer] == "sliding_attention" else None


def ordinary(w: Weights, c: Mapping[str, Any], x: Tensor, layer: int) -> Tensor:
    p = f"layers.{layer}."
    first = rms(x, w[p + "input_layernorm.weight"]) if p + "input_layernorm.weight" in w else x
    x = x + attention(w, p + "self_attn.", first, c, window_of(c, layer))
    return x + mlp(w, p + "mlp.", rms(x, w[p + "post_attention_layernorm.weight"]))


def eagle1(w: Weights, c: Mapping[str, Any], embedded: Tensor, z: Tensor) -> Tensor:
    """[T, H] from the embeddings of tokens t+1 and the last hidden states of tokens t: logits are the target's head on
    it, and it is the next z."""
    if "embedding_layernorm.weight" in w:
        embedded = rms(embedded, w["embedding_layernorm.weight"])
    if "hidden_states_layernorm.weight" in w:
        z = rms(z, w["hidden_states_layernorm.weight"])
    x = F.linear(torch.cat([embedded, z], -1), w["fc.weight"], w.get("fc.bias"))
    for layer in range(c["num_hidden_layers"]):
        x = ordinary(w, c, x, layer)
    return x


def eagle3_enter(w: Weights, c: Mapping[str, Any], features: Tensor, width: int) -> Tensor:
    """The states of true pairs: fc on the hidden states of several layers, of `width` each."""
    if "input_norm.weight" in w:
        features = rms(features, w["input_norm.weight"])
    if "fc_norm.0.weight" in w:
        chunks = features.split(width, -1)
        features = torch.cat([rms(chunk, w[f"fc_norm.{k}.weight"]) for k, chunk in enumerate(chunks)], -1)
    return F.linear(features, w["fc.weight"], w.get("fc.bias"))


def eagle3(w: Weights, c: Mapping[str, Any], embedded: Tensor, g: Tensor, normed_residual: bool = False) -> Tensor:
    """[T, H] from embeddings of tokens t+1 and the states g: logits are made of its norm, and it is the next g."""
    p = "layers.0."
    n = rms(g, w[p + "hidden_norm.weight"]) if p + "hidden_norm.weight" in w else g
    x = torch.cat([rms(embedded, w[p + "input_layernorm.weight"]), n], -1)
    x = (n if normed_residual else g) + attention(w, p + "self_attn.", x, c, window_of(c, 0))
    x = x + mlp(w, p + "mlp.", rms(x, w[p + "post_attention_layernorm.weight"]))
    for layer in range(1, c["num_hidden_layers"]):
        x = ordinary(w, c, x, layer)
    return x


def scattered(w: Weights, logits: Tensor, vocabulary: int) -> Tensor:
    """Logits [T, N] of a draft vocabulary among all tokens."""
    if "d2t" not in w:
        return logits
    full = torch.full((len(logits), vocabulary), -torch.inf, dtype=logits.dtype)
    full[:, torch.arange(logits.shape[-1]) + w["d2t"]] = logits
    return full
