"""Models that keep nothing from pass to pass: the text is all they know."""

from torch import Tensor

from specbench.decoding.tokens import TokenTree
from specbench.decoding.types import Context, Verdict


class Cacheless:
    """What a model without a cache does where others keep theirs in step with the text."""

    def start(self, context: Context) -> None:
        return

    def admit(self, context: Context, row: int) -> None:
        return

    def settle(self, start: Tensor, tree: TokenTree, verdict: Verdict) -> None:
        return

    def select(self, rows: Tensor) -> None:
        return
