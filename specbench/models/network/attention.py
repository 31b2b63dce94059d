"""Attention of grouped queries without copying the cache, registered with transformers under its own name.

transformers repeats keys and values for every group as soon as there is a mask and more than one query, which costs a
verify pass a copy of the cache per layer. Here the queries of a group are laid side by side instead: the same sums.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from specbench.models.network import parts

NAME = "specbench_grouped"
_seen: list[Tensor] | None = None  # where queries are noted, while they are


@contextmanager
def queries() -> Iterator[list[Tensor]]:
    """The queries [B, H, q, D] of every layer that is called inside, in order: of eager calls only."""
    global _seen
    before, _seen = _seen, []
    try:
        yield _seen
    finally:
        _seen = before


def grouped_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of query [B, H, q, D] over key and value [B, H', L, D], H a multiple of H'; result [B, q, H, D].

    A mask without slots hides nothing but, from several queries, what comes after each. Anything but a mask shared by
    the heads and plain scaled dot products is left to transformers' own function. Over many keys see `parts`.
    """
    if _seen is not None:
        _seen.append(query)
    if attention_mask is not None and attention_mask.shape[-1] == 0:
        attention_mask = None
    rows, heads, length, _ = query.shape
    groups = heads // key.shape[1]
    plain = (attention_mask is None or attention_mask.shape[1] == 1) and kwargs.get("position_bias") is None
    many = plain and not dropout and parts.worthwhile(query, key, value, attention_mask)
    if not plain or (not many and (attention_mask is None or groups == 1)):
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)
    beside = query.reshape(rows, key.shape[1], groups * length, -1)
    mask = attention_mask
    if mask is not None and mask.shape[2] == length:
        mask = tiled(mask, groups)
    if many:
        count = parts.parts_of(rows, key.shape[1], key.shape[2], parts.threads())
        out = parts.in_parts(beside, key, value, mask, scaling, count)
    else:
        out = F.scaled_dot_product_attention(beside, key, value, attn_mask=mask, dropout_p=dropout, scale=scaling)
    return out.reshape(rows, heads, length, -1).transpose(1, 2).contiguous(), None


def tiled(mask: Tensor, groups: int) -> Tensor:
    """[B, 1, q, L] → [B, 1, groups · q, L]: the mask of queries that lie side by side; one query needs no copies."""
    return mask.repeat(1, 1, groups, 1) if groups > 1 and mask.shape[2] > 1 else mask


def for_groups(mask: Tensor, config: Any) -> Tensor:
    """The mask as `grouped_attention` wants it in every layer of a network, made once per pass."""
    if config._attn_implementation != NAME:
        return mask
    heads = config.num_attention_heads
    return tiled(mask, heads // (getattr(config, "num_key_value_heads", None) or heads))


AttentionInterface.register(NAME, grouped_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
