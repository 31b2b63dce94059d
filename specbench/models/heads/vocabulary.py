"""The two ends of a head: embedding and output, its own where its files have them, else those of its target.

A head may know some tokens only (`d2t`, `t2d`; see `checkpoints.reduced_heads`). Its embedding is of all of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from specbench.errors import UnusableModelError
from specbench.models.checkpoints.reduced_heads import MASK, OFFSETS, WEIGHT, tokens, wrong_mask, wrong_offsets
from specbench.models.heads.borrowed import Borrowed
from specbench.models.heads.head import Head
from specbench.models.heads.layers import number_in, shape_of
from specbench.models.network.reduced import SIZE, ReducedHead, cut

EMBEDDING = "embed_tokens.weight"


def without_copies(head: Head, target: Borrowed) -> Head:
    """The head without an embedding that is a copy of its target's, and without a copy of its output, where that is
    what it has in files without one: these are borrowed, and the memory of one is saved."""
    network = target.network
    own = {EMBEDDING: network.get_input_embeddings()}
    own |= {WEIGHT: network.get_output_embeddings()} if head.kind in ("mtp", "eagle1") else {}
    copies = {name for name, part in own.items() if _same(head.tensors.get(name), part.weight)}
    return replace(head, tensors={name: tensor for name, tensor in head.tensors.items() if name not in copies})


def _same(stored: Tensor | None, weight: Tensor) -> bool:
    if stored is None or stored.shape != weight.shape:
        return False
    there = type(weight) in (Tensor, nn.Parameter) and not weight.is_meta  # and not quantised
    return there and torch.equal(stored.to(weight), weight)


def refuse_other(head: Head, target: Borrowed, width: int, vocabulary: int | None = None) -> None:
    """UnusableModelError for a head that reads hidden states of another width, or has another vocabulary: that given,
    or that of its config.json and its embedding."""
    said = vocabulary or number_in(head, "vocab_size") or target.vocabulary
    rows = len(head.tensors[EMBEDDING]) if EMBEDDING in head.tensors else said
    for what, own, wanted in (("width", width, target.width), ("vocabulary", said, target.vocabulary),
                              ("vocabulary", rows, target.vocabulary)):  # fmt: skip
        if own != wanted:
            raise UnusableModelError(
                f"{head.name}: it is for a target of {what} {own:,}, and this one's is {wanted:,}: give the target "
                "that it was trained with"
            )


def embedding(head: Head, target: Borrowed, width: int) -> nn.Embedding | None:
    """The embedding of a head with weights of its own; None for one that uses its target's."""
    if EMBEDDING not in head.tensors:
        if width != target.width:
            raise UnusableModelError(
                f"{head.name}: weights are missing: {EMBEDDING}: it is {width} wide, and its target {target.width}"
            )
        return None
    return nn.Embedding(target.vocabulary, width, device="meta")


def output(head: Head, config: object, target: Borrowed) -> nn.Module | None:
    """The output of a head with weights of its own, of all tokens or of some; None for one that uses its target's.

    A head that knows some tokens says so in its configuration, `draft_vocab_size`. UnusableModelError for tensors that
    do not fit each other or the target.
    """
    if WEIGHT not in head.tensors and OFFSETS not in head.tensors:
        return None
    shape_of(head, WEIGHT)
    rows, width = head.tensors[WEIGHT].shape
    if rows == target.vocabulary:
        return nn.Linear(width, rows, bias=False, device="meta")
    if OFFSETS not in head.tensors:
        raise UnusableModelError(
            f"{head.name}: its {WEIGHT} has {rows:,} rows and the target {target.vocabulary:,} tokens, and it has no "
            f"{OFFSETS} to say which they are"
        )
    offsets, mask = head.tensors[OFFSETS], head.tensors.get(MASK)
    if reason := wrong_offsets(offsets, rows, target.vocabulary) or wrong_mask(offsets, mask, target.vocabulary):
        raise UnusableModelError(f"{head.name}: {reason}; a head's row i is the token i + {OFFSETS}[i]")
    setattr(config, SIZE, rows)
    with torch.device("meta"):
        return ReducedHead(torch.empty(rows, width), torch.empty(rows, dtype=torch.long), target.vocabulary)


def cuttable(head: Any) -> bool:
    """Whether a head, loaded or not, has one output for all that it drafts, one token after the other."""
    return not head.at_once and hasattr(head, "lm_head")


def reduce_output(head: Any, target: Any, ids: Sequence[int]) -> Any:
    """A head that is `cuttable`, in place, with the rows of its output for these tokens alone: of its own, or of what
    it borrows; of the embedding, where the two are one."""
    shared = (head.embed_tokens or target.get_input_embeddings()) if getattr(head, "tied", False) else None
    head.lm_head = cut(shared or head.lm_head or target.get_output_embeddings(), ids, type(head).__name__)
    head.tied = False
    setattr(head.config, SIZE, len(head.lm_head.ids))
    return head


def stored(head: Head, target: Borrowed) -> dict[str, Tensor]:
    """The tensors of a head as its module has them: the ids of the tokens that it knows in the place of offsets."""
    tensors: Mapping[str, Tensor] = head.tensors
    known = {name: tensor for name, tensor in tensors.items() if name not in (OFFSETS, MASK)}
    if OFFSETS in tensors and WEIGHT in tensors and len(tensors[WEIGHT]) != target.vocabulary:
        known["lm_head.ids"] = tokens(tensors[OFFSETS])
    return known
