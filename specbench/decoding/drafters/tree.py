"""Token trees: drafted level by level from one model, or the drafts of several drafters side by side."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate
from operator import mul
from typing import ClassVar, Protocol, Self

import torch
from torch import Tensor

from specbench.decoding.drafters.chain import Unlearned, drawable
from specbench.decoding.protocols import Drafter, Model
from specbench.decoding.randomness import Source, Stream
from specbench.decoding.timing import Laps, NullClock
from specbench.decoding.tokens import ROOT, Level, Parent, TokenTree, constant, levels, topology
from specbench.decoding.types import Context, Draft, Verdict, point_mass

# --- branching --------------------------------------------------------------------------------------------------------
# The ways to choose the children of a tree's node.

Children = tuple[Tensor, Tensor | None, Tensor]  # ids [B, m, w], their distributions [B, m, w, V], mask


class Branching(Protocol):
    """The rule that chooses the children of a node."""

    drawn: ClassVar[bool]

    def children(self, rows: Tensor, width: int, rng: Source) -> Children:
        """`width` children for each of m nodes, from rows [B, m, V]: scores if nothing is drawn."""


@dataclass(frozen=True)
class Top:
    """The tokens with the highest scores. Nothing is drawn, so they are point masses (SpecInfer with greedy
    decoding, Miao et al. 2023, §4; judged with the draft's distribution they would be accepted too often)."""

    drawn: ClassVar[bool] = False

    def children(self, rows: Tensor, width: int, rng: Source) -> Children:
        there = min(width, rows.shape[-1])
        ids = rows.topk(there).indices
        ids = torch.cat([ids, ids[..., :1].expand(*ids.shape[:-1], width - there)], -1)
        return ids, None, (torch.arange(width, device=ids.device) < there).expand(ids.shape)


@dataclass(frozen=True)
class Independent:
    """Independent draws; a token that is drawn twice is two children (SpecInfer, Miao et al.
    2023, Alg. 2): merged into one they would be tested too seldom, which biases the output."""

    drawn: ClassVar[bool] = True

    def children(self, rows: Tensor, width: int, rng: Source) -> Children:
        q = rows.unsqueeze(2).expand(-1, -1, width, -1)
        ids = rng.categorical(q, Stream.DRAFT)
        return ids, q, torch.ones_like(ids, dtype=torch.bool)


@dataclass(frozen=True)
class Distinct:
    """Draws without replacement: each from the renormalised rest of the earlier ones (Sequoia,
    Chen et al. 2024, Alg. 2). If the rest is empty there is no further child."""

    drawn: ClassVar[bool] = True

    def children(self, rows: Tensor, width: int, rng: Source) -> Children:
        ids: list[Tensor] = []
        kept_rows: list[Tensor] = []
        there: list[Tensor] = []
        left = rows
        for _ in range(width):
            mass = left.sum(-1, keepdim=True)
            exists = mass > 0
            row = torch.where(exists, left / mass.clamp_min(torch.finfo(rows.dtype).tiny), rows)
            token = rng.categorical(row, Stream.DRAFT)
            left = left.scatter(-1, token.unsqueeze(-1), 0)
            for kept, value in zip((ids, kept_rows, there), (token, row, exists.squeeze(-1)), strict=True):
                kept.append(value)
        return torch.stack(ids, 2), torch.stack(kept_rows, 2), torch.stack(there, 2)


# --- tree -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Grown(Draft):
    """A draft with the tree that its model was fed, in which `as_fed[i]` is node i; -1 if the model never saw it."""

    fed: TokenTree
    as_fed: tuple[int, ...]


class Shaped:
    """The declarations of trees of one shape: the parent of node i is parents[i], or the last committed token (-1)."""

    parents: Sequence[Parent]

    @property
    def room(self) -> int:
        return len(self.parents)

    @property
    def depth(self) -> int:
        return topology(tuple(self.parents)).depth

    @property
    def branches(self) -> bool:
        return len(set(self.parents)) < len(self.parents)


@dataclass(frozen=True)
class FromModel(Unlearned):
    """The methods of a tree drafter whose only state is the cache of its model."""

    model: Model

    def drawing_from(self, model: Model) -> Self:
        return replace(self, model=model)

    def start(self, context: Context) -> None:
        self.model.start(context)

    def admit(self, context: Context, row: int) -> None:
        self.model.admit(context, row)

    def learn(self, context: Context, start: Tensor, draft: Draft, p: Tensor, verdict: Verdict) -> None:
        """Keep the accepted path in the cache. The model was fed all nodes of a path but
        perhaps the last, which the next round feeds again (`lag`)."""
        if isinstance(draft, Grown):
            path = constant((*draft.as_fed, -1), start.device)[verdict.path]  # -1 after its end: the last entry
            self.model.settle(start, draft.fed, replace(verdict, path=path))


class LevelByLevel(FromModel):
    """A tree of known shape: every level is one pass over those nodes that have children."""

    branching: Branching

    @property
    def shape(self) -> tuple[int, ...]:
        """The parents of its nodes."""
        raise NotImplementedError

    @property
    def static(self) -> bool:
        return self.model.static

    @property
    def drawn(self) -> bool:
        return self.branching.drawn

    def propose(self, context: Context, budget: int | None, rng: Source, lag: int = 1) -> Draft:
        plan = levels(self.shape)[: None if budget is None else max(budget, 0)]
        return grow(self.model, self.branching, plan, context, rng, lag)


@dataclass(frozen=True)
class Planned(LevelByLevel, Shaped):
    """A tree of a given shape (Sequoia, Chen et al. 2024): the parent of node i is parents[i], which comes
    before it, or the last committed token (-1). Every level is one pass of the model over those nodes that
    have children; a node with n children takes the first n of its branching, in the order of the list."""

    parents: Sequence[Parent]
    branching: Branching = field(default_factory=Distinct)

    def __post_init__(self) -> None:
        if not self.parents:
            raise ValueError("parents: a tree has at least one node")
        levels(tuple(self.parents))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.parents)


