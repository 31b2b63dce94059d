"""Heads that draft token by token, from the target's hidden states and from their own: EAGLE and MTP modules.

A head reads pairs: pair t is the hidden state of position t with the token after it, and its row predicts the token
after that (Li et al. 2024, arXiv 2401.15077, §3.1). So it works on a sequence one token shorter, in which pair t is
at slot t. Pairs of committed tokens have the target's states; those of drafted tokens have the head's own output for
the token before. Every round begins with all committed pairs that may have been drafted ones when they were last fed.
"""

import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from specbench.decoding.protocols import After
from specbench.decoding.randomness import Source
from specbench.decoding.tokens import TokenTree, constant
from specbench.decoding.types import Context, Verdict
from specbench.errors import UsageError
from specbench.models.heads.taps import Taps
from specbench.models.network.caches import Memory, RowStaticCache
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling


@dataclass
class Output:
    logits: Tensor


class Pairs:
    """A head as a network that is given tokens alone: it looks up the state of every pair.

    The cache has one layer more than the head, with the head's outputs [B, 1, slots, W].
    parents [B, q]: the slots before those of the pass if it is over a tree. committed: whether
    it is over committed pairs; then only the last has a row. row: see `Taps.at`.
    """

    def __init__(self, head: Any, taps: Taps) -> None:
        self.head, self.taps, self.dtype, self.device = head, taps, head.dtype, taps.judge.network.device
        self.modules = head.modules
        self.config = copy.deepcopy(head.config)
        self.config.num_hidden_layers += 1  # the layer for outputs
        self.parents: Tensor | None = None
        self.row: int | None = None
        self.committed = False

    def __call__(
        self,
        *,
        input_ids: Tensor,
        position_ids: Tensor,
        attention_mask: Any,
        past_key_values: RowStaticCache,
        **rest: Any,
    ) -> Output:
        slots = past_key_values.slots.index
        states = self.states(past_key_values, slots)
        keep = 1 if self.committed else slots.shape[1]
        logits, states = self.head(input_ids, states, position_ids, attention_mask, past_key_values, keep=keep)
        kept = states.unsqueeze(1)
        past_key_values.rows[-1].update(kept, kept[..., :0])
        self.committed, self.parents = False, None
        return Output(logits)

    def states(self, cache: RowStaticCache, slots: Tensor) -> Tensor:
        """[B, q, W] the states of the pairs: the target's, or this head's outputs for the tokens before."""
        if self.committed:
            entered: Tensor = self.head.enter(self.taps.at(slots, self.row))
            return entered
        return cache.rows[-1].at(slots - 1 if self.parents is None else self.parents)


class Recursive:
    """A head as the model that drafts. `depth`: the maximum number of tokens that it drafts after the text."""

    static: ClassVar[bool] = True

    def __init__(
        self, head: Any, taps: Taps, sampling: Sampling, width: int, depth: int, fixed: bool, memory: Memory
    ) -> None:
        self.pairs, self.depth = Pairs(head, taps), depth
        self.model = Causal(self.pairs, sampling, width, fixed, memory=memory)

    def start(self, context: Context) -> None:
        self.pairs.committed = True
        self.model.start(pairs_of(context))
        self.pairs.committed = False  # nothing was fed for texts of one token

    def admit(self, context: Context, row: int) -> None:
        if self.model.cache is None or self.model.cache.empty:  # prompts without a pair to feed, and no round yet
            return self.start(context)
        self.pairs.committed = True
        self.pairs.row = row
        self.model.admit(pairs_of(context), row)
        self.pairs.row, self.pairs.committed = None, False
        return None

    def sample(
        self, context: Context, k: int, rng: Source, refeed: int = 1, after: After | None = None
    ) -> tuple[Tensor, Tensor]:
        self.pairs.committed = True
        return self.model.sample(pairs_of(context), k, rng, self._again(refeed), after)

    def expand(self, context: Context, tree: TokenTree, new: int, refeed: int = 0, raw: bool = False) -> Tensor:
        found = pairs_of(context)
        if tree.size:
            before = constant(tree.parents[-new:], found.pos.device)
            self.pairs.parents = found.pos.unsqueeze(1) + 1 + before  # their slots
        else:
            self.pairs.committed = True
        return self.model.expand(found, tree, new, self._again(refeed), raw)

    def probs(self, context: Context, tree: TokenTree, refeed: int = 0) -> Tensor:
        raise UsageError("a head drafts from the target's hidden rows and cannot judge: name another model for that")

    def settle(self, start: Tensor, tree: TokenTree, verdict: Verdict) -> None:
        return  # drafted tokens are fed again when they are committed

    def _again(self, refeed: int) -> int:
        """The number of pairs before the last to feed again: those that were drafted when last
        fed, and those whose tokens may be new for another reason."""
        return self.depth + max(refeed - 1, 0)


def pairs_of(context: Context) -> Context:
    """The pairs of a text: pair t has the token t + 1. A text of one token has none: a dummy
    pair, whose row is meaningless, replaces it for one round."""
    seq, pos = context.seq[:, 1:], (context.pos - 1).clamp_min(0)
    return replace(context, seq=seq, pos=pos, last=context.last - 1, reach=min(context.reach, seq.shape[1]))
