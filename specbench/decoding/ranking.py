"""Which tokens a model finds likely, for drafters that recycle what the judging model computes anyway.

Knows the nouns of the algebra; must not know any of them.
"""

from collections.abc import Iterator
from typing import Protocol

from torch import Tensor

from specbench.decoding.protocols import Model
from specbench.decoding.types import Context


class Ranker(Model, Protocol):
    """A model that can say which tokens it finds likely after every token that it is fed, also where it is greedy."""

    def ranking(self, most: int) -> "Ranking":
        """What notes the `most` likeliest tokens from now on."""
        ...


class Ranking(Protocol):
    """Which tokens a model finds likely by its own scores, before any temperature."""

    @property
    def width(self) -> int:
        """V, the width of the vocabulary."""
        ...

    @property
    def last(self) -> Tensor:
        """[B, n + 1, most] the likeliest tokens of every row that `probs` gave last, the likeliest first; -1 after the
        last one that has a chance."""
        ...

    def along(self, context: Context, row: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """The same along the prompts that were just taken in, or along the one in `row` alone: places [B, m] in order
        and the likeliest tokens [B, m, most] after what stands there; of a place from `pos` on they mean nothing."""
        ...
