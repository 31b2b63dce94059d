"""The equations of heads that draft in one pass, written out slowly: whole texts, no cache, one row, plain tensors.

As `head_oracle`, from the published descriptions. text: the committed tokens [P + 1], the last of them pending;
features: the target's rows of the P places before it. Each gives the logits [K, V] of the next K places.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support import head_oracle as oracle
from tests.support.head_oracle import Weights, rms, rope


def medusa(w: Weights, z: Tensor, depth: int) -> Tensor:
    found = []
    for head in range(depth):
        x, layer = z, 0
        while f"{head}.{layer}.linear.weight" in w:
            p = f"{head}.{layer}.linear."
            x = x + F.silu(F.linear(x, w[p + "weight"], w.get(p + "bias")))
            layer += 1
        found.append(F.linear(x, w.get("lm_head.weight", w.get(f"{head}.{layer}.weight"))))
    return torch.stack(found)


def pard(network: Any, mask: int, text: Tensor, depth: int) -> Tensor:
    ids = torch.cat([text, torch.full((depth - 1,), mask)])
    return network(input_ids=ids[None], use_cache=False).logits[0, -depth:]


def peagle(w: Weights, c: Mapping[str, Any], embed: Tensor, text: Tensor, features: Tensor, depth: int) -> Tensor:
    """[K, N]: every pair is (row t, token t + 1); behind the true ones lie pairs of the mask and `mask_hidden`."""
    wide = embed.shape[1]
    ids = torch.cat([text[1:], torch.full((depth - 1,), c["mask_token_id"])])
    rows = torch.cat([features, w["mask_hidden"].view(1, -1).expand(depth - 1, -1)])
    out = oracle.eagle3(w, c, F.embedding(ids, embed), oracle.eagle3_enter(w, c, rows, wide))
    return F.linear(rms(out[-depth:], w["norm.weight"]), w["lm_head.weight"])


def sees(c: Mapping[str, Any], layer: int, pending: int, block: int, form: str) -> Tensor:
    """[block, P + block] bool: which places a block from the pending token on sees in a layer."""
    window = oracle.window_of(c, layer)
    asks, keys = torch.arange(pending, pending + block)[:, None], torch.arange(pending + block)[None]
    if window is None:
        return torch.ones(block, pending + block, dtype=torch.bool)
    if form != "speculators":
        return (asks - keys).abs() <= window
    inside = (keys >= pending) & (torch.tensor(bool(c.get("sliding_window_non_causal"))) | (keys <= asks))
    return torch.where(keys < pending, keys >= pending - window, inside)


def dflash(w: Weights, c: Mapping[str, Any], embedded: Tensor, features: Tensor, form: str = "") -> Tensor:
    """[block, H] the normed states of a block, whose first embedding is that of the pending token."""
    x, pending, block = embedded, len(features), len(embedded)
    told = rms(F.linear(features, w["fc.weight"]), w["hidden_norm.weight"])
    for layer in range(c["num_hidden_layers"]):
        p = f"layers.{layer}."
        u = rms(x, w[p + "input_layernorm.weight"])
        x = x + looked(w, p + "self_attn.", u, torch.cat([told, u]), c, sees(c, layer, pending, block, form))
        x = x + oracle.mlp(w, p + "mlp.", rms(x, w[p + "post_attention_layernorm.weight"]))
    return rms(x, w["norm.weight"])


def looked(w: Weights, prefix: str, asking: Tensor, asked: Tensor, c: Mapping[str, Any], seen: Tensor) -> Tensor:
    """Attention of the last places over all places; keys and values are made of `asked` [P + block, H]."""
    heads, groups = c["num_attention_heads"], c["num_key_value_heads"]
    places = torch.arange(len(asked))

    def project(name: str, x: Tensor) -> Tensor:
        made = F.linear(x, w[f"{prefix}{name}_proj.weight"]).view(len(x), groups if name != "q" else heads, -1)
        normed = rms(made, w[f"{prefix}{name}_norm.weight"]) if f"{prefix}{name}_norm.weight" in w else made
        return normed.transpose(0, 1)

    query = rope(project("q", asking), places[-len(asking) :], c["rope_theta"])
    key = rope(project("k", asked), places, c["rope_theta"]).repeat_interleave(heads // groups, 0)
    value = project("v", asked).repeat_interleave(heads // groups, 0)
    scores = (query @ key.transpose(1, 2)) / query.shape[-1] ** 0.5
    out = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ value
    return F.linear(out.transpose(0, 1).reshape(len(asking), -1), w[prefix + "o_proj.weight"])


def markov(w: Weights, before: Tensor, states: Tensor) -> Tensor:
    """[N] what DSpark adds to the logits of the last place of a block so far, for the tokens before every place [n],
    given their states [n, H]."""
    p = "markov_head."
    known, state = w[p + "markov_w1.weight"][before[-1]], states[-1]
    if p + "gate_proj.weight" in w:
        gate = F.linear(torch.cat([state, known]), w[p + "gate_proj.weight"], w[p + "gate_proj.bias"])
        known = known * gate.sigmoid()
    if p + "joint_proj.weight" in w:
        carried = torch.zeros_like(known)
        for token, state in zip(before, states, strict=True):
            joined = torch.cat([carried, w[p + "markov_w1.weight"][token], state])
            gate, candidate, out = F.linear(joined, w[p + "joint_proj.weight"], w[p + "joint_proj.bias"]).chunk(3)
            carried = gate.sigmoid() * carried + (1 - gate.sigmoid()) * candidate.tanh()
            known = out.tanh()
    return F.linear(known, w[p + "markov_w2.weight"])
