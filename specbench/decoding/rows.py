"""Arithmetic on rows [..., V], each the distribution of one token. Knows nothing of trees, drafts or rules."""

import torch
import torch.nn.functional as F
from torch import Tensor


def at(rows: Tensor, index: Tensor) -> Tensor:
    """rows [B, m, V] at index [B] → [B, V]."""
    return rows.gather(1, index.view(-1, 1, 1).expand(-1, 1, rows.shape[-1])).squeeze(1)


def point_mass(ids: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """[..., width] rows that give everything to ids [...]; F.one_hot would read them on the host."""
    return torch.zeros((*ids.shape, width), dtype=dtype, device=ids.device).scatter_(-1, ids.unsqueeze(-1), 1)


def likeliest(scores: Tensor, most: int) -> Tensor:
    """[..., most] the ids of the greatest of scores [..., V], the greatest first; -1 where there is none but -inf."""
    there = min(most, scores.shape[-1])
    top = scores.topk(there)
    ids = top.indices.masked_fill(top.values == -torch.inf, -1)
    return F.pad(ids, (0, most - there), value=-1) if there < most else ids


def acceptance(p: Tensor, q: Tensor, ids: Tensor) -> Tensor:
    """p(x)/q(x) [B, m] float64 of the drawn tokens ids [B, m]; 0 where q(x) is 0, which an honest q never is."""
    p_x = p.gather(-1, ids.unsqueeze(-1)).squeeze(-1).double()
    q_x = q.gather(-1, ids.unsqueeze(-1)).squeeze(-1).double()
    return torch.where(q_x > 0, p_x / q_x, torch.zeros_like(p_x))


def subtract(p: Tensor, q: Tensor, weight: Tensor | None = None) -> Tensor:
    """The residual (weight · p − q)⁺ normalised over the last dimension; p itself where nothing is left (p = q)."""
    rest = ((p if weight is None else weight * p) - q).clamp_min(0)
    mass = rest.sum(-1, keepdim=True)
    return torch.where(mass > 0, rest / mass.clamp_min(torch.finfo(p.dtype).tiny), p)
