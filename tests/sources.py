"""Sources for tests: one that enumerates, one that plays back a tape, one that audits reuse.

Enumeration uses the row dimension: the draws of a round have static shapes, so every combination of outcomes becomes a
row of one batch, and the production code runs once for all of them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specbench.decoding.randomness import FromUniforms, Source, Stream


@dataclass
class Recorder:
    """Learns how many outcomes every elementary draw of one row has, by taking some possible outcome each time."""

    outcomes: list[int] = field(default_factory=list)

    def bernoulli(self, probs: Tensor, stream: Stream) -> Tensor:
        self.outcomes += [2] * math.prod(probs.shape[1:])
        return probs >= 1

    def categorical(self, probs: Tensor, stream: Stream) -> Tensor:
        self.outcomes += [probs.shape[-1]] * math.prod(probs.shape[1:-1])
        return probs.argmax(-1)


class Scripted:
    """Row r takes the r-th combination of outcomes; `weight` [B] becomes the probability of that combination."""

    def __init__(self, outcomes: list[int], copies: int) -> None:
        total = math.prod(outcomes)
        number = torch.arange(total).repeat(copies)
        digits = []
        for n in outcomes:
            digits.append(number % n)
            number = number // n
        self.digits = digits
        self.weight = torch.ones(total * copies, dtype=torch.float64)

    def _take(self, shape: torch.Size) -> Tensor:
        count = math.prod(shape[1:])
        taken, self.digits = self.digits[:count], self.digits[count:]
        return torch.stack(taken, 1).view(shape) if taken else torch.zeros(shape, dtype=torch.long)

    def bernoulli(self, probs: Tensor, stream: Stream) -> Tensor:
        outcome = self._take(probs.shape).bool()
        chance = probs.double().clamp(0, 1)
        self.weight *= torch.where(outcome, chance, 1 - chance).flatten(1).prod(1)
        return outcome

    def categorical(self, probs: Tensor, stream: Stream) -> Tensor:
        outcome = self._take(probs.shape[:-1])
        law = probs.double() / probs.double().sum(-1, keepdim=True)
        self.weight *= law.gather(-1, outcome.unsqueeze(-1)).flatten(1).prod(1)
        return outcome


def enumerate_outcomes(
    run: Callable[[Tensor, Source], object], rows: int = 1
) -> tuple[object, Tensor, Tensor]:
    """Run `run(origin, source)` on all combinations of outcomes of its draws.

    `run` gets origin [B'], the original row (of `rows`) of every row it must work on, and must build its state from it.
    Returns (what run returned, weight [B'], origin [B']): weight is the probability of the row's combination given its
    origin; rows of probability 0 are still there.
    """
    recorder = Recorder()
    run(torch.arange(rows), recorder)
    total = math.prod(recorder.outcomes)
    origin = torch.arange(rows).repeat_interleave(total)
    source = Scripted(recorder.outcomes, rows)
    result = run(origin, source)
    assert not source.digits, "the code drew less often in the second run: its draws depend on outcomes"
    return result, source.weight, origin


@dataclass
class Tape:
    """Uniforms that play back what was recorded; fails when more is asked than the tape holds."""

    values: list[Tensor]

    def __call__(self, shape: tuple[int, ...], stream: Stream) -> Tensor:
        value = self.values.pop(0)
        assert tuple(value.shape) == shape, f"the tape holds {tuple(value.shape)}, asked was {shape}"
        return value


@dataclass
class Audit:
    """Passes uniforms on and remembers every value with its stream: float64 draws repeat only if they are reused."""

    inner: Callable[[tuple[int, ...], Stream], Tensor]
    drawn: list[tuple[Stream, Tensor]] = field(default_factory=list)

    def __call__(self, shape: tuple[int, ...], stream: Stream) -> Tensor:
        value = self.inner(shape, stream)
        self.drawn.append((stream, value.clone()))
        return value

    def source(self) -> Source:
        return FromUniforms(self)
