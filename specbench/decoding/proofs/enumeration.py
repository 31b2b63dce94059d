"""A source of randomness that enumerates: the code of production runs on every outcome that its draws can have.

Every possible combination of outcomes becomes a row of one batch. The code runs up to its first draw, the rows are
spread over what that draw may give, and the code runs again, now up to its second draw; so it goes on until a run finds
all its outcomes in the script. Outcomes of probability 0 never become rows.
"""

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from specbench.decoding.randomness import Source, Stream

T = TypeVar("T")


class Branch(Exception):  # noqa: N818 - nothing went wrong: the script has ended
    """The chances [B, m, n] of the n outcomes of the next m elementary draws of every row."""

    def __init__(self, chances: Tensor) -> None:
        super().__init__(f"a draw that the script does not have: chances {tuple(chances.shape)}")
        self.chances = chances


class Outcomes:
    """A source that is given an outcome for every draw: `_next` finds it, for chances [..., outcomes] of any shape."""

    def bernoulli(self, probs: Tensor, stream: Stream) -> Tensor:
        chance = probs.double().clamp(0, 1)
        return self._next(torch.stack([1 - chance, chance], -1)).bool()

    def categorical(self, probs: Tensor, stream: Stream) -> Tensor:
        return self._next(probs.double() / probs.double().sum(-1, keepdim=True))

    def _next(self, chances: Tensor) -> Tensor:
        raise NotImplementedError


class Scripted(Outcomes):
    """Plays back the outcomes of a script, one tensor [B, m] per call; raises Branch where the script ends."""

    def __init__(self, script: list[Tensor]) -> None:
        self._script = script
        self.calls = 0

    def _next(self, chances: Tensor) -> Tensor:
        shape = chances.shape[:-1]
        if self.calls == len(self._script):
            raise Branch(chances.reshape(shape[0], math.prod(shape[1:]), chances.shape[-1]))
        self.calls += 1
        return self._script[self.calls - 1].view(shape)


def spread(chances: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """All possible outcomes of draws with chances [B, m, n]: the row of each [B'], outcomes [B', m], chance [B']."""
    row = torch.arange(chances.shape[0])
    outcomes, weight = row.new_zeros((len(row), 0)), chances.new_ones(len(row))
    for draw in range(chances.shape[1]):
        here = chances[row, draw]
        which, outcome = (here > 0).nonzero(as_tuple=True)
        row, weight = row[which], weight[which] * here[which, outcome]
        outcomes = torch.cat([outcomes[which], outcome.unsqueeze(1)], 1)
    return row, outcomes, weight


def enumerate_outcomes(run: Callable[[Tensor, Source], T], rows: int = 1) -> tuple[T, Tensor, Tensor]:
    """Run `run(origin, source)` on all possible combinations of outcomes of its draws.

    `run` gets origin [B'], the original row (of `rows`) of every row it must work on, and must build its state from it.
    Returns (what run returned, weight [B'], origin [B']): weight is the probability of the row's combination given its
    origin.
    """
    origin, weight = torch.arange(rows), torch.ones(rows, dtype=torch.float64)
    script: list[Tensor] = []
    while True:
        source = Scripted(script)
        try:
            result = run(origin, source)
        except Branch as branch:
            row, outcomes, chance = spread(branch.chances)
            origin, weight = origin[row], weight[row] * chance
            script = [*(earlier[row] for earlier in script), outcomes]
        else:
            assert source.calls == len(script), "the code draws less often with more rows: its draws depend on outcomes"
            return result, weight, origin


def replay_outcomes(run: Callable[[Source], T]) -> list[tuple[T, float]]:
    """Run `run(source)` anew for every combination of outcomes of all its rows together, and give each its probability.

    Slow, but the batch is the batch of production: rows side by side, each with its own outcome.
    """
    found: list[tuple[T, float]] = []
    todo: list[tuple[list[Tensor], float]] = [([], 1.0)]
    while todo:
        script, weight = todo.pop()
        try:
            found.append((run(Scripted(script)), weight))
        except Branch as branch:
            rows, draws, n = branch.chances.shape
            _, outcomes, chance = spread(branch.chances.reshape(1, rows * draws, n))
            joint = zip(outcomes.view(-1, rows, draws), chance.tolist(), strict=True)
            todo += [([*script, outcome], weight * c) for outcome, c in joint]
    return found
