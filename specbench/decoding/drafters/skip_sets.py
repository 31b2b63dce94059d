"""The search for a set of sub-layers to leave out: at random, and now and then where a model of the scores hopes most.

Knows sets and their scores; must not know networks or texts. Its draws are its own: no token depends on them but
through the drafts, whose q is what they were drawn from.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from random import Random

import torch

Units = frozenset[int]
MODELLED, CANDIDATES, BLUR, NOISE = 64, 128, 0.2, 1e-2  # newest sets that are modelled, sets to choose of, and kernel


@dataclass
class Search:
    """Sets of `size` of so many `units`, scored one after the other; `best` is the set to draft with.

    It begins with a set that is spread evenly, and ends with a score above `enough`, after `patience` sets in a row
    that were no better than the best, or after `most` sets. Every `every`-th set is the one of some random ones whose
    score may be the greatest by a Gaussian process over those seen (0: none is).
    """

    units: int
    size: int
    enough: float
    patience: int
    most: int
    every: int
    best: Units = field(init=False)
    score: float = field(default=-math.inf, init=False)
    scores: list[tuple[Units, float]] = field(default_factory=list, init=False)
    _since: int = field(default=0, init=False)
    _random: Random = field(default_factory=lambda: Random(0), init=False, repr=False)

    def __post_init__(self) -> None:
        self.best = frozenset(int((i + 0.5) * self.units / self.size) for i in range(self.size))

    @property
    def ended(self) -> bool:
        enough = self.score > self.enough or self._since >= self.patience or len(self.scores) >= self.most
        return enough or not 0 < self.size < self.units

    def propose(self) -> Units:
        """The next set to be scored; the one that it begins with is the first."""
        if not self.scores:
            return self.best
        if self.every and len(self.scores) % self.every == 0:
            return self._hoped()
        return self._any()

    def note(self, units: Collection[int], score: float) -> None:
        """A set was scored: it is the best one if it is better than that."""
        self.scores.append((frozenset(units), score))
        better = score > self.score
        self._since = 0 if better else self._since + 1
        if better:
            self.best, self.score = frozenset(units), score

    def _any(self) -> Units:
        return frozenset(self._random.sample(range(self.units), self.size))

    def _hoped(self) -> Units:
        """Of some random sets the one with the greatest upper bound of its score (mean and a standard deviation)."""
        some = [self._any() for _ in range(CANDIDATES)]
        seen, found = zip(*self.scores[-MODELLED:], strict=True)
        known, new, y = self._coded(seen), self._coded(some), torch.tensor(found, dtype=torch.float64)
        root = torch.linalg.cholesky(self._kernel(known, known) + NOISE * torch.eye(len(y), dtype=torch.float64))
        across = torch.linalg.solve_triangular(root, self._kernel(known, new), upper=False)
        centred = torch.linalg.solve_triangular(root, (y - y.mean()).unsqueeze(1), upper=False)
        spread = float(y.std(correction=0)) * (1 - across.square().sum(0)).clamp_min(0).sqrt()
        return some[int((y.mean() + (across * centred).sum(0) + spread).argmax())]

    def _coded(self, sets: Collection[Units]) -> torch.Tensor:
        return torch.tensor([[unit in one for unit in range(self.units)] for one in sets], dtype=torch.float64)

    def _kernel(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """By how many units two sets differ."""
        return torch.exp(-torch.cdist(a, b, p=1) / (BLUR * self.units))
