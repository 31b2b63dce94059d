"""Top-p: the smallest set of the likeliest tokens whose mass reaches p, with and without sorting the vocabulary.

Knows scores and sums; must not know models. Which tokens are kept is what transformers' warper says, in exact
arithmetic: in the order of scores, equal ones in the order of their ids, tokens go from below while the mass of those
that have gone is at most 1 − p, and the last one stays. Masses are whole numbers, whose sums are the same in every
order: so both ways here keep the same tokens on every device, batched and compiled, where sums in floating point round
differently at the edge of the set.
"""

import math

import torch
from torch import Tensor
from transformers import LogitsProcessor

ONE = 61  # a mass of 1 is 2^61: float32 probabilities from 2^-38 on are exact, and no sum overflows
DIGIT = 11  # bits of a score that are looked at a time
FEW = 2048  # tokens, of which a CPU sorts as many sooner; on a GPU this is not measured, and it sorts
BITS = {torch.float32: (torch.int32, 32), torch.float64: (torch.int64, 64)}


class TopP(LogitsProcessor):
    """−inf for the scores [B, V] of tokens that are left out: transformers' TopPLogitsWarper for p in (0, 1)."""

    def __init__(self, p: float) -> None:
        self.p = p

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        gone = by_digits if scores.device.type == "cpu" and scores.shape[-1] > FEW else by_sort
        return scores.masked_fill(gone(scores, self.p), -torch.inf)


def by_sort(scores: Tensor, p: float) -> Tensor:
    """[B, V] bool: which tokens are left out."""
    order = scores.sort(dim=-1, stable=True).indices
    gone = masses(scores).gather(-1, order).cumsum(-1) <= going(p)
    gone[..., -1] = False
    return torch.empty_like(gone).scatter(-1, order, gone)


def by_digits(scores: Tensor, p: float) -> Tensor:
    """The same without sorting: the score at which tokens begin to stay is found digit by digit.

    A histogram of the masses over the first digit of the scores says in which bin the mass passes 1 − p, one of that
    bin over the next digit where in it, and so on; tokens that have the score which is left are counted by their ids.
    """
    inside = masses(scores)
    goes = (inside.sum(-1, keepdim=True) - 1).clamp(max=going(p))  # less than all of it
    keys, left = ordered(scores)
    signs = keys ^ (-1 << (left - 1))  # as bits, whole numbers from 0 on
    edge, below = torch.zeros_like(goes), torch.zeros_like(goes)
    while left > 0:
        bins, left = 1 << min(DIGIT, left), max(left - DIGIT, 0)
        digits = ((signs >> left) & (bins - 1)).long()
        sums = goes.new_zeros((len(goes), bins)).scatter_add(-1, digits, inside)
        passed = below + sums.cumsum(-1)
        digit = (passed <= goes).sum(-1, keepdim=True).clamp(max=bins - 1)
        below = (passed - sums).gather(-1, digit)
        edge = edge | (digit << left)
        inside = inside.where(digits == digit, 0)
    first = edge.to(keys.dtype) ^ (-1 << (BITS[scores.dtype][1] - 1))
    return (keys < first) | ((keys == first) & (below + inside.cumsum(-1) <= goes))


def masses(scores: Tensor) -> Tensor:
    """[B, V] probabilities as whole numbers."""
    return (scores.softmax(-1) * 2.0**ONE).long()


def going(p: float) -> int:
    """The greatest mass that goes."""
    return math.floor((1 - p) * 2.0**ONE)


def ordered(scores: Tensor) -> tuple[Tensor, int]:
    """[B, V] whole numbers in the order of the scores, equal where these are, and how many bits they have."""
    kind, bits = BITS[scores.dtype]
    raw = (scores + 0.0).view(kind)  # −0 becomes 0
    return raw ^ ((raw >> (bits - 1)) & ((1 << (bits - 1)) - 1)), bits
