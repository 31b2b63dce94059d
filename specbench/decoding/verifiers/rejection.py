"""Speculative sampling."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from specbench.decoding.protocols import Judged
from specbench.decoding.randomness import Source, Stream
from specbench.decoding.tokens import ROOT, Rank, constant, picked
from specbench.decoding.types import Draft, Verdict, acceptance, at, point_mass, subtract


@dataclass(frozen=True)
class Rejection:
    """Speculative sampling: accept x with probability p(x)/q(x), else draw from the residual (p − q)⁺.

    Leviathan et al. 2022 §2.3 and Chen et al. 2023 Alg. 2 for a chain; several children of a node are tested in
    their order against the residual of the earlier ones (SpecInfer, Miao et al. 2023, Alg. 2), which is exact for
    independent draws, for draws without replacement and for point masses, if q is what the token was drawn from.
    """

    lossless: ClassVar[bool] = True
    judges: ClassVar[Judged] = "trees"

    def judge(self, p: Tensor, draft: Draft, rng: Source) -> Verdict:
        if not draft.tree.size:
            return nothing_to_judge(p, rng)

        def accepts(x: Siblings) -> Tensor:
            return rng.bernoulli(acceptance(x.p, x.q, x.ids) * x.valid, Stream.ACCEPT)

        walked = walk(p, draft, accepts)
        token = rng.categorical(left_over(walked), Stream.EMIT)
        return Verdict(walked.path, walked.accepted, token, walked.levels(overlap(walked.tested)))


# --- walk -------------------------------------------------------------------------------------------------------------
# The walk that verifiers share: over the siblings of every node in their order, then along the
# accepted path. Siblings are tested one after the other against the residual of the earlier ones
# (SpecInfer, Miao et al. 2023, Alg. 2); a chain has no siblings, so its walk is speculative sampling.


@dataclass(frozen=True)
class Siblings:
    """The s-th children of all nodes that have at least s, m of them.

    nodes [m]; parents [m] the rows of their parents, where row 0 is the root's; ids [B, m]; p [B, m,
    V] the parents' rows after the earlier siblings; q [B, m, V] the distributions of the children;
    valid [B, m] bool: which rows of the batch have them. left [B, n + 1, V]: as p, of all nodes.
    """

    nodes: Tensor
    parents: Tensor
    ids: Tensor
    p: Tensor
    q: Tensor
    valid: Tensor
    left: Tensor


@dataclass(frozen=True)
class Walk:
    """The result of a walk: the siblings in the order of their tests, and the accepted path.

    path [B, depth] nodes, -1 after its end; accepted [B] their number; last [B] the row of the last of them.
    """

    tested: tuple[Siblings, ...]
    path: Tensor
    accepted: Tensor
    last: Tensor

    @property
    def is_chain(self) -> bool:
        """Whether no node has two children: then node i is the child of row i."""
        return len(self.tested) == 1

    def levels(self, chance: Tensor) -> Tensor:
        """[B, depth] chance [B, n + 1] at the node from which each level was tried; 0 after the end of the path."""
        if self.is_chain:  # the general code gives the same by more operators
            depth = self.path.shape[1]
            return chance[:, :depth] * (numbered(depth, chance) <= self.accepted.unsqueeze(1))
        return at_levels(chance, self.path)


Rest = Callable[[Siblings], Tensor]  # all rows [B, n + 1, V] after a test of siblings


def residual(x: Siblings) -> Tensor:
    """The rows minus the siblings' distributions: (p − q)⁺, normalised."""
    return replaced(x, subtract(x.p, x.q))


def replaced(x: Siblings, rows: Tensor) -> Tensor:
    """[B, n + 1, V] the rows before the siblings, with rows [B, m, V] for the parents of those that exist."""
    left = x.left.clone()
    left[:, x.parents] = torch.where(x.valid.unsqueeze(-1), rows, x.p)
    return left


