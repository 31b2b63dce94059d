"""A head on a whole text at once, without a cache: what incremental passes must come out as.

Knows modules of heads that draft one token after the other; must not know models or drafts.
"""

from typing import Any

import torch
from torch import Tensor

from specbench.models.network.attention import for_groups
from specbench.models.network.masks import additive, causal_mask
from specbench.models.network.passes import windows_of


@torch.no_grad()
def whole_pass(module: Any, ids: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
    """ids [B, T] and states [B, T, width] of pairs 0 to T − 1 → logits [B, T, V] and the next states [B, T, width]."""
    positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    return module(ids, states, positions, masks(module, positions, ids.shape[1]))  # type: ignore[no-any-return]


def masks(module: Any, slots: Tensor, reach: int) -> Any:
    """What pairs at slots [B, q] see of the first `reach` ones, in the form that the layers of a head take."""
    seen = {name: causal_mask(slots, reach, window) for name, window in windows_of(module.config).items()}
    ready = {name: for_groups(additive(mask, module.dtype), module.config) for name, mask in seen.items()}
    return ready.get("", ready)
