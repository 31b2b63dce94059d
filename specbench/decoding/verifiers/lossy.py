"""Lossy verifiers: rules that accept more than is right, and say exactly how far their tokens are from the model's law.

They know laws and draws, as `verify`. A tree of drawn tokens is refused where a method is built: how far its tokens are
from the law depends on what its other children might have been, which no verdict sees.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from specbench.decoding.randomness import Source, Stream
from specbench.decoding.tokens import TokenTree, ancestors, constant
from specbench.decoding.types import Draft, Judged, Verdict
from specbench.decoding.verifiers.rejection import (
    acceptance,
    at,
    drawn_from,
    exists,
    left_over,
    nothing_to_judge,
    overlap_along,
    places,
    point_mass,
    subtract,
    walk,
)


@dataclass(frozen=True)
class Lenient:
    """Accepts x with probability p(x)/(l q(x)), else goes on with the residual (p − q)⁺ (Leviathan et al. 2022, A.5).

    The lenience l, in (0, 1], stands where q is compared with p, and nowhere else: the residual is that of `Rejection`,
    which this is where l = 1. Accepts Σ min(p/l, q) of the drafts and makes no token more than 1/l times as likely as
    the model does. Exact where p gives all to one token, as at temperature 0.
    """

    lenience: float
    lossless: ClassVar[bool] = False
    judges: ClassVar[Judged] = "point trees"

    def __post_init__(self) -> None:
        if not 0 < self.lenience <= 1:
            raise ValueError(f"lenience: must lie in (0, 1], where 1 is lossless, found {self.lenience}")

    def judge(self, p: Tensor, draft: Draft, rng: Source) -> Verdict:
        if not draft.tree.size:
            return exact_token(p, rng)
        residual = p
        child = p.new_full(p.shape[:2], -1, dtype=torch.long)  # the accepted child of every node
        missed = p.new_ones(p.shape[:2])  # the chance that none of the children so far is accepted
        law = torch.zeros_like(p)  # of the token emitted after every node
        for rank in draft.tree.topology.ranks:
            nodes, parents = places(rank, p)
            r, q, valid = residual[:, parents], drawn_from(draft, rank, p), exists(draft, rank, p)
            ratio = acceptance(r, q, draft.tree.ids[:, nodes]) / self.lenience * valid
            accept = rng.bernoulli(ratio, Stream.ACCEPT) & (child[:, parents] < 0)
            child[:, parents] = torch.where(accept, nodes, child[:, parents])
            taken = torch.minimum(r / self.lenience, q) * valid.unsqueeze(-1)
            law[:, parents] += missed[:, parents].unsqueeze(-1) * taken
            missed[:, parents] *= 1 - taken.sum(-1)
            residual = residual.clone()
            residual[:, parents] = torch.where(valid.unsqueeze(-1), subtract(r, q), r)
        path, accepted, last = walk(child, draft)
        token = rng.categorical(left_over(p, draft, last), Stream.EMIT)
        distance = (law + missed.unsqueeze(-1) * residual - p).abs().sum(-1) / 2
        return Verdict(path, accepted, token, overlap_along(1 - missed, path), distance_along(distance, path))


@dataclass(frozen=True)
class Typical:
    """Accepts x where p(x) > min(ε, δ exp(−H(p))), H the entropy in nats: typical acceptance (Medusa, Cai et al. 2024,
    §2.3.1; the numbers are those of its code).

    Takes the longest accepted path, of several the one with the highest Σ log p, and draws the token after it from p:
    nothing makes up for what was accepted too often. Exact where p gives all to one token, as at temperature 0.
    """

    epsilon: float = 0.09
    delta: float = 0.3
    lossless: ClassVar[bool] = False
    judges: ClassVar[Judged] = "point trees"

    def __post_init__(self) -> None:
        for name, value in (("epsilon", self.epsilon), ("delta", self.delta)):
            if not 0 <= value <= 1:
                raise ValueError(f"{name}: must lie in [0, 1], found {value}")

    def judge(self, p: Tensor, draft: Draft, rng: Source) -> Verdict:
        tree = draft.tree
        if not tree.size:
            return exact_token(p, rng)
        parents = constant(tuple(parent + 1 for parent in tree.parents), p.device)
        rows = p[:, parents]
        q = draft.q if draft.q is not None else point_mass(tree.ids, p.shape[-1], p.dtype)
        valid = draft.valid if draft.valid is not None else torch.ones_like(tree.ids, dtype=torch.bool)
        typical = self.typical(p)[:, parents]
        passed = typical.gather(-1, tree.ids.unsqueeze(-1)).squeeze(-1) & valid
        path, on, last = longest(tree, passed, rows.gather(-1, tree.ids.unsqueeze(-1)).squeeze(-1))
        token = rng.categorical(at(p, last), Stream.EMIT)

        kept = q * typical
        share = kept.sum(-1)  # of the draws, how many pass
        distance = (kept - share.unsqueeze(-1) * rows).abs().sum(-1) / 2  # of q on what passes + (1 − share) p, from p
        # a child that passes and lies on another path decides nothing; of point masses those that fail are at 0
        decides = valid & (on | ~passed)
        share, distance = (p.new_zeros(p.shape[:2]).index_add(1, parents, x * decides) for x in (share, distance))
        return Verdict(path, on.sum(1), token, overlap_along(share, path), distance_along(distance, path))

    def typical(self, p: Tensor) -> Tensor:
        """[..., V] bool: which tokens pass under the laws p [..., V]."""
        entropy: Tensor = torch.special.entr(p).sum(-1, keepdim=True)
        return p > (self.delta * (-entropy).exp()).clamp_max(self.epsilon)


def exact_token(p: Tensor, rng: Source) -> Verdict:
    """The verdict on an empty draft, in which no rule has a say."""
    return replace(nothing_to_judge(p, rng), distance=p.new_zeros((p.shape[0], 1)))


def longest(tree: TokenTree, passed: Tensor, chance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The longest path of nodes that passed [B, n], of several the one with the highest product of chance [B, n].

    → path [B, depth], -1 behind its end; on [B, n] whether a node lies on it; last [B] the row of its last node.
    """
    above = ancestors(tree.parents, passed.device)
    depths = constant(tree.topology.depths, passed.device)
    length = depths * ~(above & ~passed.unsqueeze(1)).any(-1)  # of the path to a node, 0 where a node of it failed
    logs = torch.where(passed, chance.double().log(), torch.zeros_like(chance, dtype=torch.double))
    weight = (above * logs.unsqueeze(1)).sum(-1)
    most = length.amax(1, keepdim=True)
    end = torch.where(length == most, weight, -torch.inf).argmax(1)
    on = above[end] & (most > 0)
    levels = constant(tuple(range(1, tree.topology.depth + 1)), passed.device)
    at_level = on.unsqueeze(1) & (depths == levels.unsqueeze(1))  # [B, depth, n]
    path = torch.where(at_level.any(-1), at_level.long().argmax(-1), -1)
    return path, on, torch.where(most.squeeze(1) > 0, end + 1, torch.zeros_like(end))


def distance_along(distance: Tensor, path: Tensor) -> Tensor:
    """[B, depth + 1] distance [B, n + 1] at the root and at the nodes of a path [B, depth]; 0 behind its end."""
    rows = torch.cat([path.new_zeros((path.shape[0], 1)), path + 1], 1)
    reached = torch.cat([path.new_ones((path.shape[0], 1), dtype=torch.bool), path >= 0], 1)
    return distance.gather(1, rows) * reached
