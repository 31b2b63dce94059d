"""The cache of a network with a recurrent state, and copies of it from which it goes on after rejected tokens.

A recurrent state has no positions: what was read cannot be taken out of it again. So a copy is kept from before the
tokens that may be rejected, and what of them was accepted is read once more. Knows transformers' caches; must not know
which tokens are drafts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import DynamicCache


@dataclass(frozen=True)
class Snapshot:
    """A state after `tokens` tokens, by layer. Recurrent states are copies; keys and values are never written over."""

    tokens: int
    layers: tuple[dict[str, Any], ...]


class Memory:
    """What a network has read, token by token, with its state after the last of them, and one snapshot at most."""

    def __init__(self, config: Any) -> None:
        self.cache = DynamicCache(config=config)
        self.read: list[int] = []
        self.snapshot: Snapshot | None = None

    def keep(self) -> None:
        """Keep the state as it is now."""
        if self.snapshot is None or self.snapshot.tokens != len(self.read):
            layers = tuple(copied(vars(layer)) for layer in self.cache.layers)
            self.snapshot = Snapshot(len(self.read), layers)

    def agrees(self, text: Sequence[int]) -> bool:
        """Whether what was read is the beginning of a text, and something of it is left; if not, whether the state
        could be put back to where that is so. Else nothing of it is of use."""
        common = shared(self.read, text[:-1])
        if common < len(self.read) and self.snapshot is not None and self.snapshot.tokens <= common:
            self._put_back(self.snapshot)
        return len(self.read) <= common

    def _put_back(self, snapshot: Snapshot) -> None:
        for layer, state in zip(self.cache.layers, snapshot.layers, strict=True):
            vars(layer).update(copied(state))
        del self.read[snapshot.tokens :]


def copied(state: dict[str, Any]) -> dict[str, Any]:
    """The attributes of a layer: what it changes in place, the entries of its dictionaries, as copies."""
    return {
        name: {key: one.clone() if isinstance(one, Tensor) else one for key, one in value.items()}
        if isinstance(value, dict)
        else value
        for name, value in state.items()
    }


def shared(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two texts have in common from the beginning."""
    shorter = min(len(a), len(b))
    if a[:shorter] == b[:shorter]:
        return shorter
    return next(place for place in range(shorter) if a[place] != b[place])
