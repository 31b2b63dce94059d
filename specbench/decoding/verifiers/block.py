"""Block verification: a chain is judged as a whole, and accepted at least as far as token by token.

Knows rows and draws; must not know models. A draft that is no chain is refused where a method is built.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.decoding.protocols import Judged
from specbench.decoding.randomness import Source, Stream
from specbench.decoding.rows import acceptance, at, subtract
from specbench.decoding.types import Draft, Verdict
from specbench.decoding.verifiers.walk import at_levels, drawn_from, exists, nothing_to_judge


@dataclass(frozen=True)
class Block:
    """Accepts the longest prefix of a chain that any of its nodes accepts (Sun et al. 2024, arXiv 2403.10444, Alg. 2).

    With w_0 = 1 and w_i = min(1, w_{i−1} p_i(x_i)/q_i(x_i)), node i accepts everything up to itself with the chance
    s/(s + 1 − w_i), s the mass of (w_i p_{i+1} − q_{i+1})⁺, and the last one with w_i; what follows is drawn from that
    residual. Never accepts less than `Rejection` in the mean, and the same at temperature 0. `overlap` stays the α of
    the formula, Σ min(p, q), which is no longer the share of the tested tokens that is accepted.
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
    """[B, K] float64: how likely a node accepts everything up to itself, whatever the others do; 0 where none is."""
    rest = (weight[:, :-1].to(p.dtype).unsqueeze(-1) * p[:, 1:-1] - q[:, 1:]).clamp_min(0).sum(-1).double()
    whole = rest + 1 - weight[:, :-1]
    inner = torch.where(whole > 0, rest / whole, torch.ones_like(whole))
    followed = F.pad(valid[:, 1:], (0, 1))  # a row may have fewer nodes: its last one has no successor
    return torch.where(followed, F.pad(inner, (0, 1)), weight) * valid


def residual(p: Tensor, q: Tensor, weight: Tensor, valid: Tensor, accepted: Tensor) -> Tensor:
    """[B, V] the row of the token after `accepted` [B] nodes: p itself where the row has no further node."""
    index = accepted.unsqueeze(1)
    here = F.pad(weight, (1, 0), value=1.0).gather(1, index).to(p.dtype)  # 1 at the root
    more = F.pad(valid, (0, 1)).gather(1, index)
    row = at(p, accepted)
    return torch.where(more, subtract(row, at(F.pad(q, (0, 0, 0, 1)), accepted), here), row)
