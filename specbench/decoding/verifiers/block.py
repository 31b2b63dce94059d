"""Block verification: a chain is judged as a whole, and accepted at least as far as token by
token. A draft that is not a chain is refused when a method is built."""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.decoding.protocols import Judged
from specbench.decoding.randomness import Source, Stream
from specbench.decoding.tokens import ROOT, Rank, constant, topology
from specbench.decoding.types import Draft, Verdict, acceptance, at, subtract
from specbench.decoding.verifiers.rejection import (
    Siblings,
    at_levels,
    drawn_from,
    exists,
    nothing_to_judge,
    of_rank,
    overlap,
    replaced,
    siblings,
)


@dataclass(frozen=True)
class Block:
    """Accepts the longest prefix of a chain that any of its nodes accepts (Sun et al. 2024, arXiv 2403.10444, Alg. 2).

    With w_0 = 1 and w_i = min(1, w_{i−1} p_i(x_i)/q_i(x_i)), node i accepts everything up to itself with probability
    s/(s + 1 − w_i), s the mass of (w_i p_{i+1} − q_{i+1})⁺, and the last one with w_i; the next token is drawn from
    that residual. Never accepts less than `Rejection` on average, and the same at temperature 0. `overlap` stays the
    α of the formula, Σ min(p, q), which is then not the share of the tested tokens that is accepted.
    """

    lossless: ClassVar[bool] = True
    judges: ClassVar[Judged] = "chains"

    def judge(self, p: Tensor, draft: Draft, rng: Source) -> Verdict:
        if not draft.tree.size:
            return nothing_to_judge(p, rng)
        (rank,) = draft.tree.topology.ranks
        q, valid = drawn_from(draft, rank, p), exists(draft, rank, p)
        weight = weights(acceptance(p[:, :-1], q, draft.tree.ids))
        hit = rng.bernoulli(chances(p, q, weight, valid), Stream.ACCEPT)
        levels = torch.arange(1, valid.shape[1] + 1, device=p.device)
        accepted = (hit * levels).amax(1)
        path = torch.where(levels <= accepted.unsqueeze(1), levels - 1, -1)
        token = rng.categorical(residual(p, q, weight, valid, accepted), Stream.EMIT)
        shared = torch.minimum(p[:, :-1], q).sum(-1) * valid
        return Verdict(path, accepted, token, at_levels(F.pad(shared, (0, 1)), path))


def weights(ratio: Tensor) -> Tensor:
    """[B, K] float64 the w_i of every node, from p_i(x_i)/q_i(x_i) [B, K]."""
    found = [ratio[:, 0].clamp_max(1)]
    for level in range(1, ratio.shape[1]):
        found.append((found[-1] * ratio[:, level]).clamp_max(1))
    return torch.stack(found, 1)


def chances(p: Tensor, q: Tensor, weight: Tensor, valid: Tensor) -> Tensor:
    """[B, K] float64: the probability that a node alone would accept everything up to itself; 0 if missing."""
    rest = (weight[:, :-1].to(p.dtype).unsqueeze(-1) * p[:, 1:-1] - q[:, 1:]).clamp_min(0).sum(-1).double()
    whole = rest + 1 - weight[:, :-1]
    inner = torch.where(whole > 0, rest / whole, torch.ones_like(whole))
    followed = F.pad(valid[:, 1:], (0, 1))  # a row may have fewer nodes: its last one has no successor
    return torch.where(followed, F.pad(inner, (0, 1)), weight) * valid


def residual(p: Tensor, q: Tensor, weight: Tensor, valid: Tensor, accepted: Tensor) -> Tensor:
    """[B, V] the row of the token after `accepted` [B] nodes: p itself if the row has no further node."""
    index = accepted.unsqueeze(1)
    here = F.pad(weight, (1, 0), value=1.0).gather(1, index).to(p.dtype)  # 1 at the root
    more = F.pad(valid, (0, 1)).gather(1, index)
    row = at(p, accepted)
    return torch.where(more, subtract(row, at(F.pad(q, (0, 0, 0, 1)), accepted), here), row)


# --- traversal --------------------------------------------------------------------------------------------------------
# Traversal verification: a tree is judged from its leaves up, so that a whole path is tried
# before any part of it. All weights depend on the draft alone, so they are computed first, from
# the root down. Only then is it drawn for every node whether the walk would end there.


@dataclass(frozen=True)
class Traversal:
    """Accepts the first path, from the leaves up, that its end accepts (Weng et al. 2025, arXiv 2505.12398).

    A node is drawn with a weight: 1 at the root, min(1, w p(x)/q(x)) at a child x of a node of weight w. Once all
    nodes below a child are rejected, its parent continues with the residual r = (w p − q)⁺ instead of p and with
    s/(s + 1 − w) instead of w, s the mass of r; its next child is weighed by these. A node whose children are all
    rejected is the end of the accepted path with a probability equal to its weight, and the next token is drawn
    from the rest of its row. On a chain it is `Block`. It never accepts less than `Rejection` on average, and
    equally much if all is certain: at temperature 0, and for point masses. `overlap` stays that of `Rejection`.

    It is exact for every tree in which neither the existence nor the draw of a later sibling
    depends on the draws below an earlier one: all shipped drafters draft this way.
    """

    lossless: ClassVar[bool] = True
    judges: ClassVar[Judged] = "trees"

    def judge(self, p: Tensor, draft: Draft, rng: Source) -> Verdict:
        if not draft.tree.size:
            return nothing_to_judge(p, rng)
        plan = planned(draft.tree.parents)
        weight, left = weighed(p, draft, plan)
        last = of_rank(plan.last, left, draft)
        hit = rng.bernoulli(lightened(weight, last)[:, 1:], Stream.ACCEPT)
        end = first_end(hit, plan)
        token = rng.categorical(row_after(end, weight, last), Stream.EMIT)
        path = constant(plan.paths, p.device).view(draft.tree.size + 1, -1)[end]
        shared = overlap(tuple(siblings(p, draft)))
        return Verdict(path, (path >= 0).sum(1), token, at_levels(shared, path))


