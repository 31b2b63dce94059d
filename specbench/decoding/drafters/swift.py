"""SWIFT: the judging model drafts without some of its sub-layers, and a search during decoding chooses them."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from specbench.decoding.drafters.chain import Wrapper
from specbench.decoding.protocols import Apprentice, Carried, Model
from specbench.decoding.randomness import Source
from specbench.decoding.tokens import ROOT
from specbench.decoding.types import Context, Draft, Verdict

# --- skip sets --------------------------------------------------------------------------------------------------------
# The search for a set of sub-layers to skip: random search with occasional Bayesian-optimisation steps. Its draws are
# separate: a token depends on them only through the drafts, and their q is the distribution they were drawn from.

Units = frozenset[int]
MODELLED, CANDIDATES, BLUR, NOISE = 64, 128, 0.2, 1e-2  # newest sets in the model, sets to choose from, and kernel


@dataclass
class Search:
    """Sets of `size` of `units` sub-layers, scored one after the other; `best` is the set to draft with.

    It begins with an evenly spread set, and ends with a score above `enough`, after `patience` sets
    in a row without improvement, or after `most` sets. Every `every`-th set is the random candidate
    with the highest upper confidence bound of a Gaussian process over the scored sets (0: never).
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
        """The next set to score; the first is the initial one."""
        if not self.scores:
            return self.best
        if self.every and len(self.scores) % self.every == 0:
            return self._hoped()
        return self._any()

    def note(self, units: Collection[int], score: float) -> None:
        self.scores.append((frozenset(units), score))
        better = score > self.score
        self._since = 0 if better else self._since + 1
        if better:
            self.best, self.score = frozenset(units), score

    def _any(self) -> Units:
        return frozenset(self._random.sample(range(self.units), self.size))

    def _hoped(self) -> Units:
        """The random candidate with the greatest upper confidence bound (mean and a standard deviation)."""
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
        """The kernel, from the number of units in which two sets differ."""
        return torch.exp(-torch.cdist(a, b, p=1) / (BLUR * self.units))


# --- skipping ---------------------------------------------------------------------------------------------------------
# Skipping sub-layers of the judging model, for drafters that draft with the remaining ones.


class Skippable(Model, Protocol):
    """A model in which some sub-layers can be skipped."""

    def skipping(self) -> "Skipping":
        """The model with skipped sub-layers, on its own cache.

        UsageError for a model whose sub-layers are unknown.
        """


class Skipping(Model, Protocol):
    """A model without some of its sub-layers. It reads the full model's cache, and writes only
    entries that the full model overwrites before they are read."""

    @property
    def units(self) -> int:
        """The number of sub-layers that may be skipped; they are numbered from 0."""

    def skip(self, units: Collection[int]) -> None:
        """Skip these sub-layers, and no others, from now on."""

    def guesses(self, context: Context, places: Tensor) -> Tensor:
        """[B, m] the most probable token after the committed tokens at positions [B, m], all
        before the last one, by one pass over them; the cache of the sequence is not changed."""


# --- swift ------------------------------------------------------------------------------------------------------------

UNKNOWN = -1


@dataclass
class Swift(Wrapper):
    """`drafter` with the judging model, less a `share` of its sub-layers, on that model's cache (Xia et al. 2024,
    arXiv 2410.06916, §4). The sub-layers are attention and MLP of every layer but the first and the last.

    Every round scores one set: the share of the last `window` tokens for which the reduced and the
    full model agree on the most probable token, by one pass. Its time counts in the round. `Search`
    describes the search and its end (`enough`, `patience`, `most`, `every`). One set serves all rows.

    carry: the search continues from text to text; otherwise every text restarts it.
    """

    drafter: Apprentice
    judge: Skippable
    share: float = 0.45
    window: int = 32
    enough: float = 0.95
    patience: int = 300
    most: int = 1000
    every: int = 25
    carry: bool = False
    static: ClassVar[bool] = False  # the skipped sub-layers change from round to round
    remarks: list[str] = field(default_factory=list, init=False, repr=False, compare=False)
    search: Search | None = field(default=None, init=False, repr=False, compare=False)
    # [B, L + 1] the full model's most probable token after every position; the last column is a dummy
    _right: Tensor = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, value in (("share", self.share), ("enough", self.enough)):
            if not 0 < value <= 1:
                raise ValueError(f"{name}: must be in (0, 1], found {value}")
        if min(self.window, self.patience, self.most) < 1:
            found = f"{self.window}, {self.patience} and {self.most}"
            raise ValueError(f"window, patience and most: expected 1 or more, found {found}")

    @property
    def carries(self) -> Carried | None:
        return self if self.carry else None

    def start(self, context: Context) -> None:
        if self.search is None or not self.carry:
            self._begin()
        self._right = context.seq.new_full((context.rows, context.seq.shape[1] + 1), UNKNOWN)
        self._own[0].start(context)

    def admit(self, context: Context, row: int) -> None:
        if not self.carry:
            self._begin()
        self._right[row] = UNKNOWN
        self._own[0].admit(context, row)

    def propose(self, context: Context, budget: int | None, rng: Source, lag: int = 1) -> Draft:
        return self._own[0].propose(context, budget, rng, lag)

    def learn(self, context: Context, start: Tensor, draft: Draft, p: Tensor, verdict: Verdict) -> None:
        self._own[0].learn(context, start, draft, p, verdict)
        assert self.search is not None, "start() comes before any other call"
        if not self.search.ended:
            self._note(start, p, verdict)
            self._try(context, self.search)

    def ended(self, context: Context, rows: Sequence[int]) -> None:
        return  # the search result stays

    def forget(self) -> None:
        if self.search is not None:
            self._begin()

    def _note(self, start: Tensor, p: Tensor, verdict: Verdict) -> None:
        """Keep the full model's most probable tokens along the accepted path."""
        rows = torch.cat([torch.zeros_like(start).unsqueeze(1), verdict.path.clamp_min(ROOT) + 1], 1)
        level = torch.arange(rows.shape[1], device=start.device)
        spare = self._right.shape[1] - 1
        place = torch.where(level <= verdict.accepted.unsqueeze(1), start.unsqueeze(1) + level, spare)
        self._right.scatter_(1, place.clamp_max(spare), p.argmax(-1).gather(1, rows))

    def _try(self, context: Context, search: Search) -> None:
        """Score one set on the last tokens, once there are enough of them."""
        skipping = self._own[1]
        place = context.pos.unsqueeze(1) + torch.arange(-self.window, 0, device=context.pos.device)
        right = self._right.gather(1, place.clamp_min(0))
        known = (place >= 0) & (right != UNKNOWN) & context.live.unsqueeze(1)
        if int(known.sum()) < self.window:
            return
        tried = search.propose()
        skipping.skip(tried)
        same = skipping.guesses(context, place.clamp_min(0)) == right
        search.note(tried, float((same & known).sum() / known.sum()))
        skipping.skip(search.best)

    def _begin(self) -> None:
        skipping = self._own[1]
        size = min(max(1, round(self.share * skipping.units)), skipping.units)
        self.search = Search(skipping.units, size, self.enough, self.patience, self.most, self.every)
        skipping.skip(self.search.best)

    @cached_property
    def _own(self) -> tuple[Apprentice, Skipping]:
        """The drafter on the reduced model, created at first use: forms of methods have no weights."""
        skipping = self.judge.skipping()
        return self.drafter.drawing_from(skipping), skipping
