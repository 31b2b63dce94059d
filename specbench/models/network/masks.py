"""Which slots a query may attend to. Pure tensors: no model, no cache."""

import torch
from torch import Tensor

from specbench.decoding.tokens import TokenTree, ancestors, constant


def causal_mask(positions: Tensor, length: int, window: int | None = None) -> Tensor:
    """[B, 1, q, length] bool for tokens that lie at the slots of their positions [B, q].

    With a sliding window of `window` tokens a query sees itself and the window − 1 tokens before it.
    """
    slots = torch.arange(length, device=positions.device)
    seen = slots <= positions.unsqueeze(-1)
    if window is not None:
        seen &= slots > positions.unsqueeze(-1) - window
    return seen.unsqueeze(1)


def tree_mask(fed: Tensor, tree: TokenTree, length: int, window: int | None = None) -> Tensor:
    """[B, 1, m + n, length] bool for m committed tokens at positions fed [B, m] followed by the n nodes of a tree.

    Node i lies at slot root + 1 + i, where root is the last fed position; it sees the committed tokens, its
    ancestors and itself, less what lies outside the window by position (not by slot).
    """
    root = fed[:, -1:]
    slots = torch.arange(length, device=fed.device)
    node = slots - root - 1  # [B, length] which node lies at a slot; committed where negative
    inside = (node >= 0) & (node < tree.size)
    relation = ancestors(tree.parents, fed.device)[:, node.clamp(0, tree.size - 1)].movedim(0, 1)  # [B, n, length]
    committed = (node < 0).unsqueeze(1)
    seen = committed | (inside.unsqueeze(1) & relation)
    if window is not None:
        depths = constant(tree.topology.depths, fed.device)
        lies_at = torch.where(
            inside, root + depths[node.clamp(0, tree.size - 1)], slots
        )  # position of what lies at a slot
        query_at = (root + depths).unsqueeze(-1)
        seen = seen & (lies_at.unsqueeze(1) > query_at - window)
    return torch.cat([causal_mask(fed, length, window), seen.unsqueeze(1)], 2)


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask for attention that adds it to the scores: 0 where a slot is seen, the lowest number where it is not."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min)