def siblings(p: Tensor, draft: Draft, rest: Rest = residual) -> Iterator[Siblings]:
    """The children of all nodes, first children first; `rest` gives the rows that every test leaves to later ones."""
    left, ranks = p, draft.tree.topology.ranks
    for number, rank in enumerate(ranks):
        x = of_rank(rank, left, draft)
        yield x
        if number + 1 < len(ranks):
            left = rest(x)


def of_rank(rank: Rank, left: Tensor, draft: Draft) -> Siblings:
    """The siblings of a rank, with the remaining rows [B, n + 1, V] of their parents."""
    above = tuple(parent + 1 for parent in rank.parents)  # row 0 is the root's
    nodes, parents = constant(rank.nodes, left.device), constant(above, left.device)
    ids, p = picked(draft.tree.ids, rank.nodes), picked(left, above)
    q, valid = drawn_from(draft, rank, left), exists(draft, rank, left)
    return Siblings(nodes, parents, ids, p, q, valid, left)


def every_node(p: Tensor, draft: Draft) -> Siblings:
    """All nodes at once, each as if it were the only child: for rules without an order of tests."""
    return of_rank(Rank(tuple(range(draft.tree.size)), draft.tree.parents), p, draft)


def walk(p: Tensor, draft: Draft, accepts: Callable[[Siblings], Tensor], rest: Rest = residual) -> Walk:
    """Test the children of every node until `accepts` [B, m] bool takes one, and follow these from the root."""
    if draft.tree.topology.is_chain:
        (x,) = siblings(p, draft, rest)
        return Walk((x,), *along(accepts(x)))
    child = p.new_full(p.shape[:2], -1, dtype=torch.long)  # the accepted child of every node
    tested = []
    for x in siblings(p, draft, rest):
        known = child[:, x.parents]
        child[:, x.parents] = torch.where(accepts(x) & (known < 0), x.nodes, known)
        tested.append(x)
    return Walk(tuple(tested), *follow(child, draft.tree.topology.depth))


