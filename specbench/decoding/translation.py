"""The data exchanged between the tokens of a target and those of a draft with another tokenizer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

STRETCH = 4  # maximum slots of a draft per slot of the target


@dataclass(frozen=True, eq=False)
class Dictionary:
    """A draft's tokens for those of a target of V tokens.

    ours, theirs [N]: the ids of common tokens. pieces [V, m], lengths [V]: a target token in the draft's
    tokens; one piece if the draft has the token. back: the target's ids of the draft's tokens, 0 if
    missing. prompt: the draft's ids of a text in the target's ids, split as its own tokenizer splits it.
    """

    ours: Tensor
    theirs: Tensor
    pieces: Tensor
    lengths: Tensor
    back: Tensor
    prompt: Callable[[Sequence[int]], list[int]]

    @property
    def width(self) -> int:
        return self.pieces.shape[0]

    @property
    def most(self) -> int:
        """The maximum number of pieces of a token."""
        return self.pieces.shape[1]

    @property
    def stretch(self) -> int:
        """The draft's slots per slot of the target; a prompt's tokens may take more than one."""
        return max(self.most, 2)

    def to(self, device: torch.device) -> "Dictionary":
        names = ("ours", "theirs", "pieces", "lengths", "back")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})


@dataclass(frozen=True)
class Reading:
    """A text in the target's tokens, and in the draft's. joints: (position in the one, position
    in the other) before which both encode the same text, in rising order."""

    text: list[int]
    ids: list[int]
    joints: tuple[tuple[int, int], ...] = ((0, 0),)


class Scribe(Protocol):
    """Translates between token sequences of two vocabularies."""

    def read(self, text: Sequence[int], before: Reading | None = None) -> Reading:
        """A text of the target as the draft reads it. `before`: an earlier reading of a text
        with the same beginning; its part well before the first change is reused."""

    def write(self, reading: Reading, drafted: Sequence[int]) -> list[int]:
        """The target's tokens for a draft after a text; they may cover less text than the draft."""


def alike(one: Sequence[int], other: Sequence[int]) -> int:
    """The length of the common prefix of two sequences."""
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:
        return shorter
    return next(place for place in range(shorter) if one[place] != other[place])
