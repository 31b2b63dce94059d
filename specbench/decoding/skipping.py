"""Leaving out sub-layers of the model that judges, for drafters that draft with what is left of it.

Knows the nouns of the algebra; must not know any of them, or which sub-layers are worth leaving out.
"""

from collections.abc import Collection
from typing import Protocol

from torch import Tensor

from specbench.decoding.protocols import Model
from specbench.decoding.types import Context


class Skippable(Model, Protocol):
    """A model some parts of which can be left out."""

    def skipping(self) -> "Skipping":
        """What is left of it, on its own cache.

        UsageError for a model whose parts cannot be told.
        """
        ...


class Skipping(Model, Protocol):
    """A model without some of its sub-layers, which reads what the whole one has kept of the text, and writes nothing
    there that the whole one does not write anew before anybody reads it."""

    @property
    def units(self) -> int:
        """How many sub-layers may be left out; they have the numbers from 0 on."""
        ...

    def skip(self, units: Collection[int]) -> None:
        """Leave out these, and no others, from now on."""
        ...

    def guesses(self, context: Context, places: Tensor) -> Tensor:
        """[B, m] the most probable token after the committed tokens at places [B, m], all before the last one, by one
        pass over them; what is kept of the text stays as it is."""
        ...
