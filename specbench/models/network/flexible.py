"""Attention of a few queries over many keys on a GPU: the keys are divided among its multiprocessors.

With a mask, torch's memory-efficient kernel gives every head of keys to one multiprocessor, so that with eight heads
most of a GPU stands still while 32k keys are read. torch's flex attention divides the keys as Flash-Decoding does
(Dao et al. 2023), and takes grouped queries as they are; but only compiled, so whatever is not is left to
`grouped_attention`. Asked for by `--attn-implementation flex`: nothing of it was ever run on a GPU.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from specbench.models.network.attention import NAME, grouped_attention

FLEX = "specbench_flex"
OURS = (NAME, FLEX)
LONG = 2048  # keys from which on
FEW = 128  # queries for which it has a kernel that divides keys


def flexible_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """As `grouped_attention`: query [B, H, q, D] over key and value [B, H', L, D]; result [B, q, H, D]."""
    if torch.compiler.is_compiling() and fitting(query, key, attention_mask) and kwargs.get("position_bias") is None:
        assert attention_mask is not None
        return divided(query, key, value, attention_mask, kwargs.get("scaling")).transpose(1, 2).contiguous(), None
    return grouped_attention(module, query, key, value, attention_mask, **kwargs)


def fitting(query: Tensor, key: Tensor, mask: Tensor | None) -> bool:
    """Whether a few queries ask many keys, with a mask that all heads share and that is added to the scores."""
    if mask is None or mask.shape[1] != 1 or mask.shape[-1] != key.shape[2] or not mask.is_floating_point():
        return False
    return key.shape[2] >= LONG and query.shape[2] * query.shape[1] // key.shape[1] <= FEW


def divided(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float | None) -> Tensor:
    """[B, H, q, D]; mask [B, 1, q, L] is added to the scores."""
    from torch.nn.attention.flex_attention import flex_attention  # it takes a moment, and few ask for it

    def seen(score: Tensor, row: Tensor, head: Tensor, asked: Tensor, slot: Tensor) -> Tensor:
        return score + mask[row, 0, asked, slot]

    grouped = query.shape[1] != key.shape[1]
    out = flex_attention(query, key, value, score_mod=seen, scale=scale, enable_gqa=grouped)
    assert isinstance(out, Tensor)
    return out


AttentionInterface.register(FLEX, flexible_attention)
AttentionMaskInterface.register(FLEX, sdpa_mask)
