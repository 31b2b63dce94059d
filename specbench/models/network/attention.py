"""Grouped-query attention without copying the cache, registered with transformers under its own name.

transformers copies keys and values for every group if there is a mask and more than one query,
in every layer. Here the queries of a group are concatenated: the same sums.
"""

import math
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from specbench.models.execution.compiled import missing_compiler
from specbench.models.execution.int8_operators import load, machine_code

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
    ours = plain and not many and not dropout and by_operator(query, key, value, attention_mask)
    if not plain or (not many and not ours and (attention_mask is None or groups == 1)):
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **kwargs)
    beside = query.reshape(rows, key.shape[1], groups * length, -1)
    mask = attention_mask
    if mask is not None and mask.shape[2] == length:
        mask = tiled(mask, groups)
    count = parts_of(rows, key.shape[1], key.shape[2], workers(query.device), query.device.type) if many else 1
    if ours:
        scale = query.shape[3] ** -0.5 if scaling is None else scaling
        out = operator(query.shape[3])(beside, key, value, mask, scale)
    elif count > 1:
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


# --- operator ---------------------------------------------------------------------------------------------------------
# The masks of compiled rounds on a CPU have a fixed number of slots and hide most of them. torch computes hidden slots
# as well, attention.cpp does not read them. It is compiled for the size of a head and this processor.

SOURCE = Path(__file__).with_suffix(".cpp")
VECTOR, QUERIES = 16, 64  # numbers of a head are a multiple of it; the most queries, those of a group counted
DTYPES = (torch.float32, torch.bfloat16)

_library = torch.library.Library("specbench", "FRAGMENT")  # type: ignore[no-untyped-call]


@cache
def operator(size: int) -> Any:
    """attend(query [B, H', q, D], key and value [B, H', L, D], mask [B or 1, 1, q or 1, L], scale) → [B, H', q, D] for
    heads of this size, whose numbers and slots are next to each other. The mask is added. None if it cannot be made."""
    if missing_compiler():
        return None
    name = f"attend{size}"
    try:
        file = machine_code(SOURCE, [f"-DSIZE={size}"])
        _library.define(f"{name}(Tensor query, Tensor key, Tensor value, Tensor mask, float scale) -> Tensor")  # type: ignore[no-untyped-call]
        torch.library.register_fake(f"specbench::{name}", like_the_query, lib=_library)
        load(file)
    except (OSError, subprocess.CalledProcessError):
        return None
    return getattr(torch.ops.specbench, name)


def like_the_query(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    return query.new_empty(query.shape)


def by_operator(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Whether a round is recorded for compiling whose query [B, H, q, D] over key [B, H', L, D] the operator takes."""
    if mask is None or query.device.type != "cpu" or torch.compiler.is_compiling() or get_proxy_mode() is None:
        return False
    alike = {key.dtype, value.dtype, mask.dtype} == {query.dtype} and value.shape[3] == query.shape[3]
    laid = all(x.stride(3) == 1 for x in (query, key, value, mask)) and key.stride(2) == value.stride(2) == key.shape[3]
    few = query.shape[2] * query.shape[1] // key.shape[1] <= QUERIES and query.shape[3] % VECTOR == 0
    return alike and laid and few and query.dtype in DTYPES and operator(query.shape[3]) is not None


# --- parts ------------------------------------------------------------------------------------------------------------
# A few queries over many keys. Under a mask torch gives every head to one thread of a CPU, or to one thread block of a
# GPU. From `LONG` keys on the queries of a group are concatenated, and the keys are divided into parts, one per thread
# or block. Every part has its own softmax; the logarithms of their sums merge them, which is exact (Dao et al. 2023,
# Flash-Decoding; Milakov and Gimelshein 2018, arXiv 1805.02867).

LONG = {"cpu": 2048, "cuda": 1024}  # keys; fewer bring no gain
PART = {"cpu": 512, "cuda": 256}  # minimum keys of a part
FEW = 256  # maximum queries, those of a group counted
TILE = 16  # keys: a GPU reads masks whose parts are multiples of it
OCCUPANCY = 2  # thread blocks per multiprocessor
ON_GPU = (torch.float32, torch.bfloat16, torch.float16)
AMPERE = 8  # compute capability of the first GPUs whose kernel takes bfloat16


def worthwhile(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Whether query [B, H, q, D] over key [B, H', L, D] is such a case; a mask must be added to the scores."""
    few = query.shape[2] * query.shape[1] // key.shape[1] <= FEW and value.shape[3] == query.shape[3]
    kind = query.device.type
    if not few or key.shape[2] < LONG.get(kind, math.inf) or torch.is_grad_enabled():  # a part's sum has no gradient
        return False
    added = mask is not None and mask.is_floating_point()
    if kind == "cuda":  # without a mask, torch's flash attention divides the keys
        return added and key.shape[2] % TILE == 0 and query.shape[3] % 8 == 0 and query.dtype in ON_GPU
    return added or (mask is None and query.shape[2] == 1)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def workers(device: torch.device) -> int:
    """The number of threads, or of the thread blocks that a GPU runs at a time; set before anything is compiled."""
    if device.type == "cpu":
        return torch.get_num_threads()
    gpu = torch.cuda.get_device_properties(device)
    return OCCUPANCY * int(gpu.multi_processor_count) if gpu.major >= AMPERE else 1


def parts_of(rows: int, heads: int, keys: int, workers: int, kind: str = "cpu") -> int:
    """The number of parts of a head's keys: on a CPU the fewest that all threads share evenly, and none for several
    rows; on a GPU equal ones for all its blocks."""
    longest = keys // PART[kind]
    if kind == "cuda":
        most = min(-(-workers // (rows * heads)), longest)
        return next((parts for parts in range(most, 1, -1) if keys % (TILE * parts) == 0), 1)
    return max(min(workers // math.gcd(workers, heads), longest), 1) if rows == 1 else 1


def in_parts(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None, parts: int) -> Tensor:
    """[B, H', q, D] attention of query [B, H', q, D] over key and value [B, H', L, D]; mask [B or 1, 1, q or 1, L] is
    added. Remaining keys form a separate part."""
    rows, heads, positions, _ = query.shape
    whole, alone = key.shape[2] // parts * parts, query.flatten(0, 1).unsqueeze(1)
    found = []
    for begin, end, count in ((0, whole, parts), (whole, key.shape[2], 1)):
        if begin < end:
            shape = (rows * heads, count, (end - begin) // count, -1)
            keys, values = (x[:, :, begin:end].flatten(0, 1).view(shape) for x in (key, value))
            own = mask
            if mask is not None:
                own = mask[..., begin:end].expand(rows, heads, -1, -1).flatten(0, 1).mT.view(shape).mT
            found.append(partial(alone.expand(-1, count, -1, -1), keys, values, own, scale))
    outs, sums = found[0] if len(found) == 1 else (torch.cat(both, 1) for both in zip(*found, strict=True))
    merged = (outs * sums.softmax(1).unsqueeze(-1)).sum(1).to(query.dtype)
    return merged.view(rows, heads, positions, -1)


def partial(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Attention over some keys, and [.., q] the logarithm of the sum in its softmax."""
    if query.device.type == "cpu":
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return kernel(query, key, value, attn_mask=mask, scale=scale)  # type: ignore[no-any-return]
    own = None if mask is None else mask.expand(*query.shape[:3], key.shape[2])
    out, total, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(query, key, value, own, True, scale=scale)
    return out, total[..., : query.shape[2]]  # it is padded
