"""Logits of a target along known ids, by which it is judged where greedy outputs part.

Knows a checked pair and its network; must not know what is concluded from the numbers.
"""

from collections.abc import Sequence
from typing import Any

import torch

from specbench.backends.checked import CheckedPair
from specbench.decoding.decode import begin
from specbench.models.network.law import Law
from specbench.models.network.probe import Rollback, model_of
from specbench.models.scale import growth


def scores_along(
    pair: CheckedPair, network: Any, rollback: Rollback, ids: Sequence[int], start: int, block: int
) -> torch.Tensor:
    """See `Backend.scores`; `network` is the target of the pair."""
    context = begin([list(ids[:start])], len(ids) - start, block, [], pair.device)
    context.seq[0, : len(ids)] = torch.tensor(list(ids), device=pair.device)
    model = model_of(rollback, network, Law(), pair.width)
    known = growth.vocabulary(pair.roles["target"].config)  # sunk logits would drown the noise of real ones
    return model.read(context, len(ids) - start, block)[:, :known]
