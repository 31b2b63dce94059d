"""Verifiers: rules for one node, and the walk over the tree that they share.

They know laws and draws; they must not know models, caches or clocks.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from specbench.decoding.randomness import Source, Stream
from specbench.decoding.tokens import Rank, constant
from specbench.decoding.types import Draft, Judged, Verdict


@dataclass(frozen=True)
class Rejection:
    """Speculative sampling: accept x with probability p(x)/q(x), else go on with the residual (p − q)⁺.

    Leviathan et al. 2022 §2.3 and Chen et al. 2023 Alg. 2 for a chain; several children of a node are tested in their
    order against the residual that the earlier ones left (SpecInfer, Miao et al. 2023, Alg. 2), which is exact for
    independent draws, for draws without replacement and for point masses, if q is what the token was drawn from.
    """

    lossless: ClassVar[bool] = True
    judges: ClassVar[Judged] = "trees"

    def judge(self, p: Tensor, draft: Draft, rng: Source) -> Verdict:
        ranks = draft.tree.topology.ranks
        if not ranks:
            return nothing_to_judge(p, rng)
        residual = p
        child = p.new_full(p.shape[:2], -1, dtype=torch.long)  # the accepted child of every node
        miss = p.new_ones(p.shape[:2])  # the chance that no child is accepted, averaged over the last child's draw
        rejected = p.new_ones(p.shape[:2])  # the chance that none of the children drawn so far is accepted
        for number, rank in enumerate(ranks):
            nodes, parents = places(rank, p)
            r, q, valid = residual[:, parents], drawn_from(draft, rank, p), exists(draft, rank, p)
            ratio = acceptance(r, q, draft.tree.ids[:, nodes]) * valid
            accept = rng.bernoulli(ratio, Stream.ACCEPT) & (child[:, parents] < 0)
            child[:, parents] = torch.where(accept, nodes, child[:, parents])
            miss[:, parents] = rejected[:, parents] * (1 - torch.minimum(r, q).sum(-1) * valid)
            rejected[:, parents] *= (1 - ratio).clamp_min(0).to(p.dtype)
            if number + 1 < len(ranks):
                residual = residual.clone()
                residual[:, parents] = torch.where(valid.unsqueeze(-1), subtract(r, q), r)
        path, accepted, last = walk(child, draft)
        token = rng.categorical(left_over(p, draft, last), Stream.EMIT)
        return Verdict(path, accepted, token, overlap_along(1 - miss, path))


def nothing_to_judge(p: Tensor, rng: Source) -> Verdict:
    """The verdict on an empty draft: a token of the model itself. What follows would come to the same, more slowly."""
    none = p.new_zeros((p.shape[0], 0))
    token = rng.categorical(p[:, 0], Stream.EMIT)
    return Verdict(none.long(), torch.zeros_like(token), token, none)


@dataclass(frozen=True)
class TokenMatch:
    """The model draws its own token at every node; a child that is the same token is accepted, else it is emitted.

    Lossless for any way of drafting, because what is emitted is the model's own draw; it accepts Σ p·q of the drafts,
    which is less than the Σ min(p, q) of `Rejection` (methods: naive token match; greedy: the same rule).
    """

    lossless: ClassVar[bool] = True
    judges: ClassVar[Judged] = "trees"

    def judge(self, p: Tensor, draft: Draft, rng: Source) -> Verdict:
        ranks = draft.tree.topology.ranks
        own = rng.categorical(p, Stream.EMIT)
        child = p.new_full(p.shape[:2], -1, dtype=torch.long)
        hit = p.new_zeros(p.shape[:2])
        unseen = p  # what of p lies on none of the earlier siblings: a token counts once, however often it was drawn
        for number, rank in enumerate(ranks):
            nodes, parents = places(rank, p)
            valid = exists(draft, rank, p)
            match = (own[:, parents] == draft.tree.ids[:, nodes]) & valid & (child[:, parents] < 0)
            child[:, parents] = torch.where(match, nodes, child[:, parents])
            hit[:, parents] += (unseen[:, parents] * drawn_from(draft, rank, p)).sum(-1) * valid
            if number + 1 < len(ranks):
                rest = unseen[:, parents].scatter(-1, draft.tree.ids[:, nodes].unsqueeze(-1), 0)
                unseen = unseen.clone()
                unseen[:, parents] = torch.where(valid.unsqueeze(-1), rest, unseen[:, parents])
        path, accepted, last = walk(child, draft)
        return Verdict(path, accepted, own.gather(1, last.unsqueeze(1)).squeeze(1), overlap_along(hit, path))


def places(rank: Rank, p: Tensor) -> tuple[Tensor, Tensor]:
    """[m] the nodes of a rank and [m] the rows of p that belong to their parents: row 0 is the root's."""
    return constant(rank.nodes, p.device), constant(tuple(parent + 1 for parent in rank.parents), p.device)


