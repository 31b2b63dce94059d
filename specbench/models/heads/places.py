"""The cache of a head that drafts all its tokens in one pass: places for what is temporary, then those of the text.

What stands for tokens that are not there yet (masks) lies in the first places and is written over by the next pass. So
it never meets the text, needs no room behind it, and nothing is ever taken back. Knows slots and positions; must not
know what a head computes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specbench.decoding.types import Context
from specbench.models.network.attention import for_groups
from specbench.models.network.caches import RowStaticCache
from specbench.models.network.masks import additive

Seen = Callable[[Tensor, Tensor, int | None], Tensor]  # queries [B, q, 1], keys [B, 1, slots], window → bool


@dataclass(frozen=True)
class Places:
    """A cache whose first `front` slots are temporary; the text's place t is the slot front + t."""

    cache: RowStaticCache
    front: int

    def over(self, context: Context, text: Tensor, temporary: int = 0) -> None:
        """The next pass writes at places text [B, q] of the text, and at the first so many temporary ones."""
        first = torch.arange(temporary, device=text.device).expand(len(text), -1)
        self.cache.slots.place(torch.cat([text + self.front, first], 1), self.front + context.reach)

    def masks(
        self,
        head: Any,
        context: Context,
        queries: Tensor,
        drafted: Tensor | None,
        seen: Mapping[str, tuple[Seen, int | None]],
        end: Tensor | None = None,
    ) -> Any:
        """What tokens at positions queries [B, q] see, for every type of layer, in the form that layers take.

        drafted [B, front]: the positions of what is temporary; None where nobody sees it. end [B]: the first position
        of the text that there is not; None where no query lies at or after it.
        """
        text = torch.arange(context.reach, device=queries.device).expand(len(queries), -1)
        there = torch.ones_like(text, dtype=torch.bool) if end is None else text < end.unsqueeze(1)
        at = text.new_zeros((len(queries), self.front)) if drafted is None else drafted
        keys = torch.cat([at, text], 1).unsqueeze(1)
        there = torch.cat([torch.full_like(at, drafted is not None, dtype=torch.bool), there], 1)
        ready = {}
        for name, (how, window) in seen.items():
            mask = (how(queries.unsqueeze(2), keys, window) & there.unsqueeze(1)).unsqueeze(1)
            ready[name] = for_groups(additive(mask, head.dtype), head.config)
        return ready.get("", ready)


def causal(queries: Tensor, keys: Tensor, window: int | None) -> Tensor:
    """A token sees itself and what comes before it; in a window, itself and the window − 1 tokens before it."""
    seen = keys <= queries
    return seen if window is None else seen & (keys > queries - window)


def everything(queries: Tensor, keys: Tensor, window: int | None) -> Tensor:
    """A token sees what comes before it and after it; in a window, what is no further away than that."""
    return (keys - queries).abs() <= (window if window is not None else torch.iinfo(keys.dtype).max)


def sliding(config: Any) -> dict[str, int | None]:
    """The window of every type of layer that a head has, by name."""
    return {name: config.sliding_window if "sliding" in name else None for name in dict.fromkeys(config.layer_types)}
