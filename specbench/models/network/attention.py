"""Grouped-query attention without copying the cache, registered with transformers under its own name.

transformers copies keys and values for every group if there is a mask and more than one query,
in every layer. Here the queries of a group are concatenated: the same sums.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "specbench_grouped"
_seen: list[Tensor] | None = None  # a list that records queries, if any


@contextmanager
def queries() -> Iterator[list[Tensor]]:
    """The queries [B, H, q, D] of every layer called inside, in order: of eager calls only."""
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

    A mask without slots hides nothing except, for several queries, later tokens. All other cases than a mask
    shared by the heads and plain scaled dot products use transformers' own function. For many keys see `parts`.
    """
    if _seen is not None:
        _seen.append(query)
    if attention_mask is not None and attention_mask.shape[-1] == 0:
        attention_mask = None
    rows, heads, length, _ = query.shape
    groups = heads // key.shape[1]
    plain = (attention_mask is None or attention_mask.shape[1] == 1) and kwargs.get("position_bias") is None
    many = plain and not dropout and worthwhile(query, key, value, attention_mask)
    if not plain or (not many and (attention_mask is None or groups == 1)):
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)
    beside = query.reshape(rows, key.shape[1], groups * length, -1)
    mask = attention_mask
    if mask is not None and mask.shape[2] == length:
        mask = tiled(mask, groups)
    if many:
        count = parts_of(rows, key.shape[1], key.shape[2], threads())
        out = in_parts(beside, key, value, mask, scaling, count)
    else:
        out = F.scaled_dot_product_attention(beside, key, value, attn_mask=mask, dropout_p=dropout, scale=scaling)
    return out.reshape(rows, heads, length, -1).transpose(1, 2).contiguous(), None


def tiled(mask: Tensor, groups: int) -> Tensor:
    """[B, 1, q, L] → [B, 1, groups · q, L]: the mask of concatenated queries; one query needs no copies."""
    return mask.repeat(1, 1, groups, 1) if groups > 1 and mask.shape[2] > 1 else mask


def for_groups(mask: Tensor, config: Any) -> Tensor:
    """The mask in the form of `grouped_attention` in every layer of a network, made once per pass."""
    if config._attn_implementation != NAME:
        return mask
    heads = config.num_attention_heads
    return tiled(mask, heads // (getattr(config, "num_key_value_heads", None) or heads))


AttentionInterface.register(NAME, grouped_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


# --- flexible ---------------------------------------------------------------------------------------------------------
# A few queries over many keys on a GPU, by torch's flex attention, which divides the keys among its multiprocessors
# as Flash-Decoding does (Dao et al. 2023): torch's memory-efficient kernel gives every head of keys to one of them.
# Only compiled; else `grouped_attention`. For `--attn-implementation flex`: never run on a GPU.

FLEX = "specbench_flex"
OURS = (NAME, FLEX)
GPU_LONG = 2048  # minimum number of keys
GPU_FEW = 128  # maximum number of queries for its kernel that divides keys


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
        out = divided_on_gpu(query, key, value, attention_mask, kwargs.get("scaling"))
        return out.transpose(1, 2).contiguous(), None
    return grouped_attention(module, query, key, value, attention_mask, **kwargs)


def fitting(query: Tensor, key: Tensor, mask: Tensor | None) -> bool:
    """Whether there are few queries and many keys, with a mask that all heads share and that is added to the scores."""
    if mask is None or mask.shape[1] != 1 or mask.shape[-1] != key.shape[2] or not mask.is_floating_point():
        return False
    return key.shape[2] >= GPU_LONG and query.shape[2] * query.shape[1] // key.shape[1] <= GPU_FEW


def divided_on_gpu(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float | None) -> Tensor:
    """[B, H, q, D]; mask [B, 1, q, L] is added to the scores."""
    from torch.nn.attention.flex_attention import flex_attention  # a slow import, rarely needed

    def seen(score: Tensor, row: Tensor, head: Tensor, asked: Tensor, slot: Tensor) -> Tensor:
        return score + mask[row, 0, asked, slot]

    grouped = query.shape[1] != key.shape[1]
    out = flex_attention(query, key, value, score_mod=seen, scale=scale, enable_gqa=grouped)
    assert isinstance(out, Tensor)
    return out


AttentionInterface.register(FLEX, flexible_attention)
AttentionMaskInterface.register(FLEX, sdpa_mask)


# --- parts ------------------------------------------------------------------------------------------------------------
# A few queries over many keys on a CPU, where torch gives every head to one thread and reads the keys of a
# group once for each of its queries. From `LONG` keys on the queries of a group are concatenated, and the
# keys are divided into parts, one per thread. Every part has its own softmax; the logarithms of their sums
# merge them, which is exact (Dao et al. 2023, Flash-Decoding; Milakov and Gimelshein 2018, arXiv 1805.02867).

LONG = 2048  # keys; fewer bring no gain
PART = 512  # minimum keys of a part
FEW = 256  # maximum queries, those of a group counted


def worthwhile(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Whether query [B, H, q, D] over key [B, H', L, D] is such a case; a mask must be added to the scores."""
    groups = query.shape[1] // key.shape[1]
    return (
        query.device.type == "cpu"
        and key.shape[2] >= LONG
        and query.shape[2] * groups <= FEW
        and value.shape[3] == query.shape[3]
        and (query.shape[2] == 1 if mask is None else mask.is_floating_point())
        and not torch.is_grad_enabled()  # the sum of a part is not differentiable
    )


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def threads() -> int:
    """The number of threads; it is set before anything is compiled."""
    return torch.get_num_threads()


def parts_of(rows: int, heads: int, keys: int, threads: int) -> int:
    """The fewest parts of a head's keys that all threads share evenly; several rows need no division."""
    return max(min(threads // math.gcd(threads, heads), keys // PART), 1) if rows == 1 else 1


def in_parts(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None, parts: int) -> Tensor:
    """[B, H', q, D] attention of query [B, H', q, D] over key and value [B, H', L, D]; mask [B,
    1, q or 1, L] is added. Several parts are for one row; remaining keys form a separate part."""
    if parts == 1:
        return partial(query, key, value, mask, scale)[0]
    whole, alone = key.shape[2] // parts * parts, query[0].unsqueeze(1)
    found = []
    for begin, end, count in ((0, whole, parts), (whole, key.shape[2], 1)):
        if begin < end:
            keys, values = (divided(x[0, :, begin:end], count) for x in (key, value))
            own = None if mask is None else divided(mask[0, ..., begin:end].mT, count).mT.expand(len(keys), -1, -1, -1)
            found.append(partial(alone.expand(-1, count, -1, -1), keys, values, own, scale))
    outs, sums = torch.cat([out for out, _ in found], 1), torch.cat([total for _, total in found], 1)
    return (outs * sums.softmax(1).unsqueeze(-1)).sum(1).to(query.dtype).unsqueeze(0)


def divided(states: Tensor, parts: int) -> Tensor:
    """[H', L, D] as [H', parts, L / parts, D], without a copy."""
    heads, length, size = states.shape
    return states.view(heads, parts, length // parts, size)


def partial(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Attention over some keys, and [.., q] the logarithm of the sum in its softmax."""
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, attn_mask=mask, scale=scale)  # type: ignore[no-any-return]
