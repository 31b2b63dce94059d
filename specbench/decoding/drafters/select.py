"""A drafter that chooses between drafts: a lookup with enough evidence, else another drafter's draft."""

from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from specbench.decoding.drafters.cascade import packed
from specbench.decoding.drafters.tree import side_by_side
from specbench.decoding.protocols import Carried, Drafter
from specbench.decoding.randomness import Source
from specbench.decoding.timing import Laps, NullClock
from specbench.decoding.tokens import TokenTree
from specbench.decoding.types import Context, Draft, Verdict


class Finder(Drafter, Protocol):
    """A drafter that finds its drafts, and reports the evidence for one before anything is drafted."""

    def find(self, context: Context, budget: int | None) -> tuple[Draft, Tensor]:
        """The draft of `propose`, and its evidence in every row [B] float64; 0 without a draft."""


@dataclass
class Select:
    """The draft of `first` in rows with evidence of at least `least`, the draft of `otherwise`
    in the other rows (SAM decoding, Hu et al. 2024, arXiv 2411.10666, §3.3, by matching tokens;
    the hybrid of suffix decoding, Oliaro et al. 2024, arXiv 2411.04975, §4, by the score).

    The choice is made before anything is drawn, from the sequence alone, so every row has its drafter's distribution.
    If `first` serves all rows, the other one does not draft. It still learns from those rounds; tokens that its
    models missed are fed when it drafts again, as part of its time. If rows differ, both draft; chains then become
    one chain, and trees become siblings. ValueError for a drafter that learns from a verdict on its own draft.
    """

    first: Finder
    otherwise: Drafter
    least: float
    clock: Laps = field(default_factory=NullClock, compare=False)
    static: ClassVar[bool] = False
    adapts: ClassVar[str] = ""
    # the position up to which every current sequence was fed to the models of `otherwise`
    _known: list[int] = field(default_factory=list, init=False, repr=False, compare=False)
    _settled: bool = field(default=False, init=False, repr=False, compare=False)  # its draft was judged alone

    def __post_init__(self) -> None:
        if self.least <= 0:
            raise ValueError(f"least: expected a number above 0, found {self.least}")
        if self.first.drawn:
            raise ValueError(
                f"first: {type(self.first).__name__} draws its drafts, so that choosing one would bias them"
            )
        if self.otherwise.adapts:
            raise ValueError(
                f"otherwise: {self.otherwise.adapts} learns from a verdict on its own draft, and it does not draft in "
                "every round: choose --schedule constant or confidence"
            )
        if self.first.carries is not None and self.otherwise.carries is not None:
            raise ValueError("first and otherwise: one of them can carry what it has seen to the next text, not both")

    @property
    def branches(self) -> bool:
        return self.first.branches or self.otherwise.branches

    @property
    def drawn(self) -> bool:
        return self.otherwise.drawn

    @property
    def room(self) -> int:
        rooms = (self.first.room, self.otherwise.room)
        return sum(rooms) if self.branches else max(rooms)

    @property
    def depth(self) -> int:
        return max(self.first.depth, self.otherwise.depth)

    @property
    def carries(self) -> Carried | None:
        return self.otherwise.carries if self.first.carries is None else self.first.carries

    def start(self, context: Context) -> None:
        self.first.start(context)
        self.otherwise.start(context)
        self._known, self._settled = [end - 1 for end in context.pos.tolist()], False

    def admit(self, context: Context, row: int) -> None:
        self.first.admit(context, row)
        self.otherwise.admit(context, row)
        self._known[row] = int(context.pos[row]) - 1

    def propose(self, context: Context, budget: int | None, rng: Source, lag: int = 1) -> Draft:
        found, score = self.first.find(context, budget)
        taken = score >= self.least
        self.clock.lap("found", taken)  # the first lap of a model starts here
        ends, live, chosen = torch.stack([context.pos, context.live.long(), taken.long()]).tolist()  # in one read
        # from here on a sequence may differ from the one that a model was fed
        before = [end - lag - 1 for end in ends]
        self._known = before if self._settled else [min(*both) for both in zip(self._known, before, strict=True)]
        self._settled = False
        choices = {bool(one) for one, running in zip(chosen, live, strict=True) if running}
        if choices == {True}:
            return found
        behind = [end - 1 - known for end, known, running in zip(ends, self._known, live, strict=True) if running]
        most = 1 << (max(behind, default=lag) - 1).bit_length()  # fed again, in passes of few shapes
        own = self.otherwise.propose(context, budget, rng, most)
        alone = True not in choices
        if own.tree.size:  # otherwise nothing was fed
            self._known, self._settled = ends, alone
        return own if alone else self._both(found, own, taken)

    def _both(self, found: Draft, own: Draft, taken: Tensor) -> Draft:
        """One draft, in which every row has the one that it chose."""
        two = [within(found, taken), within(own, ~taken)]
        levels = torch.where(taken, found.levels, own.levels)
        if self.branches:
            return replace(side_by_side(two), drafted=levels)
        whole, width = packed(two), max(found.tree.size, own.tree.size)
        assert whole.valid is not None
        q, belief = (None if one is None else one[:, :width] for one in (whole.q, whole.belief))
        ids, valid = whole.tree.ids[:, :width], whole.valid[:, :width]
        return Draft(TokenTree.chain(ids), q, valid, whole.rounds, levels, belief=belief)

    def learn(self, context: Context, start: Tensor, draft: Draft, p: Tensor, verdict: Verdict) -> None:
        self.first.learn(context, start, draft, p, verdict)
        self.otherwise.learn(context, start, draft, p, verdict)


def within(draft: Draft, rows: Tensor) -> Draft:
    """The draft in the rows [B] bool only; the others have no nodes of it."""
    return replace(draft, valid=draft.there & rows.unsqueeze(1))
