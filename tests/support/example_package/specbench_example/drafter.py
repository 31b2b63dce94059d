"""A drafter that guesses that the text goes on with its last token."""

from dataclasses import dataclass

from specbench.decoding.drafters.chain import Guesses, Memoryless, chain
from specbench.decoding.randomness import Source
from specbench.decoding.types import Context, Draft


@dataclass(frozen=True)
class RepeatLast(Guesses, Memoryless):
    """The last token, K times."""

    k: int

    def propose(self, context: Context, budget: int | None, rng: Source, lag: int = 1) -> Draft:
        width = self.width(budget)
        if width < 1:
            return Draft.empty(context)
        last = context.seq.gather(1, context.pos.unsqueeze(1))
        return chain(last.expand(-1, width).contiguous(), context, budget)
