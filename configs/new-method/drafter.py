"""A drafter of your own: it guesses what followed the last time that the text had its last token."""

from dataclasses import dataclass

import torch

from specbench.decoding.drafters.chain import Guesses, Memoryless, chain
from specbench.decoding.randomness import Source
from specbench.decoding.types import Context, Draft


@dataclass(frozen=True)
class MyDrafter(Guesses, Memoryless):
    """Guesses: chains of k tokens that are not drawn from a model. Memoryless: the text is all it knows."""

    k: int  # fields are those of the method file

    def propose(self, context: Context, budget: int | None, rng: Source, lag: int = 1) -> Draft:
        """context.seq [B, L] has a text in every row, and its last token at context.pos [B]."""
        width = self.width(budget)  # k, or fewer near the end of a text
        if width < 1:
            return Draft.empty(context)
        last, place = context.pos.unsqueeze(1), torch.arange(context.seq.shape[1], device=context.pos.device)
        same = (context.seq == context.seq.gather(1, last)) & (place < last)
        found = torch.where(same, place, -1).amax(1, keepdim=True)  # the last such place; -1 for none
        after = found + 1 + torch.arange(width, device=place.device)
        there = (found >= 0) & (after <= last)  # guesses beyond the text are left out
        ids = context.seq.gather(1, after.clamp_max(place[-1]))
        return chain(ids, context, budget, there)
