"""Emitted text scored again by one independent pass: the plain forward of transformers over the whole sequence.

It shares the weights with what emitted the text, and nothing else: no cache, no positions or masks of ours, no token
trees, transformers' own attention. So it can judge any backend, also one that runs elsewhere: it needs tokens alone.
Knows networks and tokens; must not know methods or how anything was decoded.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.models.network.attention import NAME as GROUPED
from specbench.models.scale import growth
from specbench.results.statistics import Tally

# (prompt, tokens after it) → [tokens, V] float64 logits, each of the text before the token
Rescore = Callable[[Sequence[int], Sequence[int]], Tensor]


@dataclass(frozen=True)
class Text:
    """What a backend emitted after a prompt, both as token ids."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class PlainPass:
    """One forward pass of a network over a whole sequence."""

    network: Any
    device: torch.device

    @torch.no_grad()
    def __call__(self, prompt: Sequence[int], tokens: Sequence[int]) -> Tensor:
        ids = torch.tensor([[*prompt, *tokens]], device=self.device)
        with own_attention(self.network):
            logits: Tensor = self.network(input_ids=ids, use_cache=False, logits_to_keep=len(tokens) + 1).logits
        known = growth.vocabulary(self.network.config)  # the padded ids of a scale model are no tokens
        return logits[0, :-1, :known].double()


@contextmanager
def own_attention(network: Any) -> Iterator[None]:
    """The attention that transformers would choose itself, in the place of ours."""
    before = network.config.get_text_config(decoder=True)._attn_implementation
    if before != GROUPED:
        yield
        return
    network.set_attn_implementation("sdpa")
    try:
        yield
    finally:
        network.set_attn_implementation(before)


def tallies(
    texts: Sequence[Text], score: Rescore, temperature: float, rival: Rescore | None = None
) -> Iterator[tuple[Tally, Tally | None]]:
    """Of every text: the surprise of its tokens, and how they lean to a rival. Sampled at a temperature above 0.

    The rival, which scores as the judge does, is what the text may lean to where a method is wrong: the draft.
    """
    for text in texts:
        logs = (score(text.prompt, text.tokens) / temperature).log_softmax(-1)
        p, ids = logs.exp(), torch.tensor(list(text.tokens), device=logs.device).unsqueeze(-1)
        leant = None if rival is None else leaning(p, rival(text.prompt, text.tokens) / temperature)
        yield tally(p, -logs, ids), None if leant is None else tally(p, leant, ids)


def leaning(p: Tensor, rival: Tensor) -> Tensor:
    """[n, V] q ÷ (p + q): the chance that a token came from the rival, had both drawn equally often (Bayes).

    Of all functions of a token it is the most telling one about a small share of text that q drew in the place of p,
    among those that stay between 0 and 1. What the rival does not know, it never draws.
    """
    q = rival[..., : p.shape[-1]].softmax(-1)
    q = F.pad(q, (0, p.shape[-1] - q.shape[-1]))
    return (q / (p + q)).nan_to_num(0.0)


def tally(p: Tensor, f: Tensor, ids: Tensor) -> Tally:
    """Sums over tokens ids [n, 1] of f [n, V], and of its mean and variance under p [n, V]; where p is 0, f may be
    infinite."""
    mean = (p * f).nan_to_num(0.0).sum(-1)
    variance = (p * f**2).nan_to_num(0.0).sum(-1) - mean**2
    return Tally(len(ids), float(f.gather(-1, ids).sum()), float(mean.sum()), float(variance.clamp_min(0).sum()))


def worst_shortfall(text: Text, score: Rescore) -> float:
    """How far the worst token of a greedy text lies below the best score of its place."""
    return float(shortfalls(text, score).max()) if text.tokens else 0.0


def shortfalls(text: Text, score: Rescore) -> Tensor:
    """[n] how far every token of a text lies below the best score of its place; 0 of the best."""
    scores = score(text.prompt, text.tokens)
    tokens = torch.tensor(list(text.tokens), device=scores.device)
    return scores.max(-1).values - scores.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def near_ties(texts: Sequence[Text], score: Rescore, limit: float) -> int:
    """At how many places the two best scores are so close together."""
    gaps = (score(text.prompt, text.tokens).topk(2).values.diff().neg() for text in texts if text.tokens)
    return sum(int((gap <= limit).sum()) for gap in gaps)
