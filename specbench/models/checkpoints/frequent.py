"""Which tokens a draft with a small vocabulary knows: those that are written most often.

As in FR-Spec (Zhao et al. 2025, arXiv 2502.14856, §3), which counts any text. Knows counts and rows; must not know
networks or where the counts come from.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from specbench.errors import UsageError


def most_frequent(counts: Tensor, size: int, always: Collection[int] = ()) -> list[int]:
    """`size` ids in rising order: those of `always`, and of counts [V] the greatest, the lower id first among equals.

    UsageError where that many do not fit.
    """
    forced = sorted(set(always))
    if not len(forced) <= size <= len(counts) or size < 1:
        raise UsageError(
            f"a vocabulary of {size:,} tokens: it can have {max(len(forced), 1):,}, which are special tokens and "
            f"always kept, to {len(counts):,}, which are all"
        )
    if forced and (forced[0] < 0 or forced[-1] >= len(counts)):
        raise UsageError(f"the special token {forced[-1]} is none of the {len(counts):,} tokens of the target's head")
    order = counts.double().index_fill(0, torch.tensor(forced, dtype=torch.long), torch.inf)
    kept: list[int] = order.argsort(descending=True, stable=True)[:size].sort().values.tolist()
    return kept


def special_tokens(tokenizer: Any, *ends: int | Iterable[int] | None) -> set[int]:
    """The ids that no draft may lack: the tokenizer's special and added tokens, such as those of a chat template, and
    the ids that end a sequence."""
    found = {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}
    for ids in ends:
        found |= set() if ids is None else {ids} if isinstance(ids, int) else set(ids)
    return found


def coverage(p: Tensor, ids: Sequence[int]) -> float:
    """The mean over rows p [n, V] of the probability that is on these ids: no draft that knows no others has a greater
    acceptance α."""
    return float(p.index_select(-1, torch.tensor(list(ids), device=p.device)).sum(-1).double().mean())
