"""One pass of a network: tokens, their positions, their cache slots, and their masks."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from specbench.decoding.tokens import TokenTree, ancestors, constant
from specbench.decoding.types import Context
from specbench.models.network.attention import NAME, for_groups

LOW = -1e30


@dataclass(frozen=True)
class Pass:
    """Tokens ids [B, q] at positions [B, q], written to slots [B, q] of the cache.

    mask: which of the first `reach` slots each token attends to, one mask per type of layer if
    there are several. A mask without slots hides only later tokens.
    """

    ids: Tensor
    positions: Tensor
    slots: Tensor
    mask: Any
    reach: int


@dataclass(frozen=True)
class Layout:
    """The layout of a cache of retrieved keys: those chosen from anywhere, then text in order. Tensors [B].

    retrieved: slots for the former, `filled` of them in use. shift: position less slot of the
    latter. floor: the first slot whose token is fed; the keys before it are copies.
    """

    retrieved: int
    shift: Tensor
    filled: Tensor
    floor: Tensor

    def seen(self, slots: int) -> Tensor:
        """[B, 1, 1, slots] bool: mask of the slots in use."""
        slot = torch.arange(slots, device=self.filled.device)
        return ((slot < self.filled.unsqueeze(1)) | (slot >= self.retrieved))[:, None, None]


@dataclass
class Composer:
    """Composes the passes of one network. windows: those of its attention, by type of layer (None: no window).

    dtype: of its masks. layout: of the tokens, unless every token is at the slot of its position.
    """

    config: Any
    windows: Mapping[str, int | None]
    dtype: torch.dtype
    layout: Layout | None = None

    @cached_property
    def hides_nothing(self) -> bool:
        """Whether a token may attend to all before it, by an attention of ours, which needs no mask for that."""
        return self.config._attn_implementation == NAME and self.windows == {"": None}

    def committed(self, context: Context, tokens: int) -> Tensor:
        """[B, tokens] slots of the last committed tokens; missing ones are replaced by the first token."""
        back = constant(tuple(range(1 - tokens, 1)), context.pos.device)
        slots = (context.pos.unsqueeze(1) + back).clamp_min(0)
        return slots if self.layout is None else torch.maximum(slots, self.layout.floor.unsqueeze(1))

    def chain(self, context: Context, slots: Tensor, ids: Tensor | None = None, whole: bool = False) -> Pass:
        """Tokens ids [B, q] (by default those of the sequence) at slots [B, q], each after all tokens before it.

        whole: these are all tokens of the sequence.
        """
        ids = context.seq.gather(1, slots) if ids is None else ids
        if self.hides_nothing and (whole or (context.tight and slots.shape[1] == 1)):
            mask = slots.new_empty((slots.shape[0], 1, 1, 0), dtype=self.dtype)
        else:
            mask = self._ready({name: causal_mask(slots, context.reach, w) for name, w in self.windows.items()})
        return Pass(ids, self._positions(context, slots), slots, mask, context.reach)

    def tree(self, context: Context, tree: TokenTree, fed: Tensor) -> Pass:
        """The committed tokens at slots fed [B, m], followed by all nodes of a tree (a chain is one as well)."""
        slots = torch.cat([fed, context.pos.unsqueeze(1) + 1 + torch.arange(tree.size, device=fed.device)], 1)
        ids = torch.cat([context.seq.gather(1, fed), tree.ids], 1)
        if tree.topology.is_chain:
            return self.chain(context, slots, ids)
        depths = constant(tree.topology.depths, fed.device)
        positions = torch.cat([fed, context.pos.unsqueeze(1) + depths], 1)
        mask = self._tree_mask(fed, tree, context.reach, slots.shape[1])
        return Pass(ids, self._positions(context, positions), slots, mask, context.reach)

    def nodes(self, context: Context, tree: TokenTree, new: int) -> Pass:
        """The last `new` nodes of a tree only: the others and all committed tokens were fed before."""
        root = context.pos.unsqueeze(1)
        slots = root + 1 + torch.arange(tree.size - new, tree.size, device=root.device)
        positions = root + constant(tree.topology.depths, root.device)[-new:]
        mask = self._tree_mask(self.committed(context, 1), tree, context.reach, new)
        return Pass(tree.ids[:, -new:], self._positions(context, positions), slots, mask, context.reach)

    def _positions(self, context: Context, positions: Tensor) -> Tensor:
        """Positions [B, q], clamped to the last of a row: learned positions may end there."""
        positions = torch.minimum(positions, context.last.unsqueeze(1))
        return positions if self.layout is None else positions + self.layout.shift.unsqueeze(1)

    def _tree_mask(self, fed: Tensor, tree: TokenTree, reach: int, queries: int) -> Any:
        """The mask of the last `queries` of the fed tokens and the nodes."""
        masks = {name: tree_mask(fed, tree, reach, w)[:, :, -queries:] for name, w in self.windows.items()}
        return self._ready(masks)

    def _ready(self, masks: dict[str, Tensor]) -> Any:
        # Added to the scores: sdpa would convert a boolean mask in every layer.
        if self.layout is not None:
            masks = {name: mask & self.layout.seen(mask.shape[-1]) for name, mask in masks.items()}
        ready = {name: for_groups(additive(m, self.dtype), self.config) for name, m in masks.items()}
        return ready.get("", ready)


def windows_of(config: Any) -> dict[str, int | None]:
    """The attention window of every type of layer of a network; one entry if all layers are of one type."""
    window = getattr(config, "sliding_window", None)
    types = set(getattr(config, "layer_types", None) or ())
    if len(types) > 1:
        return {name: window if "sliding" in name else None for name in types}
    if types == {"full_attention"} or getattr(config, "use_sliding_window", True) is False:
        window = None
    return {"": window}


def causal_mask(positions: Tensor, length: int, window: int | None = None) -> Tensor:
    """[B, 1, q, length] bool for tokens at the slots of their positions [B, q]. With a `window`
    a query attends to itself and the window − 1 tokens before it."""
    slots = torch.arange(length, device=positions.device)
    seen = slots <= positions.unsqueeze(-1)
    if window is not None:
        seen &= slots > positions.unsqueeze(-1) - window
    return seen.unsqueeze(1)


def tree_mask(fed: Tensor, tree: TokenTree, length: int, window: int | None = None) -> Tensor:
    """[B, 1, m + n, length] bool for m committed tokens at positions fed [B, m] followed by the n nodes of a tree.

    Node i is at slot root + 1 + i, where root is the last fed position; it attends to the committed
    tokens, its ancestors and itself, less those outside the window by position (not by slot).
    """
    root = fed[:, -1:]
    slots = torch.arange(length, device=fed.device)
    node = slots - root - 1  # [B, length] the node at a slot; committed if negative
    inside = (node >= 0) & (node < tree.size)
    relation = ancestors(tree.parents, fed.device)[:, node.clamp(0, tree.size - 1)].movedim(0, 1)  # [B, n, length]
    committed = (node < 0).unsqueeze(1)
    seen = committed | (inside.unsqueeze(1) & relation)
    if window is not None:
        depths = constant(tree.topology.depths, fed.device)
        lies_at = torch.where(inside, root + depths[node.clamp(0, tree.size - 1)], slots)  # the position of a slot
        query_at = (root + depths).unsqueeze(-1)
        seen = seen & (lies_at.unsqueeze(1) > query_at - window)
    return torch.cat([causal_mask(fed, length, window), seen.unsqueeze(1)], 2)


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask for attention that adds it to the scores: 0 for visible slots, a very low number for others.

    A lower one becomes infinite in CUDA's kernel, which then gives 0 for the logarithm of the sum of hidden keys.
    """
    low = max(torch.finfo(dtype).min, LOW)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, low)
