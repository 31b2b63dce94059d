"""A text in the place of a target: what a drafter that looks tokens up would have made of a text that is there already.

Such a drafter drafts by the text alone, each token x a point mass, which is accepted with p(x): as likely as the
target's own next token is x. So rounds whose drafts are accepted where a text of the target goes on like them have the
law of the rounds in which it would have been emitted, and need no pass of any network. Knows tokens and method files;
must not know who emitted a text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.decoding.build import build
from specbench.decoding.cacheless import Cacheless
from specbench.decoding.decode import decode
from specbench.decoding.drafters.lookup import PromptLookup
from specbench.decoding.drafters.suffix import Suffix
from specbench.decoding.method_files import needs
from specbench.decoding.protocols import After
from specbench.decoding.randomness import Source, seeded
from specbench.decoding.tokens import TokenTree
from specbench.decoding.types import Context
from specbench.errors import UsageError
from specbench.metrics import RoundCounts

CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class Recited(Cacheless):
    """A model that gives every token of `text` [L] with certainty, whatever is drafted; `width` is V."""

    text: Tensor
    width: int
    static: ClassVar[bool] = True

    def probs(self, context: Context, tree: TokenTree, refeed: int = 0) -> Tensor:
        depths = torch.tensor([0, *tree.topology.depths])
        places = (context.pos.unsqueeze(1) + 1 + depths).clamp_max(len(self.text) - 1)
        return F.one_hot(self.text[places], self.width).double()

    def expand(self, context: Context, tree: TokenTree, new: int, refeed: int = 0, raw: bool = False) -> Tensor:
        raise NotImplementedError("nothing drafts with a text")

    def sample(
        self, context: Context, k: int, rng: Source, refeed: int = 1, after: After | None = None
    ) -> tuple[Tensor, Tensor]:
        raise NotImplementedError("nothing drafts with a text")


@cache
def looks_up(method: str) -> bool:
    """Whether all that a method drafts follows from the text alone."""
    if not needs(method) <= {"target"}:
        return False
    try:
        built = build(method, {"target": Recited(torch.zeros(1, dtype=torch.long), 1)}, k=1)
    except UsageError:  # it asks more of its target than a text can tell
        return False
    return isinstance(built.drafter, PromptLookup | Suffix)


def rounds_over(method: str, k: int, prompt: Sequence[int], tokens: Sequence[int]) -> tuple[RoundCounts, ...]:
    """The rounds in which a method that `looks_up` would have emitted these tokens after a prompt."""
    known, ids = torch.unique(torch.tensor([*prompt, *tokens]), return_inverse=True)  # rows as narrow as can be
    built = build(method, {"target": Recited(ids, len(known))}, k)
    source = seeded([0], CPU, certain=True)  # nothing is left to chance
    (trace,) = decode(built, [ids[: len(prompt)].tolist()], new=len(tokens), eos=(), rng=source, device=CPU)
    return trace.rounds
