"""Whole rounds as tests need them: made ready in any way, on toy models that trace, with draws that are looked up.

A batch holds one row for every combination of outcomes that a round can have, so that one call of a compiled round gives
its whole law.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod

import torch
from torch import Tensor

from specbench.decoding.decode import begin, places
from specbench.decoding.loop import Speculate
from specbench.decoding.randomness import Stream, seeded
from specbench.decoding.rounds import Play, Whole
from specbench.decoding.types import Context
from specbench.models.forward import Compiled
from tests.toys import CPU, Toy

Ready = Callable[[Play], Play]


def as_it_is(play: Play) -> Play:
    return play


def compiled(backend: str) -> Ready:
    return lambda play: Compiled(play, CPU, backend)


def whole(
    method: Speculate,
    ready: Ready,
    *,
    longest: int,
    new: int,
    rows: int = 1,
    eos: Sequence[int] = (),
    reaches: Sequence[int] = (),
) -> Whole:
    """The rounds of a method, ready for prompts of up to `longest` tokens."""
    length = places(longest, new, method.drafter.room)
    rounds = Whole(method, length, reaches or (length,), ready)
    rounds.prime(begin([[0, 0]] * rows, 1, method.drafter.room, eos, CPU, length), seeded([0] * rows, CPU))
    return rounds


# The law of a round, by outcomes that are known before it begins.


@dataclass
class Shapes:
    """A source that draws nothing but notes how many outcomes every elementary draw of a row has."""

    of: list[int] = field(default_factory=list)

    def bernoulli(self, probs: Tensor, stream: Stream) -> Tensor:
        self.of += [2] * prod(probs.shape[1:])
        return torch.zeros_like(probs, dtype=torch.bool)

    def categorical(self, probs: Tensor, stream: Stream) -> Tensor:
        self.of += [probs.shape[-1]] * prod(probs.shape[1:-1])
        return torch.zeros(probs.shape[:-1], dtype=torch.long)

    def combinations(self) -> Tensor:
        """[B, draws] every combination of outcomes."""
        return torch.tensor(list(product(*map(range, self.of))))


@dataclass
class Given:
    """A source whose draws find their outcomes in a table [B, draws]; weight [B] is the chance of those so far."""

    outcomes: Tensor
    weight: Tensor
    used: int = 0

    def bernoulli(self, probs: Tensor, stream: Stream) -> Tensor:
        chance = probs.double().clamp(0, 1)
        return self._next(torch.stack([1 - chance, chance], -1)).bool()

    def categorical(self, probs: Tensor, stream: Stream) -> Tensor:
        return self._next(probs.double() / probs.double().sum(-1, keepdim=True))

    def _next(self, chances: Tensor) -> Tensor:
        rows, draws = chances.shape[0], prod(chances.shape[1:-1])
        found = self.outcomes[:, self.used : self.used + draws]
        self.used += draws
        here = chances.reshape(rows, draws, chances.shape[-1]).gather(2, found.unsqueeze(2)).squeeze(2)
        self.weight = self.weight * here.prod(1)
        return found.reshape(chances.shape[:-1])


@dataclass(frozen=True, eq=False)
class Tables(Toy):
    """Toys side by side: row b of a batch follows the table which[b] of M, given as [M · size, V]. The host reads nothing."""

    which: Tensor
    size: int

    def number(self, context: Context) -> Tensor:
        number = torch.zeros_like(context.pos)
        for place in range(context.seq.shape[1]):
            longer = (number * self.vocab + 1 + context.seq[:, place]) % self.size
            number = torch.where(place <= context.pos, longer, number)
        return self.which * self.size + number

    def after(self, number: Tensor, token: Tensor) -> Tensor:
        within = number % self.size
        return number - within + (within * self.vocab + 1 + token) % self.size
