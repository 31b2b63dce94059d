"""Cascades: drafts that continue where another drafter's end, and the composition that a k-matrix defines."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from specbench.decoding.drafters.chain import ModelDrafter
from specbench.decoding.drafters.lookup import Lookup
from specbench.decoding.drafters.tree import Several, merged_beliefs, merged_laws, merged_valid, refuse_learners
from specbench.decoding.loop import Speculate
from specbench.decoding.protocols import Drafter, Model
from specbench.decoding.randomness import Source
from specbench.decoding.timing import Laps, NullClock
from specbench.decoding.tokens import TokenTree
from specbench.decoding.types import Context, Draft
from specbench.decoding.verifiers.rejection import Rejection


@dataclass(frozen=True)
class Relay(Several):
    """One chain drafted by several drafters, each after the tokens of the one before it (the horizontal cascade of
    Chen et al. 2023, arXiv 2312.11462, §4.2: first tokens are accepted most often, so the best drafter has them).

    The legs share the budget in their order. If a leg drafts fewer tokens for a row, the next
    leg's tokens follow them directly. No leg learns from the verdict, which is on all of them
    together; ValueError for a schedule that needs its own verdict, and for a drafter of trees.
    """

    legs: Sequence[Drafter]
    clock: Laps = field(default_factory=NullClock, compare=False)
    branches: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for leg in self.legs:
            if leg.branches:
                raise ValueError(f"legs: {type(leg).__name__} drafts trees, which nothing can continue: use a chain")
        refuse_learners(self.legs, "legs", "as one")

    @property
    def parts(self) -> Sequence[Drafter]:
        return self.legs

    @property
    def room(self) -> int:
        return max(depth(self.legs[:i]) + leg.room for i, leg in enumerate(self.legs))

    @property
    def depth(self) -> int:
        return depth(self.legs)

    def propose(self, context: Context, budget: int | None, rng: Source, lag: int = 1) -> Draft:
        inner = context.fork(self.depth + 1)  # the last token of a round is never drafted: here it follows all legs
        drafts: list[Draft] = []
        for place, leg in enumerate(self.legs):
            left = None if budget is None else budget - sum(draft.tree.size for draft in drafts)
            if left is not None and left < 1:
                break
            draft = leg.propose(inner, left, rng, lag + self.foreign(place, static=budget is None))
            append(inner, draft)
            drafts.append(draft)
            # the next leg's first lap starts here
            self.clock.lap("leg", draft.tree.ids if draft.tree.size else context.pos)
        return packed(drafts) if drafts else Draft.empty(context)

    def foreign(self, place: int, static: bool) -> int:
        """The maximum number of tokens before the last that a leg's models may lack, beyond those when it drafts alone.

        These are the later legs' accepted tokens of the last round, and the earlier legs' drafts of this one. With
        a budget, a leg is left out of rounds in which the earlier legs use it up. A series of such rounds commits
        what was left at the first of them: at most one token more than the earlier legs draft. That token is either
        the last of all or in the lag already, as after a round without a budget for any draft (`Speculate`).
        """
        earlier, later = depth(self.legs[:place]), depth(self.legs[place + 1 :])
        return later + earlier * (1 if static else 2)


def depth(legs: Sequence[Drafter]) -> int:
    """The number of levels that the legs draft in sequence."""
    return sum(leg.depth for leg in legs)


def append(context: Context, draft: Draft) -> None:
    """Append a chain to the sequence of a fork, as if it were committed."""
    ids = draft.tree.ids
    ahead = torch.arange(ids.shape[1], device=ids.device)
    context.seq.scatter_(1, context.pos.unsqueeze(1) + 1 + ahead, ids)  # stale after a row's tokens
    context.pos += ids.shape[1] if draft.valid is None else draft.valid.sum(1)


def packed(drafts: Sequence[Draft]) -> Draft:
    """Several chains joined to one chain, without gaps if a row has fewer tokens of one."""
    ids, q, valid = torch.cat([d.tree.ids for d in drafts], 1), merged_laws(drafts), merged_valid(drafts)
    belief = merged_beliefs(drafts)
    if valid is not None and any(draft.valid is not None for draft in drafts[:-1]):
        order = (~valid).long().sort(dim=1, stable=True).indices
        ids, valid = ids.gather(1, order), valid.gather(1, order)
        q = None if q is None else q.gather(1, order.unsqueeze(2).expand(q.shape))
        belief = None if belief is None else belief.gather(1, order)
    drafted, rounds = torch.stack([d.levels for d in drafts]).sum(0), tuple(one for d in drafts for one in d.rounds)
    return Draft(TokenTree.chain(ids), q, valid, rounds, drafted, belief=belief)


def cascade(
    models: Sequence[Model], statistical: Lookup, k: Sequence[Sequence[int]], clock: Laps | None = None
) -> Drafter:
    """The drafter defined by a k-matrix (Chen et al. 2023, arXiv 2312.11462, Alg. 1); `models` are ordered
    from the best to the cheapest, `statistical` is a drafter without a model, whose own k is ignored.

    k[0][j] tokens come from model j, in this order, and k[0][-1] from the statistical drafter; model j is
    itself sped up by the cascade of the models after it, with the matrix from row and column j + 1 on. 0
    leaves a leg out; entries below the diagonal must be zero. Every level is exact, also when sampling:
    the published code decodes greedily only, lets inner levels accept tokens that their model would not
    emit, and drafts until there are at least as many. ValueError for a matrix of another form.
    """
    legs = len(models) + 1
    if len(k) != legs or any(len(row) != legs for row in k):
        raise ValueError(f"k: expected {legs} rows of {legs} numbers, one for each model and one more")
    if any(number for place, row in enumerate(k) for number in row[:place]):
        raise ValueError("k: expected zeros below the diagonal: no level is sped up by a more expensive one")
    if not any(k[0]):
        raise ValueError("k: nothing drafts for the target: the first row has only zeros")
    return _level(models, statistical, k, clock or NullClock())


def _level(models: Sequence[Model], statistical: Lookup, k: Sequence[Sequence[int]], clock: Laps) -> Drafter:
    """The drafter for the model before `models`, by the first row of a matrix; its phases are on `clock`."""
    legs: list[Drafter] = []
    for place, (model, length) in enumerate(zip(models, k[0], strict=False)):
        if length:
            rest = [row[place + 1 :] for row in k[place + 1 :]]
            if any(rest[0]):  # a drafter speeds up this model
                below = _level(models[place + 1 :], statistical, rest, clock.under("draft"))
                legs.append(Speculate(below, model, Rejection(), length, clock))
            else:
                legs.append(ModelDrafter(model, length, clock=clock))
    if k[0][-1]:
        legs.append(statistical.of_length(k[0][-1]))
    return legs[0] if len(legs) == 1 else Relay(legs, clock)
