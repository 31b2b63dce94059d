"""The rows of a teacher and of its student at the tokens that are learned.

Knows networks as functions of token ids; must not know losses or optimisers.
"""

from typing import Any

import torch
from torch import Tensor

from specbench.models.network.law import Law
from specbench.training.batches import Batch


def logits_of(network: Any, batch: Batch) -> Tensor:
    """[n, V'] logits at the positions whose next token is learned."""
    first = int(batch.learned.any(0).int().argmax())  # no row before it is read
    kept = network(input_ids=batch.fed, use_cache=False, logits_to_keep=batch.fed.shape[1] - first).logits
    rows: Tensor = kept[batch.learned[:, first:]]
    return rows


@torch.no_grad()
def teacher_rows(network: Any, batch: Batch, law: Law, width: int) -> Tensor:
    """[n, width] the teacher's distributions of the learned tokens, in float32."""
    return law(logits_of(network, batch), width)
