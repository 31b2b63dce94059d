"""The statistical drafter of cascades: what followed in the text, and where nothing did, what follows most often.

Knows token ids and one table of a model; must not know networks, or which level it drafts for.
"""

from dataclasses import dataclass, replace

import torch

from specbench.decoding.drafters.chain import Guesses, Memoryless, chain
from specbench.decoding.drafters.lookup import matched
from specbench.decoding.protocols import Network
from specbench.decoding.randomness import Source
from specbench.decoding.types import Context, Draft


@dataclass(frozen=True)
class Maxgram(Guesses, Memoryless):
    """k tokens in every round: the continuation of the longest suffix that the text has in common with a place before
    its end, then bigrams ("max-gram", Chen et al. 2023, arXiv 2312.11462, §4.1, and its published `mag.py`).

    Of places that match as long the leftmost counts, so the prompt comes before the output. A continuation that
    reaches the end of the text is gone through once more (the published code searches a second time, and finds its own
    first find), and then every token is followed by its bigram; so is the last one of a text without a match.

    The bigrams are those of `model`, its most probable token after every token alone, computed once, before the first
    prompt. The published code has counts over Wikipedia for two tokenizers; those of a model fit any tokenizer, need
    no file, and cost one short text per token of the vocabulary. Suffixes longer than `most` tokens count as equally
    long. Tokens are point masses: nothing is drawn.
    """

    model: Network
    k: int = 10
    most: int = 32

    def __post_init__(self) -> None:
        if self.most < 1:
            raise ValueError(f"most: expected 1 or more, found {self.most}")

    def of_length(self, k: int) -> "Maxgram":
        return replace(self, k=k)

    def start(self, context: Context) -> None:
        self.model.successors()  # here, so that no round takes the time for it

    def propose(self, context: Context, budget: int | None, rng: Source, lag: int = 1) -> Draft:
        width = self.width(budget)
        if width < 1:
            return Draft.empty(context)
        length, end = matched(context, self.most).max(1, keepdim=True)  # of equal ones the first
        period = (context.pos.unsqueeze(1) - end).clamp_min(1)  # tokens after the match, up to the end of the text
        ahead = torch.arange(width, device=end.device)
        found = context.seq.gather(1, end + 1 + ahead % period)
        known = torch.where(length > 0, 2 * period, 0)
        guesses = [context.seq.gather(1, context.pos.unsqueeze(1))]
        for _ in range(width):
            guesses.append(self.model.successors()[guesses[-1]])
        guessed = torch.cat(guesses, 1).gather(1, (ahead - known + 1).clamp_min(0))
        return chain(torch.where(ahead < known, found, guessed), context, budget)
