"""Drafting without a second model: what followed the last time that the text ended like this.

Drafted tokens are point masses, because a search draws nothing. Knows token ids; must not know models.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.decoding.drafters.chain import NoDraft, drawable
from specbench.decoding.randomness import Source
from specbench.decoding.tokens import TokenTree
from specbench.decoding.types import Context, Draft, Verdict


@dataclass(frozen=True)
class PromptLookup:
    """The K tokens behind the first place that ends in the same n tokens as the text, n from `most` down to `least`.

    The rule of prompt lookup (Saxena 2023) as transformers (`prompt_lookup_num_tokens`, `max_matching_ngram_size`) and
    vLLM (ngram, `prompt_lookup_min` and `max`) have it: the longest n, then the leftmost place. A row without such a
    place, and one whose continuation reaches the end of the text, has fewer nodes, or none.
    """

    k: int
    most: int = 3
    least: int = 1
    static: ClassVar[bool] = True
    latest: ClassVar[bool] = False  # of several places that match as long

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ValueError(f"least and most: expected 1 ≤ least ≤ most, found {self.least} and {self.most}")

    @property
    def room(self) -> int:
        return self.k

    def start(self, context: Context) -> None:
        return

    def admit(self, context: Context, row: int) -> None:
        return

    def propose(self, context: Context, budget: int | None, rng: Source, lag: int = 1) -> Draft:
        width = self.k if budget is None else min(self.k, budget)
        if width < 1:
            return NoDraft().propose(context, budget, rng)
        length = matched(context, self.most)
        best = length.amax(1, keepdim=True)
        hit = (length == best).long()
        end = hit.shape[1] - 1 - hit.flip(1).argmax(1) if self.latest else hit.argmax(1)
        ahead = torch.arange(width, device=end.device)
        places = end.unsqueeze(1) + 1 + ahead
        there = (places <= context.pos.unsqueeze(1)) & (best >= self.least)
        ids = context.seq.gather(1, places.clamp_max(context.seq.shape[1] - 1))
        usable = ahead < drawable(context, width).unsqueeze(1)
        return Draft(TokenTree.chain(ids), None, there & usable, drafted=there.sum(1))

    def learn(self, context: Context, start: Tensor, draft: Draft, p: Tensor, verdict: Verdict) -> None:
        return

    def select(self, rows: Tensor) -> None:
        return


@dataclass(frozen=True)
class SuffixLookup(PromptLookup):
    """The K tokens behind the latest place with the longest suffix in common with the text, prompt and output alike.

    What a suffix automaton finds (SAM decoding, Hu et al. 2024, arXiv 2411.10666; suffix decoding, Oliaro et al. 2024,
    arXiv 2411.04975), found here by comparison; suffixes longer than `most` tokens count as equally long.
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