@dataclass(frozen=True)
class Expand(LevelByLevel):
    """A tree of depth k: a node of level l has widths[l] children, or one if the list is
    shorter (SpecInfer's expansion ⟨k₁ … k_m⟩, Miao et al. 2023, §3)."""

    k: int
    widths: Sequence[int]
    branching: Branching = field(default_factory=Independent)

    def __post_init__(self) -> None:
        if min(self.widths, default=1) < 1:
            raise ValueError(f"widths: a node has at least one child, found {list(self.widths)}")

    @property
    def room(self) -> int:
        return sum(accumulate(self.each, mul))

    @property
    def depth(self) -> int:
        return self.k

    @property
    def branches(self) -> bool:
        return any(width > 1 for width in self.each)

    @property
    def shape(self) -> tuple[int, ...]:
        return expansion(self.each)

    @property
    def each(self) -> tuple[int, ...]:
        """The number of children of a node by level, beginning with the root."""
        return (*self.widths, *[1] * self.k)[: self.k]


@lru_cache(maxsize=1024)
def expansion(widths: tuple[int, ...]) -> tuple[int, ...]:
    """The parents of a tree in which every node of level l has widths[l] children."""
    parents: list[int] = []
    above = range(ROOT, ROOT + 1)
    for width in widths:
        parents += [node for node in above for _ in range(width)]
        above = range(len(parents) - len(above) * width, len(parents))
    return tuple(parents)


def grow(model: Model, branching: Branching, plan: Sequence[Level], context: Context, rng: Source, lag: int) -> Draft:
    """Draft a planned tree, every level in one pass; `lag` committed tokens before the last may be new to the model."""
    if not plan:
        return Draft.empty(context)
    fed = TokenTree.chain(context.seq.new_zeros((context.rows, 0)))
    token, exists = context.seq, context.live.new_ones((context.rows, 1))  # of the level above; every row has the root
    ids: list[Tensor] = []
    drawn_from: list[Tensor] = []
    there: list[Tensor] = []
    for number, level in enumerate(plan):
        if number:
            inner = constant(plan[number - 1].inner, token.device)
            fed = TokenTree(torch.cat([fed.ids, token[:, inner]], 1), (*fed.parents, *plan[number - 1].above))
            exists = exists[:, inner]
        new = fed.size and exists.shape[1]
        rows = model.expand(context, fed, new, 0 if number else lag, raw=not branching.drawn)
        token, q, exists = offspring(branching, level, rows, exists, rng)
        ids.append(token)
        drawn_from += [] if q is None else [q]
        there.append(exists)
    tree = TokenTree(torch.cat(ids, 1), tuple(parent for level in plan for parent in level.parents))
    usable = constant(tree.topology.depths, token.device) <= drawable(context, len(plan)).unsqueeze(1)
    as_fed = (*(place for level in plan[:-1] for place in level.fed), *[-1] * token.shape[1])
    valid = torch.cat(there, 1) & usable
    return Grown(tree, torch.cat(drawn_from, 1) if drawn_from else None, valid, fed=fed, as_fed=as_fed)


def offspring(branching: Branching, level: Level, rows: Tensor, exists: Tensor, rng: Source) -> Children:
    """The nodes of a level from the rows [B, m, V] of the nodes above, which some rows may lack [B, m]."""
    ids: list[Tensor] = []
    drawn_from: list[Tensor] = []
    exist: list[Tensor] = []
    for places, width in level.families:
        alike = len(level.families) == 1
        index = slice(None) if alike else constant(places, rows.device)
        token, q, there = branching.children(rows[:, index], width, rng)
        ids.append(token.flatten(1))
        drawn_from += [] if q is None else [q.flatten(1, 2)]
        exist.append((there & exists[:, index].unsqueeze(2)).flatten(1))
    return torch.cat(ids, 1), torch.cat(drawn_from, 1) if drawn_from else None, torch.cat(exist, 1)


# --- several drafters -------------------------------------------------------------------------------------------------
# Their drafts as siblings under the last committed token: SpecInfer with several small models.


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
