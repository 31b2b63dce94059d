"""A network whose calls of `expand` are kept, to see what a tree drafter feeds and what it reads."""

from typing import Any

from torch import Tensor

from specbench.decoding.tokens import TokenTree
from specbench.models.network.causal import Causal


class Watched(Causal):
    """`fed` has the tree and the rows of every call."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.fed: list[tuple[TokenTree, Tensor]] = []

    def expand(self, context: Any, tree: TokenTree, *rest: Any, **named: Any) -> Tensor:
        self.fed.append((tree, super().expand(context, tree, *rest, **named)))
        return self.fed[-1][1]
