"""The rows of a network, and of known text, at the tokens that are learned.

Knows networks as functions of token ids; must not know losses or optimisers.
"""

from typing import Any

import torch
from torch import Tensor

from specbench.decoding.rows import point_mass
from specbench.models.network.reduced import known_alone
from specbench.training.batches import Batch


def logits_of(network: Any, batch: Batch) -> Tensor:
    """[n, V'] logits at the positions whose next token is learned."""
    first = int(batch.learned.any(0).int().argmax())  # no row before it is read
    kept = network(input_ids=batch.fed, use_cache=False, logits_to_keep=batch.fed.shape[1] - first).logits
    rows: Tensor = kept[batch.learned[:, first:]]
    return rows


def text_rows(batch: Batch, width: int) -> Tensor:
    """[n, width] the learned tokens themselves, as point masses: what there is to learn without a teacher."""
    return point_mass(batch.following, width, torch.float32)


def on_common_tokens(p: Tensor, student: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """p [n, V] and the student's logits beside it, in float32, on the tokens that the student knows."""
    with known_alone(student) as known:
        logits = logits_of(student, batch).float()
    return (p if known is None else p.index_select(-1, known)), logits
