"""Attention of a few queries over many keys on a CPU: every key is read once, by whichever thread has time for it.

torch gives every head of keys to one thread, and where a query stands alone every head of queries, which reads the
keys of its group anew. So from `LONG` keys on the queries of a group are laid side by side, and the keys are divided
into as many parts as it takes for every thread to get its share. A part has a softmax of its own; by the logarithm of
its sum the parts are merged, which is exact (Dao et al. 2023, Flash-Decoding; Milakov and Gimelshein 2018, arXiv
1805.02867). Pure tensors: knows no network.
"""

import math

import torch
from torch import Tensor

LONG = 2048  # keys; with fewer of them there is nothing to be gained
PART = 512  # keys of a part at least
FEW = 256  # queries at most, those of a group counted


def worthwhile(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Whether query [B, H, q, D] over key [B, H', L, D] is such a case; a mask must be added to the scores."""
    groups = query.shape[1] // key.shape[1]
    return (
        query.device.type == "cpu"
        and key.shape[2] >= LONG
        and query.shape[2] * groups <= FEW
        and value.shape[3] == query.shape[3]
        and (query.shape[2] == 1 if mask is None else mask.is_floating_point())
        and not torch.is_grad_enabled()  # nobody differentiates the sum of a part
    )


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def threads() -> int:
    """How many threads compute; they are set before anything is compiled."""
    return torch.get_num_threads()


def parts_of(rows: int, heads: int, keys: int, threads: int) -> int:
    """Into how many parts the keys of every head are divided: the fewest that are shared out evenly. Many rows together
    have enough for all threads."""
    return max(min(threads // math.gcd(threads, heads), keys // PART), 1) if rows == 1 else 1


def in_parts(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None, parts: int) -> Tensor:
    """[B, H', q, D] attention of query [B, H', q, D] over key and value [B, H', L, D]; mask [B, 1, q or 1, L] is added.

    Several parts are for one row, and keys that are left over are a part of their own.
    """
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
    """Attention over some keys, and [.., q] the logarithm of the sum that its softmax is divided by."""
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, attn_mask=mask, scale=scale)  # type: ignore[no-any-return]
