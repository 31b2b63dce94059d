"""Drafters without a tree: none, and a chain from a model. They know the algebra, not the models' internals."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from specbench.decoding.drafters.schedule import Constant, Schedule
from specbench.decoding.protocols import Drafter, Model
from specbench.decoding.randomness import Source
from specbench.decoding.timing import Laps, NullClock
from specbench.decoding.tokens import TokenTree
from specbench.decoding.types import Context, Draft, Verdict


class Unlearned:
    """The declarations of a drafter that neither learns from verdicts nor carries state to the next sequence."""

    adapts: ClassVar[str] = ""
    carries: ClassVar[None] = None


class Memoryless:
    """The methods of a drafter without state between rounds: it depends on the sequence only."""

    def start(self, context: Context) -> None:
        return

    def admit(self, context: Context, row: int) -> None:
        return

    def learn(self, context: Context, start: Tensor, draft: Draft, p: Tensor, verdict: Verdict) -> None:
        return


class Chains:
    """The declarations of chains of at most `k` tokens."""

    k: int
    branches: ClassVar[bool] = False

    @property
    def room(self) -> int:
        return self.k

    @property
    def depth(self) -> int:
        return self.k


class Guesses(Chains, Unlearned):
    """The declarations of chains that are looked up, not drawn: all tokens are point masses."""

    static: ClassVar[bool] = True
    drawn: ClassVar[bool] = False

    def width(self, budget: int | None) -> int:
        """The number of tokens of a round's chains."""
        return self.k if budget is None else min(self.k, budget)


class Wrapper:
    """The declarations of a drafter that drafts as another one does."""

    drafter: Drafter

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


@dataclass(frozen=True)
class NoDraft(Memoryless, Unlearned):
    """An empty draft: the loop becomes autoregressive decoding."""

    static: ClassVar[bool] = True
    room: ClassVar[int] = 0
    depth: ClassVar[int] = 0
    branches: ClassVar[bool] = False
    drawn: ClassVar[bool] = False

    def propose(self, context: Context, budget: int | None, rng: Source, lag: int = 1) -> Draft:
        return Draft.empty(context)


@dataclass(frozen=True)
class ModelDrafter(Chains):
    """A chain of at most k tokens drawn one after the other from a smaller model (Leviathan et al. 2022, Alg. 1).

    `schedule` decides how many of the k are drawn in a round; its documentation lists the host reads.
    The first token of a round, which feeds more than the others, is timed as the span "first".
    """

    model: Model
    k: int
    schedule: Schedule = field(default_factory=Constant)
    clock: Laps = field(default_factory=NullClock, compare=False)
    drawn: ClassVar[bool] = True
    carries: ClassVar[None] = None

    @property
    def static(self) -> bool:
        return self.schedule.static and self.model.static

    def drawing_from(self, model: Model) -> "ModelDrafter":
        return replace(self, model=model)

    @property
    def adapts(self) -> str:
        return f"the schedule {type(self.schedule).__name__.lower()}" if self.schedule.learns else ""

    def start(self, context: Context) -> None:
        self.model.start(context)
        self.schedule.start(context, self.k)

    def admit(self, context: Context, row: int) -> None:
        self.model.admit(context, row)
        self.schedule.admit(row)

    def propose(self, context: Context, budget: int | None, rng: Source, lag: int = 1) -> Draft:
        chain = Extent.of_round(self.schedule, context, self.k, budget)
        if chain.width < 1:
            return Draft.empty(context)

        def after(ids: Tensor, logits: Tensor, sure: Tensor | None = None) -> bool:
            if chain.drawn == 0:
                self.clock.lap("first", ids)
            return chain.ends(ids, logits, sure)

        ids, rows = self.model.sample(context, chain.width, rng, lag, after)
        # Without a budget all rows draw equally many; with one, a row drafts only as many as it can use.
        drafted = None if budget is None or chain.valid is None else chain.valid.sum(1)
        belief = self.schedule.believed(chain.drawn)
        return Draft(TokenTree.chain(ids), rows, chain.valid, drafted=drafted, belief=belief)

    def learn(self, context: Context, start: Tensor, draft: Draft, p: Tensor, verdict: Verdict) -> None:
        self.schedule.learn(context, draft, verdict)


@dataclass
class Extent:
    """The length of every row of a chain while it is drawn. `width` is the maximum number of drawn tokens.

    lengths [B] is None as long as all rows are as long as the chain.
    """

    schedule: Schedule
    context: Context
    width: int
    lengths: Tensor | None = None
    drawn: int = 0

    @classmethod
    def of_round(cls, schedule: Schedule, context: Context, k: int, budget: int | None) -> "Extent":
        """The extent that the schedule requests, at most k and the budget; the host then reads the maximum."""
        most = k if budget is None else min(k, budget)
        lookahead = schedule.lookahead() if most > 0 else None
        if lookahead is None:
            alike = context.rows == 1 and budget is not None  # otherwise a row may have less left than the others
            return cls(schedule, context, most, None if alike else drawable(context, most))
        lengths = torch.minimum(lookahead, drawable(context, most))
        return cls(schedule, context, int(lengths.max()), lengths)

    def ends(self, ids: Tensor, logits: Tensor, sure: Tensor | None = None) -> bool:
        """Whether all rows end after the token ids [B] just drawn; the host reads it if the schedule may stop."""
        self.drawn += 1
        low = self.schedule.stops(ids, logits, sure) if self.drawn < self.width else None
        if low is None:
            return False
        lengths = drawable(self.context, self.width) if self.lengths is None else self.lengths
        self.lengths = torch.where(low, lengths.clamp_max(self.drawn), lengths)
        return not (self.lengths > self.drawn).any()

    @property
    def valid(self) -> Tensor | None:
        """[B, drawn] mask of the tokens of a row."""
        if self.lengths is None:
            return None
        return torch.arange(self.drawn, device=self.lengths.device) < self.lengths.unsqueeze(1)


def chain(ids: Tensor, context: Context, budget: int | None, there: Tensor | None = None) -> Draft:
    """Point masses ids [B, n] as a chain; every row has the usable ones among those in the mask `there` [B, n]."""
    tree = TokenTree.chain(ids)
    if there is None and context.rows == 1 and budget is not None:
        return Draft(tree)  # a single row has its own budget; of several one may have less left than the others
    usable = torch.arange(tree.size, device=ids.device) < drawable(context, tree.size).unsqueeze(1)
    if there is None:
        return Draft(tree, None, usable)
    return Draft(tree, None, there & usable, drafted=there.sum(1))


def drawable(context: Context, most: int) -> Tensor:
    """[B] the number of drafts that a row can use, at most `most`: one token of a round is never a draft."""
    return ((context.last - context.pos - 1) * context.live).clamp(0, most)
