"""What a head that drafts in one pass can be asked, and what it reads and gives. Must not know who asks."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from specbench.decoding.types import Context
from specbench.models.heads.places import Places


class Features(Protocol):
    """The target's hidden rows."""

    def at(self, slots: Tensor, row: int | None = None) -> Tensor:
        """[B, q, A·H] those of the places [B, q] of the texts of all rows, or of the one in `row` (B = 1)."""
        ...


@dataclass(frozen=True)
class Drafted:
    """What a pass gives for the next K places: logits [B, K, V'], and the states [B, K, H] that they were made of.
    carried [B, R]: what the first of them is given by a correction that goes along the path; None where none does."""

    logits: Tensor
    states: Tensor
    carried: Tensor | None = None


class Parallel(Protocol):
    """A head that drafts in one pass."""

    config: Any
    dtype: torch.dtype
    taps: tuple[int | str, ...]  # what it reads of the target; nothing where it reads the text alone
    steps: int | None  # how many tokens it drafts at most; None for no bound of its own
    behind: int  # how many of the last committed tokens it keeps nothing of: one where it reads the target's rows
    known: Tensor | None  # the tokens that it knows; None for all

    def front(self, depth: int) -> int:
        """How many temporary places it needs to draft so many tokens."""
        ...

    def read(self, context: Context, text: Tensor, features: Tensor | None, places: Places) -> None:
        """Take in the text at places [B, q], with the target's rows of these places."""
        ...

    def draft(self, context: Context, text: Tensor, features: Tensor | None, places: Places, depth: int) -> Drafted:
        """The rows of the next `depth` places; the text at places [B, q] is taken in first, whose last is the last."""
        ...

    def corrected(
        self, logits: Tensor, states: Tensor, before: Tensor, carried: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Logits [B, m, V'] of places with states [B, m, H], given the tokens before them [B, m] and what the places
        before them carried on [B, m, R] (`Drafted.carried`), and what they carry on themselves."""
        ...

    def sure(self, states: Tensor, before: Tensor) -> Tensor | None:
        """[B, m] how likely tokens of these places are accepted, before they are drawn; None where it cannot say."""
        ...
