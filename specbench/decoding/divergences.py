"""The distance of a student's distribution from a teacher's: the losses that drafts are trained with.

Every loss is a function of p [..., V], the teacher's probabilities, and of the student's logits [..., V]; it gives
[...], in nats or as a share of probability, and is differentiable in the logits. p may sum to less than one, if the
student has only a part of the teacher's vocabulary; the losses then equal those over the whole up to a constant.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

LEAST = 1e-12  # lower bound of overlaps: two rows without a common token have no gradient in any case


class Divergence(Protocol):
    """A loss of a student's row against its teacher's."""

    nats: ClassVar[bool] = True  # the unit; otherwise it is a share of probability

    def __call__(self, p: Tensor, logits: Tensor) -> Tensor:
        """p [..., V] and logits [..., V] → the loss of every row [...]."""


@dataclass(frozen=True)
class ForwardKL(Divergence):
    """KL(p ‖ q) = Σ p·log(p ÷ q): the student must cover every token that the teacher may emit."""

    def __call__(self, p: Tensor, logits: Tensor) -> Tensor:
        return relative_entropy(p, F.log_softmax(logits, -1))


@dataclass(frozen=True)
class ReverseKL(Divergence):
    """KL(q ‖ p): the student may cover only some of the teacher's tokens, but must emit no others."""

    def __call__(self, p: Tensor, logits: Tensor) -> Tensor:
        return relative_entropy(logits.softmax(-1), p.clamp_min(LEAST).log())


@dataclass(frozen=True)
class JSD(Divergence):
    """The generalised Jensen–Shannon divergence β·KL(p ‖ m) + (1 − β)·KL(q ‖ m), m = β·p + (1
    − β)·q (GKD, Agarwal et al. 2023, arXiv 2306.13649, eq. 1). ValueError unless 0 < β < 1."""

    beta: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.beta < 1:
            raise ValueError(f"beta must be between 0 and 1, not {self.beta}")

    def __call__(self, p: Tensor, logits: Tensor) -> Tensor:
        q = logits.softmax(-1)
        log_m = (self.beta * p + (1 - self.beta) * q).clamp_min(LEAST).log()
        return self.beta * relative_entropy(p, log_m) + (1 - self.beta) * relative_entropy(q, log_m)


@dataclass(frozen=True)
class TotalVariation(Divergence):
    """½ Σ abs(p − q) = 1 − α (Leviathan et al. 2022, cor. 3.6). From a cold start its gradient vanishes."""

    nats: ClassVar[bool] = False

    def __call__(self, p: Tensor, logits: Tensor) -> Tensor:
        return (p - logits.softmax(-1)).abs().sum(-1) / 2


@dataclass(frozen=True)
class Overlap(Divergence):
    """−log α = −log Σ min(p, q): total variation with a gradient even if nothing is accepted yet (arXiv 2602.23881)."""

    def __call__(self, p: Tensor, logits: Tensor) -> Tensor:
        return -overlap(p, logits.softmax(-1)).clamp_min(LEAST).log()


@dataclass(frozen=True)
class Hybrid(Divergence):
    """λ·KL(p ‖ q) + (1 − λ)·TV with λ = e^(−3α), which is not differentiated: KL until drafts
    are accepted, then total variation, which determines acceptance (arXiv 2602.23881)."""

    def __call__(self, p: Tensor, logits: Tensor) -> Tensor:
        log_q = F.log_softmax(logits, -1)
        q = log_q.exp()
        weight = (-3 * overlap(p, q.detach())).exp()
        return weight * relative_entropy(p, log_q) + (1 - weight) * (p - q).abs().sum(-1) / 2


def relative_entropy(p: Tensor, log_q: Tensor) -> Tensor:
    """[...] Σ p·log p − p·log q of rows [..., V]; if p is 0, a term is 0 and so is its gradient."""
    return (p * p.clamp_min(LEAST).log() - torch.where(p > 0, p * log_q, 0.0)).sum(-1)


def overlap(p: Tensor, q: Tensor) -> Tensor:
    """[...] α = Σ min(p, q) of rows [..., V]."""
    return torch.minimum(p, q).sum(-1)


NAMES: Mapping[str, Divergence] = {
    "forward-kl": ForwardKL(),
    "reverse-kl": ReverseKL(),
    "jsd": JSD(),
    "tv": TotalVariation(),
    "overlap": Overlap(),
    "hybrid": Hybrid(),
}


def divergence(name: str, beta: float) -> Divergence:
    """The loss by its name; β is used by jsd."""
    return JSD(beta) if name == "jsd" else NAMES[name]
