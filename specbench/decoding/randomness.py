"""The one source of randomness: `bernoulli` and `categorical` on whole tensors, injected everywhere.

Production draws fresh float64 uniforms from one generator per prompt, seeded once. Tests inject sources that
enumerate, play back a tape or audit reuse; `specbench` itself must not know which source it was given.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Protocol

import torch
from torch import Tensor


class Stream(StrEnum):
    """What a draw decides."""

    DRAFT = "draft"
    ACCEPT = "accept"
    EMIT = "emit"  # the token after the accepted ones: one draw, from the residual (correction) or from p (bonus)


class Source(Protocol):
    """Draws whole tensors; every element is independent of all others."""

    def bernoulli(self, probs: Tensor, stream: Stream) -> Tensor:
        """bool, same shape: true with probability min(probs, 1); never where probs is 0."""
        ...

    def categorical(self, probs: Tensor, stream: Stream) -> Tensor:
        """[...] indices drawn from [..., V] (need not be normalised); never an index whose probability is 0."""
        ...


Uniforms = Callable[[tuple[int, ...], Stream], Tensor]  # float64 in [0, 1)


class FromUniforms:
    """A source that turns uniforms into decisions: u < probs, and inversion (CPU) or an exponential race (CUDA)."""

    def __init__(self, uniforms: Uniforms) -> None:
        self._uniforms = uniforms

    def bernoulli(self, probs: Tensor, stream: Stream) -> Tensor:
        return self._uniforms(tuple(probs.shape), stream) < probs

    def categorical(self, probs: Tensor, stream: Stream) -> Tensor:
        if probs.device.type == "cuda":
            return race(probs, self._uniforms(tuple(probs.shape), stream))
        return inversion(probs, self._uniforms(tuple(probs.shape[:-1]), stream))


def inversion(probs: Tensor, u: Tensor) -> Tensor:
    """Inverse of the distribution function: probs [..., V], u [...] → indices [...]. One pass, fast on a CPU."""
    cdf = probs.double().cumsum(-1)
    total = cdf[..., -1:]
    below = torch.nextafter(total, torch.zeros_like(total))  # u · total may round up to total, where no index lies
    index = torch.searchsorted(cdf, torch.minimum(u.unsqueeze(-1) * total, below), right=True).squeeze(-1)
    return index.clamp_max(probs.shape[-1] - 1)  # a row of NaN is found out later; until then its index must be one


def race(probs: Tensor, u: Tensor) -> Tensor:
    """Exponential race: the first of V clocks with rates probs to ring. Parallel over V, so fast on a GPU."""
    rings = -torch.log1p(-u)  # Exp(1); 0 where u is 0, which would win against everything
    return (probs.double() / rings.clamp_min(torch.finfo(torch.float64).tiny)).argmax(-1)


class SeededUniforms:
    """Fresh draws from one generator per row, so that a row's draws do not depend on the rows beside it."""

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self._device = device
        self._generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]

    def __call__(self, shape: tuple[int, ...], stream: Stream) -> Tensor:
        if shape[0] != len(self._generators):
            raise ValueError(f"{shape[0]} rows asked of a source that was seeded for {len(self._generators)}")
        rows = [torch.rand(shape[1:], generator=g, dtype=torch.float64, device=self._device) for g in self._generators]
        return rows[0].unsqueeze(0) if len(rows) == 1 else torch.stack(rows)


def seeded(seeds: Sequence[int], device: torch.device) -> Source:
    """The source of production: one seed per row, seeded here and never again."""
    return FromUniforms(SeededUniforms(seeds, device))