def drawn_from(draft: Draft, rank: Rank, p: Tensor) -> Tensor:
    """[B, m, V] the laws the nodes of a rank were drawn from; a point mass where the draft gives none."""
    nodes, _ = places(rank, p)
    if draft.q is not None:
        return draft.q[:, nodes]
    return point_mass(draft.tree.ids[:, nodes], p.shape[-1], p.dtype)


def point_mass(ids: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """[..., width] laws that give everything to ids [...]; F.one_hot would read them on the host."""
    return torch.zeros((*ids.shape, width), dtype=dtype, device=ids.device).scatter_(-1, ids.unsqueeze(-1), 1)


def exists(draft: Draft, rank: Rank, p: Tensor) -> Tensor:
    """[B, m] bool: which rows have the nodes of this rank."""
    if draft.valid is not None:
        return draft.valid[:, places(rank, p)[0]]
    return p.new_ones((p.shape[0], len(rank.nodes)), dtype=torch.bool)


def acceptance(p: Tensor, q: Tensor, ids: Tensor) -> Tensor:
    """p(x)/q(x) [B, m] of the drawn tokens ids [B, m]; 0 where q(x) is 0, which an honest q never is."""
    p_x = p.gather(-1, ids.unsqueeze(-1)).squeeze(-1).double()
    q_x = q.gather(-1, ids.unsqueeze(-1)).squeeze(-1).double()
    return torch.where(q_x > 0, p_x / q_x, torch.zeros_like(p_x))


def subtract(p: Tensor, q: Tensor, weight: Tensor | None = None) -> Tensor:
    """The residual (weight · p − q)⁺ normalised over the last dimension; p itself where nothing is left (p = q)."""
    rest = ((p if weight is None else weight * p) - q).clamp_min(0)
    mass = rest.sum(-1, keepdim=True)
    return torch.where(mass > 0, rest / mass.clamp_min(torch.finfo(p.dtype).tiny), p)


def left_over(p: Tensor, draft: Draft, last: Tensor) -> Tensor:
    """[B, V] the law of the token after the accepted path: p at node `last` [B] less the q of its rejected children."""
    row = at(p, last)
    for rank in draft.tree.topology.ranks:
        _, parents = places(rank, p)
        here = (parents == last.unsqueeze(1)) & exists(draft, rank, p)  # at most one child of this rank hangs on `last`
        q = at(drawn_from(draft, rank, p), here.long().argmax(1))
        row = torch.where(here.any(1, keepdim=True), subtract(row, q), row)
    return row


def at(rows: Tensor, index: Tensor) -> Tensor:
    """rows [B, m, V] at index [B] → [B, V]."""
    return rows.gather(1, index.view(-1, 1, 1).expand(-1, 1, rows.shape[-1])).squeeze(1)


def walk(child: Tensor, draft: Draft) -> tuple[Tensor, Tensor, Tensor]:
    """Follow the accepted children from the root: child [B, n + 1] → path [B, depth], accepted [B], last row [B]."""
    at_row = child.new_zeros(child.shape[0])
    steps = []
    for _ in range(draft.tree.topology.depth):
        step = child.gather(1, at_row.unsqueeze(1)).squeeze(1)  # stays -1 once the walk has ended: its row has no child
        steps.append(step)
        at_row = torch.where(step >= 0, step + 1, at_row)
    path = torch.stack(steps, 1) if steps else child.new_zeros((child.shape[0], 0))
    return path, (path >= 0).sum(1), at_row


def overlap_along(chance: Tensor, path: Tensor) -> Tensor:
    """[B, depth] chance [B, n + 1] at the node from which each level was tried; 0 behind the end of the path."""
    root = path.new_zeros((path.shape[0], 1))
    tried_at = torch.cat([root, path[:, :-1] + 1], 1)[:, : path.shape[1]]
    reached = torch.cat([root >= 0, path[:, :-1] >= 0], 1)[:, : path.shape[1]]
    return chance.gather(1, tried_at) * reached
