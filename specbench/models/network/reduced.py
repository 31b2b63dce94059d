"""Heads of drafts with a reduced vocabulary (FR-Spec, Zhao et al. 2025, arXiv 2502.14856).

With large vocabularies the head is most of what a small draft reads per token. Its input keeps
the whole vocabulary, and so do its rows, with zeros for unknown tokens.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specbench.decoding.types import Context
from specbench.errors import UsageError
from specbench.models.network.sampling import Sampling

SIZE = "draft_vocab_size"  # in config.json: the number of known tokens


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


def proper_rows(context: Context, law: Sampling, logits: Tensor, width: int, known: Tensor | None) -> Tensor:
    """Logits [B, ..., V'] as distributions [B, ..., V]; clears `finite` for rows with NaN or infinite logits.

    Those of a head that knows some tokens are computed for these alone: the others always have probability 0.
    """
    if known is None:
        rows, proper = law.checked(logits, width)
    else:
        some, proper = law.checked(logits.index_select(-1, known), len(known))
        rows = some.new_zeros((*some.shape[:-1], width)).index_copy(-1, known, some)
    context.finite &= proper.flatten(1).all(1) if proper.ndim > 1 else proper
    return rows
