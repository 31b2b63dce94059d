"""What travels between the tokens of a target and those of a draft with another tokenizer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

STRETCH = 4  # places of a draft for every place of the target, at most


@dataclass(frozen=True, eq=False)
class Dictionary:
    """A draft's tokens for those of a target of V tokens.

    ours, theirs [N]: the ids of the tokens that both have. pieces [V, m], lengths [V]: how the draft is told a
    token of the target; one piece where it has the token. back: the target's ids of the draft's tokens, 0 where
    there is none. prompt: the draft's ids of a text in the target's, which is split as its own tokenizer splits it.
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
        """How many pieces a token has at most."""
        return self.pieces.shape[1]

    @property
    def stretch(self) -> int:
        """How many places the draft has for every place of the target; a prompt's tokens may take more than one."""
        return max(self.most, 2)

    def to(self, device: torch.device) -> "Dictionary":
        names = ("ours", "theirs", "pieces", "lengths", "back")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})


@dataclass(frozen=True)
class Reading:
    """A text in the target's tokens, and in the draft's. joints: (place in the
    one, place in the other) before which both say the same, in rising order."""

    text: list[int]
    ids: list[int]
    joints: tuple[tuple[int, int], ...] = ((0, 0),)


class Scribe(Protocol):
    """Turns text in the tokens of one vocabulary into text in those of the other."""

    def read(self, text: Sequence[int], before: Reading | None = None) -> Reading:
        """A text of the target as the draft reads it. `before`: how it has read a text
        that begins alike, of which stays what lies far enough before the first change."""

    def write(self, reading: Reading, drafted: Sequence[int]) -> list[int]:
        """The target's tokens for what the draft has drafted after a text; the last ones may say less than it did."""


def alike(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two texts begin with in common."""
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:
        return shorter
    return next(place for place in range(shorter) if one[place] != other[place])
