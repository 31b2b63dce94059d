"""Checkpoints whose head knows some tokens only: `draft_vocab_size` in config.json, and the tensors that say which.

The format is that of EAGLE-3 heads: lm_head.weight [N, H]; d2t [N] int64, offsets, so that row i is the token
i + d2t[i]; t2d [V] bool, which tokens there are, which may be left out. Knows these tensors; must not know what a draft
is used for.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specbench.errors import UnusableModelError
from specbench.models.network.reduced import SIZE, ReducedHead, put

WEIGHT, OFFSETS, MASK = "lm_head.weight", "d2t", "t2d"
ALSO = "embed_out.weight"  # as transformers writes the head of GPT-NeoX
UNREADABLE = "a head with a vocabulary of its own is read from plain safetensors, and onto one device"


def size_of(config: Any) -> int | None:
    """How many tokens the head of a network with this configuration knows; None where it knows all of them."""
    size: int | None = getattr(config, SIZE, None)
    return size


def label(config: Any) -> str:
    """What results say about such a head; nothing about any other."""
    size = size_of(config)
    return f"{size:,} of {config.get_text_config(decoder=True).vocab_size:,} tokens" if size is not None else ""


def without(config: Any) -> Any:
    """The configuration of the network without such a head: one with a head that takes no memory."""
    plain = copy.deepcopy(config)
    plain.tie_word_embeddings = plain.get_text_config(decoder=True).tie_word_embeddings = True
    return plain


@dataclass(frozen=True)
class Taken:
    """A head that was taken out of the weights of the checkpoint `name`: its rows, and the ids of their tokens."""

    name: str
    weight: Tensor
    ids: Tensor
    width: int

    def put_into(self, model: Any, info: dict[str, Any]) -> None:
        """Give the network this head in the place of the one that it was made with, whose weights nobody has."""
        head = model.get_output_embeddings()
        if self.weight.shape[1] != head.weight.shape[1]:
            raise UnusableModelError(f"{self.name}: its reduced head is {list(self.weight.shape)}, and the network is "
                                     f"{head.weight.shape[1]} wide")  # fmt: skip
        info["missing_keys"] -= {f"{name}.weight" for name, part in model.named_modules() if part is head}
        weight = self.weight.to(head.weight)
        put(model, ReducedHead(weight, self.ids.to(weight.device), self.width))


def take(name: str, config: Any, weights: dict[str, Any]) -> Taken | None:
    """The reduced head among some weights, which it is taken from; None where the configuration speaks of none.

    UnusableModelError where its tensors are missing or do not fit each other, before any other is read.
    """
    if size_of(config) is None:
        return None
    own = ALSO if ALSO in weights else WEIGHT
    if absent := [tensor for tensor in (OFFSETS, own) if tensor not in weights]:
        raise UnusableModelError(f"{name}: {SIZE} is {size_of(config)}, and its weights have no {absent[0]}")
    offsets, mask = weights.pop(OFFSETS)[...], weights.pop(MASK, None)
    width = config.get_text_config(decoder=True).vocab_size
    if reason := wrong_offsets(offsets, size_of(config), width) or wrong_mask(offsets, mask, width):
        raise UnusableModelError(f"{name}: {reason}; a head's row i is the token i + {OFFSETS}[i]")
    weight = weights.pop(own)[...]
    if weight.ndim != 2 or len(weight) != len(offsets):
        raise UnusableModelError(f"{name}: {own} is {list(weight.shape)}, and {SIZE} is {len(offsets)}")
    return Taken(name, weight, tokens(offsets), width)


def tokens(offsets: Tensor) -> Tensor:
    """The ids of the tokens that a head knows."""
    return offsets.long() + torch.arange(len(offsets), device=offsets.device)


def wrong_offsets(offsets: Tensor, size: int | None, width: int) -> str | None:
    """What is wrong with d2t, in words."""
    if offsets.ndim != 1 or offsets.is_floating_point() or len(offsets) != size:
        kind = str(offsets.dtype).removeprefix("torch.")
        return f"{OFFSETS} is {list(offsets.shape)} of {kind}, and {SIZE} is {size}"
    ids = tokens(offsets)
    if bool((ids.diff() <= 0).any()):
        return f"the tokens of {OFFSETS} do not rise"
    if int(ids[0]) < 0 or int(ids[-1]) >= width:
        return f"{OFFSETS} has the tokens {int(ids[0])} to {int(ids[-1])}, and the vocabulary has {width:,}"
    return None


def wrong_mask(offsets: Tensor, mask: Any, width: int) -> str | None:
    """What is wrong with t2d, in words; nothing where there is none."""
    if mask is None:
        return None
    known = mask[...]
    if known.shape != (width,) or not torch.equal(known.bool().nonzero()[:, 0], tokens(offsets)):
        return f"{OFFSETS} and {MASK} name other tokens"
    return None


def hollow(net: Any, config: Any) -> Any:
    """A network of this configuration, without memory for its weights, with the head that the configuration tells."""
    if (size := size_of(config)) is None:
        return net
    weight = net.get_output_embeddings().weight
    return put(net, ReducedHead(weight[:size], torch.empty(size, dtype=torch.long, device="meta"), len(weight)))


def stored(head: ReducedHead) -> dict[str, Tensor]:
    """The tensors of a head as a checkpoint has them."""
    offsets = head.ids - torch.arange(len(head.ids), device=head.ids.device)
    mask = torch.zeros(head.width, dtype=torch.bool, device=head.ids.device).index_fill(0, head.ids, value=True)
    return {WEIGHT: head.weight.detach(), OFFSETS: offsets, MASK: mask}
