"""A network that reads few of its own keys: a part of a method that asks the network for such a reader of itself.

TriForce's middle level (Sun et al. 2024, arXiv 2404.11912). Knows the numbers; must not know how keys are kept.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from specbench.decoding.protocols import After, Model, Network
from specbench.decoding.randomness import Source
from specbench.decoding.tokens import TokenTree
from specbench.decoding.types import Context, Verdict


@dataclass
class Retrieval:
    """The rows of `model` where it attends, in every layer and head, to `budget` of the text's tokens and to new ones.

    The tokens are the first `chunk` of the text and the chunks of that size whose keys fit the last query best. They
    are chosen when the prompts are taken in, and again after `tail` new tokens. They come from the cache of `model`:
    it must be the same object that judges what is drafted here, directly above, or the choice is out of date.
    """

    model: Network
    budget: int
    chunk: int = 8
    tail: int = 64
    static: ClassVar[bool] = False  # the host reads whether the tail is full
    _reader: Model | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 1 <= self.chunk <= self.budget:
            raise ValueError(f"chunk: expected 1 to budget = {self.budget} tokens, found {self.chunk}")
        if self.tail < 1:
            raise ValueError(f"tail: expected at least 1 token, found {self.tail}")

    @property
    def reader(self) -> Model:
        if self._reader is None:
            self._reader = self.model.retrieved(self.budget, self.chunk, self.tail)
        return self._reader

    def start(self, context: Context) -> None:
        self.reader.start(context)

    def admit(self, context: Context, row: int) -> None:
        self.reader.admit(context, row)

    def probs(self, context: Context, tree: TokenTree, refeed: int = 0) -> Tensor:
        return self.reader.probs(context, tree, refeed)

    def expand(self, context: Context, tree: TokenTree, new: int, refeed: int = 0, raw: bool = False) -> Tensor:
        return self.reader.expand(context, tree, new, refeed, raw)

    def sample(
        self, context: Context, k: int, rng: Source, refeed: int = 1, after: After | None = None
    ) -> tuple[Tensor, Tensor]:
        return self.reader.sample(context, k, rng, refeed, after)

    def settle(self, start: Tensor, tree: TokenTree, verdict: Verdict) -> None:
        self.reader.settle(start, tree, verdict)

    def select(self, rows: Tensor) -> None:
        self.reader.select(rows)
