"""Jacobi decoding: the target's own guesses of the next tokens, made better by every pass it makes anyway.

Guesses are point masses: nothing is drawn. Knows the algebra; must not know models.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from specbench.decoding.drafters.chain import Guesses, chain
from specbench.decoding.randomness import Source
from specbench.decoding.types import Context, Draft, Verdict


@dataclass
class Jacobi(Guesses):
    """A chain of k guesses, each the target's most probable token after the guesses of the round before it (parallel
    fixed-point iteration; Santilli et al. 2023, arXiv 2305.10427; Fu et al. 2024, arXiv 2402.02057, §2).

    After the token that a round emits last, the guesses are read off the rows that the pass computed after the
    rejected ones; where these end, the last one is repeated. The first guesses repeat the last token of the prompt.
    A guess may come from a wrong text: what is emitted is the target's in any case, at least one token a round.
    """

    k: int
    _guess: Tensor | None = field(default=None, init=False, repr=False, compare=False)  # [B, k]

    def start(self, context: Context) -> None:
        last = context.seq.gather(1, context.pos.unsqueeze(1))
        self._guess = kept(self._guess, last.repeat(1, self.k))

    def admit(self, context: Context, row: int) -> None:
        assert self._guess is not None, "start() comes before any other call"
        self._guess[row] = context.seq[row].index_select(0, context.pos[row : row + 1])

    def propose(self, context: Context, budget: int | None, rng: Source, lag: int = 1) -> Draft:
        width = self.width(budget)
        if width < 1:
            return Draft.empty(context)
        assert self._guess is not None, "start() comes before any other call"
        return chain(self._guess[:, :width].clone(), context, budget)

    def learn(self, context: Context, start: Tensor, draft: Draft, p: Tensor, verdict: Verdict) -> None:
        assert self._guess is not None, "start() comes before any other call"
        ends = verdict.accepted.unsqueeze(1)
        best = p.argmax(-1).scatter(1, ends, verdict.token.unsqueeze(1))  # the next token after every node of the chain
        ahead = ends + 1 + torch.arange(self.k, device=ends.device)
        self._guess.copy_(best.gather(1, ahead.clamp_max(draft.tree.size)))

    def select(self, rows: Tensor) -> None:
        if self._guess is not None:
            self._guess = self._guess.index_select(0, rows)


def kept(old: Tensor | None, new: Tensor) -> Tensor:
    """`new` in the place of `old` where it fits: a compiled or captured round reads where it read before."""
    if old is None or old.shape != new.shape or old.is_inference() != new.is_inference():
        return new.clone()
    return old.copy_(new)