@dataclass(frozen=True)
class Plan:
    """The part of a traversal that depends on the parents alone.

    families: nodes that are weighed together, children of equal rank on one level, from the root down; before: their
    next older siblings, none for first children. last: the last child of every node that has one. visits: the nodes
    in the order in which they may end the walk. paths: for the root and every node the path to it, padded with -1.
    """

    families: tuple[Rank, ...]
    before: tuple[Rank | None, ...]
    last: Rank
    visits: tuple[int, ...]
    paths: tuple[int, ...]


@lru_cache(maxsize=1024)
def planned(parents: tuple[int, ...]) -> Plan:
    children: dict[int, list[int]] = {node: [] for node in range(ROOT, len(parents))}
    for node, parent in enumerate(parents):
        children[parent].append(node)
    found, before = [], []
    whole = topology(parents)
    for level in range(whole.depth):
        for number, rank in enumerate(whole.ranks):
            nodes = tuple(node for node in rank.nodes if whole.depths[node] == level + 1)
            above = tuple(parents[node] for node in nodes)
            older = tuple(children[parent][number - 1] for parent in above) if number else ()
            found += [Rank(nodes, above)] if nodes else []
            before += [Rank(older, above) if older else None] if nodes else []
    inner = tuple(node for node in children if children[node])
    last = Rank(tuple(children[node][-1] for node in inner), inner)
    paths = tuple(node for end in children for node in path_to(end, parents, whole.depth))
    return Plan(tuple(found), tuple(before), last, tuple(upwards(ROOT, children)), paths)


def path_to(end: int, parents: tuple[int, ...], depth: int) -> list[int]:
    """The nodes from the root to `end`, and -1 after them."""
    path: list[int] = []
    while end != ROOT:
        path.insert(0, end)
        end = parents[end]
    return path + [ROOT] * (depth - len(path))


def upwards(node: int, children: dict[int, list[int]]) -> list[int]:
    """The nodes below a node, each after all nodes below it."""
    return [one for child in children[node] for one in (*upwards(child, children), child)]


def weighed(p: Tensor, draft: Draft, plan: Plan) -> tuple[Tensor, Tensor]:
    """(weights [B, n + 1] float64, rows [B, n + 1, V]) of the root and of all nodes when all
    their children but the last are rejected."""
    weight, left = p.new_ones(p.shape[:2], dtype=torch.float64), p
    first = of_rank(draft.tree.topology.ranks[0], p, draft)
    ratio = weight.new_zeros((p.shape[0], draft.tree.size))
    ratio[:, first.nodes] = ratios(first)
    for family, older in zip(plan.families, plan.before, strict=True):
        if older is not None:
            x = of_rank(older, left, draft)
            left, weight = replaced(x, subtract(x.p, x.q, above(weight, x))), lightened(weight, x)
            x = of_rank(family, left, draft)
            ratio[:, x.nodes] = ratios(x)
        nodes, rows = constant(family.nodes, p.device), constant(tuple(one + 1 for one in family.parents), p.device)
        weight[:, nodes + 1] = (weight[:, rows] * ratio[:, nodes]).clamp_max(1)
    return weight, left


def ratios(x: Siblings) -> Tensor:
    """[B, m] float64 p(x)/q(x) of siblings against the residual of the earlier ones; 0 if a row lacks one."""
    return acceptance(x.p, x.q, x.ids) * x.valid


def above(weight: Tensor, x: Siblings) -> Tensor:
    """[B, m, 1] the weights of the parents, shaped to multiply rows."""
    return weight[:, x.parents].to(x.p.dtype).unsqueeze(-1)


def lightened(weight: Tensor, x: Siblings) -> Tensor:
    """[B, n + 1] the weights when the siblings and all nodes below them are rejected as well."""
    here = weight[:, x.parents]
    rest = (above(weight, x) * x.p - x.q).clamp_min(0).sum(-1).double()
    whole = rest + 1 - here
    after = weight.clone()
    after[:, x.parents] = torch.where(x.valid, torch.where(whole > 0, rest / whole, torch.ones_like(whole)), here)
    return after


def first_end(hit: Tensor, plan: Plan) -> Tensor:
    """[B] the row of the node at which the walk ends: the first visited one that is hit [B, n], else the root's, 0."""
    order = constant(plan.visits, hit.device)
    return torch.where(hit.any(1), order[hit[:, order].long().argmax(1)] + 1, 0)


def row_after(end: Tensor, weight: Tensor, last: Siblings) -> Tensor:
    """[B, V] the residual of the rows at `end` [B] when all children there are rejected; for a leaf its own row."""
    row = at(last.left, end)
    here = (last.parents == end.unsqueeze(1)) & last.valid  # at most one last child has this parent
    share = weight.gather(1, end.unsqueeze(1)).to(row.dtype)
    return torch.where(here.any(1, keepdim=True), subtract(row, at(last.q, here.long().argmax(1)), share), row)
