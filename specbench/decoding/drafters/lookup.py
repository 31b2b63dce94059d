"""Drafting without a second model: what followed the last time that the text ended like this.

Drafted tokens are point masses, because a search draws nothing. Knows token ids; must not know models.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.decoding.drafters.chain import Guesses, Memoryless, chain
from specbench.decoding.protocols import Drafter
from specbench.decoding.randomness import Source
from specbench.decoding.types import Context, Draft


class Lookup(Drafter, Protocol):
    """A drafter that looks tokens up and keeps nothing, so that any number of them will do."""

    def of_length(self, k: int) -> "Lookup":
        """The same drafter with chains of k tokens."""
        ...


@dataclass(frozen=True)
class PromptLookup(Guesses, Memoryless):
    """The K tokens after the first place that ends in the same n tokens as the text, n from `most` down to `least`.

    The rule of prompt lookup (Saxena 2023) as transformers (`prompt_lookup_num_tokens`, `max_matching_ngram_size`) and
    vLLM (ngram, `prompt_lookup_min` and `max`) have it: the longest n, then the leftmost place. A row without such a
    place, and one whose continuation reaches the end of the text, has fewer nodes, or none.
    """

    k: int
    most: int = 3
    least: int = 1
    latest: ClassVar[bool] = False  # of several places that match as long

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ValueError(f"least and most: expected 1 ≤ least ≤ most, found {self.least} and {self.most}")

    def of_length(self, k: int) -> "PromptLookup":
        return replace(self, k=k)

    def propose(self, context: Context, budget: int | None, rng: Source, lag: int = 1) -> Draft:
        return self.find(context, budget)[0]

    def find(self, context: Context, budget: int | None) -> tuple[Draft, Tensor]:
        """The draft, and how many tokens of the text [B] its place ends in, 0 where there is no such place."""
        width = self.width(budget)
        if width < 1:
            return Draft.empty(context), torch.zeros_like(context.pos, dtype=torch.float64)
        length = matched(context, self.most)
        best = length.amax(1, keepdim=True)
        hit = (length == best).long()
        end = hit.shape[1] - 1 - hit.flip(1).argmax(1) if self.latest else hit.argmax(1)
        index = end.unsqueeze(1) + 1 + torch.arange(width, device=end.device)
        there = (index <= context.pos.unsqueeze(1)) & (best >= self.least)
        draft = chain(context.seq.gather(1, index.clamp_max(context.seq.shape[1] - 1)), context, budget, there)
        return draft, (best * (best >= self.least)).squeeze(1).double()


@dataclass(frozen=True)
class SuffixLookup(PromptLookup):
    """The K tokens after the latest place with the longest suffix in common with the text, prompt and output alike.

    What a suffix automaton finds (SAM decoding, Hu et al. 2024, arXiv 2411.10666), found here by comparison; suffixes
    longer than `most` tokens count as equally long. `Suffix` counts what followed, and drafts as far as that is likely.
    """

    most: int = 32
    latest: ClassVar[bool] = True


def matched(context: Context, most: int) -> Tensor:
    """[B, L] in how many tokens, at most `most`, the text up to a place ends as the whole; 0 from its end on."""
    back = torch.arange(most, device=context.pos.device)
    before = context.pos.unsqueeze(1) - back
    suffix = torch.where(before >= 0, context.seq.gather(1, before.clamp_min(0)), -2)  # newest first; no text before it
    windows = F.pad(context.seq, (most - 1, 0), value=-1).unfold(1, most, 1).flip(2)  # [B, L, most], newest first
    alike = (windows == suffix.unsqueeze(1)).long().cumprod(2).sum(2)
    earlier = torch.arange(context.seq.shape[1], device=back.device) < context.pos.unsqueeze(1)
    return alike * earlier