def along(passed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As `follow`, for a chain, by fewer operators: its tokens up to the first one that has not passed [B, n]."""
    levels, count = numbered(passed.shape[1], passed), passed.shape[1]
    accepted = torch.where(passed, constant((count,), passed.device), levels).amin(1)
    path = torch.where(levels < accepted.unsqueeze(1), levels, constant((ROOT,), passed.device))
    return path, accepted, accepted


def numbered(count: int, like: Tensor) -> Tensor:
    """[count] the numbers from 0 on, on the device of `like`."""
    return constant(tuple(range(count)), like.device)


def follow(child: Tensor, depth: int) -> tuple[Tensor, Tensor, Tensor]:
    """The accepted children from the root on: child [B, n + 1] → path [B, depth], accepted [B], last row [B]."""
    at_row = child.new_zeros(child.shape[0])
    steps = []
    for _ in range(depth):
        step = child.gather(1, at_row.unsqueeze(1)).squeeze(1)  # stays -1 once the walk has ended: its row has no child
        steps.append(step)
        at_row = torch.where(step >= 0, step + 1, at_row)
    path = torch.stack(steps, 1) if steps else child.new_zeros((child.shape[0], 0))
    return path, (path >= 0).sum(1), at_row


def left_over(walked: Walk) -> Tensor:
    """[B, V] the remaining row after the accepted path: the model's own if no child was rejected."""
    x = walked.tested[-1]
    row, last = at(x.left, walked.last), walked.last.unsqueeze(1)
    if walked.is_chain:
        index = last.clamp_max(x.ids.shape[1] - 1)
        some = x.valid.gather(1, index) & (last < x.ids.shape[1])
    else:
        here = (x.parents == last) & x.valid  # the path's end has at most one of the last siblings
        index, some = here.long().argmax(1), here.any(1, keepdim=True)
    return torch.where(some, subtract(row, at(x.q, index)), row)


def overlap(tested: Sequence[Siblings]) -> Tensor:
    """[B, n + 1] the chance that a child of a node is accepted by p/q, averaged over the draw of the last of them:
    Σ min(p, q) of a single child, the α of the formula (Leviathan et al. 2022, Def. 3.1). [B, n] for a chain."""
    rows = tested[0].left
    if len(tested) == 1:  # a chain, whose last node has no child
        return torch.minimum(tested[0].p, tested[0].q).sum(-1) * tested[0].valid
    miss = rows.new_ones(rows.shape[:2])  # the probability that no child is accepted
    rejected = miss.clone()  # the probability that none of the children so far is, as they were drawn
    for number, x in enumerate(tested):
        miss[:, x.parents] = rejected[:, x.parents] * (1 - torch.minimum(x.p, x.q).sum(-1) * x.valid)
        if number + 1 < len(tested):
            ratio = acceptance(x.p, x.q, x.ids) * x.valid
            rejected[:, x.parents] *= (1 - ratio).clamp_min(0).to(rows.dtype)
    return 1 - miss


def at_levels(chance: Tensor, path: Tensor) -> Tensor:
    root = path.new_zeros((path.shape[0], 1))
    tried_at = torch.cat([root, path[:, :-1] + 1], 1)[:, : path.shape[1]]
    reached = torch.cat([root >= 0, path[:, :-1] >= 0], 1)[:, : path.shape[1]]
    return chance.gather(1, tried_at) * reached


def nothing_to_judge(p: Tensor, rng: Source) -> Verdict:
    """The verdict on an empty draft: a token of the model itself. The general code gives the same, more slowly."""
    none = p.new_zeros((p.shape[0], 0))
    token = rng.categorical(p[:, 0], Stream.EMIT)
    return Verdict(none.long(), torch.zeros_like(token), token, none)


def drawn_from(draft: Draft, rank: Rank, p: Tensor) -> Tensor:
    """[B, m, V] the rows the nodes of a rank were drawn from; a point mass if the draft has no q."""
    if draft.q is not None:
        return picked(draft.q, rank.nodes)
    return point_mass(picked(draft.tree.ids, rank.nodes), p.shape[-1], p.dtype)


def exists(draft: Draft, rank: Rank, p: Tensor) -> Tensor:
    """[B, m] bool: which rows of the batch have the nodes of this rank."""
    if draft.valid is not None:
        return picked(draft.valid, rank.nodes)
    return constant((True,) * len(rank.nodes), p.device, torch.bool).expand(p.shape[0], -1)


# --- token match ------------------------------------------------------------------------------------------------------
# Naive token match.


@dataclass(frozen=True)
class TokenMatch:
    """The model draws its own token at every node; a child equal to it is accepted, else it is emitted.

    Lossless for any way of drafting, because the output is the model's own draw; it accepts Σ p·q of the drafts,
    which is less than the Σ min(p, q) of `Rejection` (methods: naive token match; greedy: the same rule).
    """

    lossless: ClassVar[bool] = True
    judges: ClassVar[Judged] = "trees"

    def judge(self, p: Tensor, draft: Draft, rng: Source) -> Verdict:
        if not draft.tree.size:
            return nothing_to_judge(p, rng)
        own = rng.categorical(p, Stream.EMIT)
        walked = walk(p, draft, lambda x: (own[:, x.parents] == x.ids) & x.valid, unseen)
        token = own.gather(1, walked.last.unsqueeze(1)).squeeze(1)
        return Verdict(walked.path, walked.accepted, token, walked.levels(matches(walked.tested)))


def unseen(x: Siblings) -> Tensor:
    """The rows without the siblings' tokens: a token counts once, however often it was drawn."""
    return replaced(x, x.p.scatter(-1, x.ids.unsqueeze(-1), 0))


def matches(tested: Sequence[Siblings]) -> Tensor:
    """[B, n + 1] Σ p·q: the probability that a child of a node is the model's token."""
    rows = tested[0].left
    hit = rows.new_zeros(rows.shape[:2])
    for x in tested:
        hit[:, x.parents] += (x.p * x.q).sum(-1) * x.valid
    return hit
