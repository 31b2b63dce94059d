"""Drafts of several drafters as siblings under the last committed token: SpecInfer with several small models."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from specbench.decoding.drafters.chain import Unlearned
from specbench.decoding.protocols import Drafter
from specbench.decoding.randomness import Source
from specbench.decoding.timing import Laps, NullClock
from specbench.decoding.tokens import ROOT, TokenTree
from specbench.decoding.types import Context, Draft, Verdict, point_mass


class Several(Unlearned):
    """The common methods of drafters whose drafts are judged as one draft; none of them learns from the verdict."""

    @property
    def parts(self) -> Sequence[Drafter]:
        raise NotImplementedError

    @property
    def static(self) -> bool:
        return all(part.static for part in self.parts)

    @property
    def drawn(self) -> bool:
        return any(part.drawn for part in self.parts)

    def start(self, context: Context) -> None:
        for part in self.parts:
            part.start(context)

    def admit(self, context: Context, row: int) -> None:
        for part in self.parts:
            part.admit(context, row)

    def learn(self, context: Context, start: Tensor, draft: Draft, p: Tensor, verdict: Verdict) -> None:
        return  # keeping accepted entries of a cache needs a verdict on the part's own tree: they are fed again instead

    def select(self, rows: Tensor) -> None:
        for part in self.parts:
            part.select(rows)


def refuse_learners(parts: Sequence[Drafter], field: str, judged: str) -> None:
    """ValueError for an empty list, and for a drafter that learns from a verdict on its own draft."""
    if not parts:
        raise ValueError(f"{field}: expected one or more, found none")
    learns = f"learns from a verdict on its own draft, and these are judged {judged}"
    for part in parts:
        if part.carries is not None:
            raise ValueError(f"{field}: {type(part).__name__} {learns}")
        if part.adapts:
            raise ValueError(f"{field}: {part.adapts} {learns}: choose --schedule constant or confidence")


@dataclass(frozen=True)
class Merge(Several):
    """The drafts of all drafters as one tree, in their order (SpecInfer, Miao et al. 2023, §3, merge-based).

    Each draws independently. A token that two of them propose stays two children: the union of the
    paper's Definition 3.2 would test it too seldom, which biases the output. None of them learns
    from the verdict, which is on all drafts together; ValueError for a schedule that needs its own.
    """

    drafters: Sequence[Drafter]
    clock: Laps = field(default_factory=NullClock, compare=False)
    branches: ClassVar[bool] = True

    def __post_init__(self) -> None:
        refuse_learners(self.drafters, "drafters", "together")

    @property
    def parts(self) -> Sequence[Drafter]:
        return self.drafters

    @property
    def room(self) -> int:
        return sum(part.room for part in self.drafters)

    @property
    def depth(self) -> int:
        return max(part.depth for part in self.drafters)

    def propose(self, context: Context, budget: int | None, rng: Source, lag: int = 1) -> Draft:
        # Alone, a drafter lacks one of the tokens that its own rounds committed, the last one
        # drafted. Here all accepted tokens may be a sibling's.
        lag += max(self.depth - 1, 0)
        drafts = []
        for part in self.drafters:
            drafts.append(part.propose(context, budget, rng, lag))
            # the next drafter's first lap starts here
            self.clock.lap("merged", drafts[-1].tree.ids if drafts[-1].tree.size else context.pos)
        return side_by_side(drafts)


def side_by_side(drafts: Sequence[Draft]) -> Draft:
    """One draft of all nodes: those of every draft keep their order and follow those of the drafts before it."""
    parents: list[int] = []
    for draft in drafts:
        shift = len(parents)
        parents += [parent if parent == ROOT else parent + shift for parent in draft.tree.parents]
    tree = TokenTree(torch.cat([draft.tree.ids for draft in drafts], 1), tuple(parents))
    rounds = tuple(one for draft in drafts for one in draft.rounds)
    drafted = torch.stack([draft.levels for draft in drafts]).amax(0)
    return Draft(tree, merged_laws(drafts), merged_valid(drafts), rounds, drafted)


def merged_laws(drafts: Sequence[Draft]) -> Tensor | None:
    """[B, n, V] the distribution of every node; None if all are point masses."""
    known = [draft.q for draft in drafts if draft.q is not None]
    if not known:
        return None
    width, dtype = known[0].shape[-1], known[0].dtype
    return torch.cat([point_mass(d.tree.ids, width, dtype) if d.q is None else d.q for d in drafts], 1)


def merged_beliefs(drafts: Sequence[Draft]) -> Tensor | None:
    """[B, n] the predicted acceptance of chain tokens, NaN if missing; None if missing for all."""
    if all(draft.belief is None for draft in drafts):
        return None
    nothing = [torch.full(d.tree.ids.shape, torch.nan, device=d.tree.ids.device) for d in drafts]
    return torch.cat([none if d.belief is None else d.belief for d, none in zip(drafts, nothing, strict=True)], 1)


def merged_valid(drafts: Sequence[Draft]) -> Tensor | None:
    """[B, n] mask of a row's nodes; None if all rows have all nodes."""
    if all(draft.valid is None for draft in drafts):
        return None
    return torch.cat([draft.there for draft in drafts], 1)
