"""SWIFT: the judging model drafts without some of its sub-layers, and which these are is searched while it decodes.

Knows rounds and scores; must not know networks, or how a set is proposed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from specbench.decoding.drafters.skip_sets import Search
from specbench.decoding.protocols import Apprentice, Carried
from specbench.decoding.randomness import Source
from specbench.decoding.skipping import Skippable, Skipping
from specbench.decoding.tokens import ROOT
from specbench.decoding.types import Context, Draft, Verdict

UNKNOWN = -1


@dataclass
class Swift:
    """`drafter` with the model that judges, less a `share` of its sub-layers, on the cache of the whole one (Xia et al.
    2024, arXiv 2410.06916, §4). Attention and MLP of every layer but the first and the last are sub-layers.

    After every round one set is scored: the share of the last `window` tokens at which what is left finds the same
    token most probable as the whole model did, by one pass. That is in the time of the round. How the search goes on
    and ends (`enough`, `patience`, `most`, `every`) is said in `Search`. Of several rows one set serves all.

    carry: the search goes on from text to text; else every text begins it anew.
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
    static: ClassVar[bool] = False  # which sub-layers are left out changes from round to round
    remarks: list[str] = field(default_factory=list, init=False, repr=False, compare=False)
    search: Search | None = field(default=None, init=False, repr=False, compare=False)
    _own: tuple[Apprentice, Skipping] | None = field(default=None, init=False, repr=False, compare=False)
    # [B, L + 1] the most probable token after every place, by the whole model; the last column is spare
    _right: Tensor | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, value in (("share", self.share), ("enough", self.enough)):
            if not 0 < value <= 1:
                raise ValueError(f"{name}: must lie in (0, 1], found {value}")
        if min(self.window, self.patience, self.most) < 1:
            found = f"{self.window}, {self.patience} and {self.most}"
            raise ValueError(f"window, patience and most: expected 1 or more, found {found}")

    @property
    def room(self) -> int:
        return self.drafter.room

    @property
    def depth(self) -> int:
        return self.drafter.depth

    @property
    def branches(self) -> bool:
        return self.drafter.branches

    @property
    def drawn(self) -> bool:
        return self.drafter.drawn

    @property
    def adapts(self) -> str:
        return self.drafter.adapts

    @property
    def carries(self) -> Carried | None:
        return self if self.carry else None

    def start(self, context: Context) -> None:
        drafter, _ = self._ready()
        if self.search is None or not self.carry:
            self._begin()
        self._right = context.seq.new_full((context.rows, context.seq.shape[1] + 1), UNKNOWN)
        drafter.start(context)

    def admit(self, context: Context, row: int) -> None:
        drafter, _ = self._ready()
        if not self.carry:
            self._begin()
        assert self._right is not None, "start() comes before any other call"
        self._right[row] = UNKNOWN
        drafter.admit(context, row)

    def propose(self, context: Context, budget: int | None, rng: Source, lag: int = 1) -> Draft:
        return self._ready()[0].propose(context, budget, rng, lag)

    def learn(self, context: Context, start: Tensor, draft: Draft, p: Tensor, verdict: Verdict) -> None:
        drafter, _ = self._ready()
        drafter.learn(context, start, draft, p, verdict)
        assert self.search is not None, "start() comes before any other call"
        if not self.search.ended:
            self._note(start, p, verdict)
            self._try(context, self.search)

    def select(self, rows: Tensor) -> None:
        if self._right is not None:
            self._right = self._right.index_select(0, rows)
        self._ready()[0].select(rows)

    def ended(self, context: Context, rows: Sequence[int]) -> None:
        return  # what was found stays

    def forget(self) -> None:
        if self.search is not None:
            self._begin()

    def _note(self, start: Tensor, p: Tensor, verdict: Verdict) -> None:
        """Keep what the whole model found most probable along the accepted path."""
        assert self._right is not None
        rows = torch.cat([torch.zeros_like(start).unsqueeze(1), verdict.path.clamp_min(ROOT) + 1], 1)
        level = torch.arange(rows.shape[1], device=start.device)
        spare = self._right.shape[1] - 1
        place = torch.where(level <= verdict.accepted.unsqueeze(1), start.unsqueeze(1) + level, spare)
        self._right.scatter_(1, place.clamp_max(spare), p.argmax(-1).gather(1, rows))

    def _try(self, context: Context, search: Search) -> None:
        """Score one set on the last tokens, once there are enough of them."""
        assert self._right is not None
        _, skipping = self._ready()
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
        """Begin the search anew."""
        _, skipping = self._ready()
        size = min(max(1, round(self.share * skipping.units)), skipping.units)
        self.search = Search(skipping.units, size, self.enough, self.patience, self.most, self.every)
        skipping.skip(self.search.best)

    def _ready(self) -> tuple[Apprentice, Skipping]:
        """The drafter on what is left of the model, which is made when it is first used: no form of a method has
        weights."""
        if self._own is None:
            skipping = self.judge.skipping()
            self._own = self.drafter.drawing_from(skipping), skipping
        return self._own
