"""The distribution of the next token: logits → probabilities by temperature, top-k, top-p, min-p and eta,
in the order of transformers and, but for eta and top-p, by its warpers; the same for target and draft.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LogitsProcessor
from transformers.generation.logits_process import (
    EtaLogitsWarper,
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
)

from specbench.decoding.types import STEP, Context, likeliest, point_mass
from specbench.errors import UsageError

COLD = 1e-3  # below this temperature the quotient logits ÷ temperature overflows float32
SIZE = "draft_vocab_size"  # in config.json: the number of known tokens


class Eta(EtaLogitsWarper):
    """Eta sampling as in transformers, but without device synchronisation or copies."""

    def __init__(self, epsilon: float) -> None:
        super().__init__(epsilon)
        self.most, self.root = epsilon, math.sqrt(epsilon)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        probs = scores.softmax(-1)
        entropy = torch.special.entr(probs).sum(-1, keepdim=True)
        eta = (self.root * (-entropy).exp()).clamp(max=self.most)
        return scores.masked_fill((probs < eta) & (scores < scores.amax(-1, keepdim=True)), self.filter_value)


@dataclass(frozen=True)
class Sampling:
    """The rule from logits to the sampling distribution. Temperature 0 is greedy: one-hot, lowest id at ties.

    Values are in the ranges of `RunSpec`.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    eta: float | None = None

    @cached_property
    def _warpers(self) -> LogitsProcessorList:
        warpers = LogitsProcessorList()
        if self.temperature != 1.0:
            warpers.append(TemperatureLogitsWarper(float(self.temperature)))
        if self.top_k is not None:
            warpers.append(TopKLogitsWarper(self.top_k))
        if self.top_p is not None and self.top_p < 1.0:
            warpers.append(TopP(self.top_p))
        if self.min_p is not None:
            warpers.append(MinPLogitsWarper(self.min_p))
        if self.eta is not None and self.eta < 1.0:
            warpers.append(Eta(self.eta))
        return warpers

    @property
    def certain(self) -> bool:
        """Whether every row is a point mass."""
        return self.temperature == 0

    def __call__(self, logits: Tensor, width: int) -> Tensor:
        """[..., width] probabilities in float32 (float64 stays) from logits [..., V'].

        A head wider than `width` is cut before the softmax, a narrower one padded with zeros: only
        a draft's distribution may be changed so, the output stays distributed as the target's.
        """
        return self.checked(logits, width)[0]

    def checked(self, logits: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """The probabilities, and [...] which rows are valid distributions: NaN or infinite logits are not."""
        scores = logits[..., :width]
        scores = scores if scores.dtype == torch.float64 else scores.float()
        if self.certain:
            greatest, ids = scores.max(-1)  # on a CPU twice as fast as argmax
            return point_mass(ids, width, scores.dtype), greatest.abs() < torch.inf  # false for NaN, too
        proper = scores.amax(-1).abs() < torch.inf
        if self.temperature < COLD:
            scores = scores.double() - scores.amax(-1, keepdim=True)
        flat = scores.reshape(-1, scores.shape[-1])
        if self._warpers:
            nothing = torch.empty((flat.shape[0], 0), dtype=torch.long, device=flat.device)  # no warper reads it
            flat = self._warpers(nothing, flat)  # type: ignore[arg-type]
        probs = flat.softmax(-1).view(scores.shape)
        return F.pad(probs, (0, width - probs.shape[-1])) if probs.shape[-1] < width else probs, proper


# --- top p ------------------------------------------------------------------------------------------------------------
# The smallest set of the likeliest tokens whose mass reaches p, with and without sorting the
# vocabulary. In the order of scores, then ids, tokens are removed from below while the removed
# mass is at most 1 − p; the last one stays. Masses are whole numbers, whose sums are the same
# in every order: both ways keep the same tokens on every device, batched and compiled.

ONE = 61  # a mass of 1 is 2^61: float32 probabilities from 2^-38 on are exact, and no sum overflows
DIGIT = 11  # bits of a score examined at a time
FEW = 2048  # maximum tokens that a CPU sorts; a GPU always sorts, as this was not measured there
BITS = {torch.float32: (torch.int32, 32), torch.float64: (torch.int64, 64)}


class TopP(LogitsProcessor):
    """−inf for the scores [B, V] of removed tokens: transformers' TopPLogitsWarper for p in (0, 1)."""

    def __init__(self, p: float) -> None:
        self.p = p

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        gone = by_digits if scores.device.type == "cpu" and scores.shape[-1] > FEW else by_sort
        return scores.masked_fill(gone(scores, self.p), -torch.inf)


def by_sort(scores: Tensor, p: float) -> Tensor:
    """[B, V] bool: mask of removed tokens."""
    order = scores.sort(dim=-1, stable=True).indices
    gone = masses(scores).gather(-1, order).cumsum(-1) <= going(p)
    gone[..., -1] = False
    return torch.empty_like(gone).scatter(-1, order, gone)


def by_digits(scores: Tensor, p: float) -> Tensor:
    """The same without sorting: the lowest kept score is found digit by digit.

    A histogram of the masses over the first digit of the scores shows in which bin the mass passes 1 − p, one of that
    bin over the next digit where in it, and so on; tokens with exactly the remaining score are counted by their ids.
    """
    inside = masses(scores)
    goes = (inside.sum(-1, keepdim=True) - 1).clamp(max=going(p))  # less than all of it
    kind, bits = BITS[scores.dtype]
    raw = (scores + 0.0).view(kind)  # −0 becomes 0
    keys, left = raw ^ ((raw >> (bits - 1)) & ((1 << (bits - 1)) - 1)), bits
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
    """The greatest mass that may be removed."""
    return math.floor((1 - p) * 2.0**ONE)


# --- ranks ------------------------------------------------------------------------------------------------------------
# The likeliest tokens of a network by its own scores: for every row of a pass, and along the prompts.


class Ranks:
    """See `Ranking`. `last` is written by every `probs` of the network."""

    last: Tensor

    def __init__(self, model: Any, most: int) -> None:  # a `Causal`, which knows this class
        self.model, self.most, self.width = model, most, model.width

    def hear(self, logits: Tensor) -> None:
        """Record the rows [B, n + 1, V'] of a pass."""
        self.last = likeliest(logits[..., : self.width], self.most)

    def along(self, context: Context, row: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Read the prompts once more, few tokens at a time: no prefill keeps the logits of all tokens at once."""
        model = self.model
        if row is not None:  # the other rows are in the middle of their sequences
            model = model.alone()
            context = context.select(torch.tensor([row], device=context.pos.device))
            model.start(context)
        longest = int(context.pos.max())
        for begin in range(0, longest, STEP):
            end = min(begin + STEP, longest)
            slots = torch.arange(begin, end, device=context.pos.device).expand(context.rows, -1)
            here = replace(context, reach=min(begin + STEP, context.seq.shape[1]))
            yield slots, likeliest(model.along(here, slots)[..., : self.width], self.most)


# --- heads with a reduced vocabulary ----------------------------------------------------------------------------------
# FR-Spec, Zhao et al. 2025, arXiv 2502.14856. With large vocabularies the head is most of what a small draft reads per
# token. Its input keeps the whole vocabulary, and so do its rows, with zeros for unknown tokens.


class ReducedHead(nn.Module):
    """Logits of N of `width` tokens: ids [N] in rising order, weight [N, H]. `alone`: without the other tokens."""

    ids: Tensor
    alone = False

    def __init__(self, weight: Tensor, ids: Tensor, width: int) -> None:
        super().__init__()
        self.weight, self.width = nn.Parameter(weight), width
        self.register_buffer("ids", ids)

    def narrow(self, hidden: Tensor) -> Tensor:
        """hidden [..., H] → the logits [..., N] of the known tokens."""
        return F.linear(hidden, self.weight)

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden [..., H] → logits [..., width], −inf for every unknown token."""
        known = self.narrow(hidden)
        if self.alone:
            return known
        return known.new_full((*known.shape[:-1], self.width), -torch.inf).index_copy(-1, self.ids, known)


def reduce_head(model: Any, ids: Sequence[int]) -> Any:
    """The model, in place, with a head that knows only these tokens: its rows of the head it had.

    UsageError for ids outside its vocabulary, and for a head that is more than a matrix.
    """
    return put(model, cut(model.get_output_embeddings(), ids, type(model).__name__))


def cut(head: Any, ids: Sequence[int], name: str) -> ReducedHead:
    """A copy of some rows of a head; for a reduced head, of the known ones among them."""
    if getattr(head, "bias", None) is not None:
        raise UsageError(f"{name} has a head with a bias, whose vocabulary cannot be reduced")
    if type(head.weight) not in (Tensor, nn.Parameter):
        raise UsageError(f"{name} has a quantised head, whose vocabulary cannot be reduced")
    known = sorted({int(number) for number in ids})
    there, width = (head.ids, head.width) if isinstance(head, ReducedHead) else (None, len(head.weight))
    if not known or known[0] < 0 or known[-1] >= width:
        raise UsageError(f"a reduced vocabulary is a set of ids from 0 to {width - 1} that the draft has")
    chosen = torch.tensor(known, device=head.weight.device)
    rows = chosen if there is None else torch.isin(there, chosen).nonzero()[:, 0]
    if not len(rows):
        raise UsageError(f"{name} knows {len(head.weight)} tokens, and none of those that are requested")
    return ReducedHead(head.weight.detach()[rows].clone(), chosen if there is None else there[rows], width)


def put(model: Any, head: ReducedHead) -> Any:
    """The model, in place, with another head and its configuration."""
    model.set_output_embeddings(head)
    model.config.tie_word_embeddings = model.config.get_text_config(decoder=True).tie_word_embeddings = False
    model.all_tied_weights_keys = model.get_expanded_tied_weights_keys(all_submodels=True)  # by that configuration
    setattr(model.config, SIZE, len(head.ids))
    return model


@contextmanager
def known_alone(network: nn.Module) -> Iterator[Tensor | None]:
    """During losses, let the network give logits of the known tokens alone: their ids [N]; None: all."""
    heads = [part for part in network.modules() if isinstance(part, ReducedHead)]
    for head in heads:
        head.alone = True
    try:
        yield heads[0].ids if heads else None
    finally:
        for head in heads:
            head.alone = False


def known_tokens(network: Any, width: int) -> Tensor | None:
    """The ids below `width` [N] that the head of a network knows; None if it knows all of them."""
    if getattr(network.config, SIZE, None) is None:
        return None
    heads = [part for part in network.modules() if isinstance(part, ReducedHead)]
    return heads[0].ids[heads[0].ids < width] if heads else None


def proper_rows(context: Context, sampling: Sampling, logits: Tensor, width: int, known: Tensor | None) -> Tensor:
    """Logits [B, ..., V'] as distributions [B, ..., V]; clears `finite` for rows with NaN or infinite logits.

    Those of a head that knows some tokens are computed for these alone: the others always have probability 0.
    """
    if known is None:
        rows, proper = sampling.checked(logits, width)
    else:
        some, proper = sampling.checked(logits.index_select(-1, known), len(known))
        rows = some.new_zeros((*some.shape[:-1], width)).index_copy(-1, known, some)
    context.finite &= proper.flatten(1).all(1) if proper.ndim > 1 else proper
    return rows
