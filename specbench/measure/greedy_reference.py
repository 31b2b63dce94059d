"""What greedy output is held against: `generate` of transformers on the same weights, and how far rounding reaches.

Knows networks of transformers; must not know methods. A checkpoint's own generation config is put aside: its penalties
and limits are no part of what is decoded here.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig

from specbench.backends.base import Scores
from specbench.measure.lossless import divergence
from specbench.measure.rescoring import Rescore, Text, own_attention, shortfalls

POSITIONS = 400  # from which the largest difference of logits is known well enough


@torch.no_grad()
def generated(network: Any, prompt: Sequence[int], new: int, eos: Sequence[int], device: torch.device) -> Text:
    """What `generate` of transformers makes of a prompt: greedy, up to `new` tokens."""
    ids = torch.tensor([list(prompt)], device=device)
    with own_attention(network), plain_generation(network, eos):
        found = network.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new)
    return Text(tuple(prompt), tuple(found[0, len(prompt) :].tolist()))


@contextmanager
def plain_generation(network: Any, eos: Sequence[int]) -> Iterator[None]:
    """Greedy search and nothing else, in the place of what the checkpoint says of generation."""
    before = network.generation_config
    ends = list(eos) or None
    plain: Any = GenerationConfig  # it has no types
    network.generation_config = plain(do_sample=False, eos_token_id=ends, pad_token_id=(ends or [0])[0])
    try:
        yield
    finally:
        network.generation_config = before


@dataclass(frozen=True)
class Floor:
    """The largest difference of any logit between ways of computing it that differ in rounding alone."""

    noise: float
    positions: int

    @property
    def limit(self) -> float:
        """How far two scores may lie apart that rounding can put in the other order: each is off by the noise."""
        return 2 * self.noise


def noise_floor(scores: Scores, score: Rescore, texts: Sequence[Text], block: int) -> Floor:
    """Along known text: token by token and `block` at a time with our cache, and all at once without one."""
    noise, positions = 0.0, 0
    for text in texts:
        if positions >= POSITIONS or not text.tokens:
            continue
        ids, start = [*text.prompt, *text.tokens], len(text.prompt)
        whole = score(text.prompt, text.tokens)
        one, many = (scores(ids, start, width)[: len(whole)].double() for width in (1, block))
        noise = max(noise, *(float(apart.abs().max()) for apart in (one - many, one - whole, many - whole)))
        positions += len(text.tokens)
    return Floor(noise, positions)


@dataclass(frozen=True)
class Agreement:
    """Greedy output beside that of `generate`: how many texts are equal, and the widest gap at any first difference.

    gap: how far the worse of the two tokens lies below the best score there; None where all texts are equal.
    """

    identical: int
    compared: int
    gap: float | None = None


def agreement(texts: Sequence[Text], references: Sequence[Text], score: Rescore) -> Agreement:
    """Texts beside references of the same prompts, in the same order."""
    pairs = list(zip(texts, references, strict=True))
    forks = [(a, b, at) for a, b in pairs if (at := divergence(a.tokens, b.tokens)) is not None]
    return Agreement(len(pairs) - len(forks), len(pairs), max((gap(*fork, score) for fork in forks), default=None))


def gap(text: Text, reference: Text, at: int, score: Rescore) -> float:
    """At a first difference; infinite where one text ends and the other goes on, which no rounding does."""
    if at >= min(len(text.tokens), len(reference.tokens)):
        return float("inf")
    worst = (shortfalls(Text(one.prompt, one.tokens[: at + 1]), score)[-1] for one in (text, reference))
    return max(map(float, worst))
