"""The one source of randomness: `bernoulli` and `categorical` on whole tensors, injected everywhere.

Production draws fresh float64 uniforms from one generator per prompt, seeded once. Tests inject sources that
enumerate, play back a tape or audit reuse; `specbench` itself must not know which source it was given.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class FromUniforms:
    """A source that turns uniforms into decisions: u < probs, and inversion (CPU) or an exponential race (CUDA).

    certain: every row gives all to one index, as all do at temperature 0; then it is looked for instead of drawn, which
    takes a quarter of the time.
    """

    uniforms: Uniforms
    certain: bool = False

    def bernoulli(self, probs: Tensor, stream: Stream) -> Tensor:
        return self.uniforms(tuple(probs.shape), stream) < probs

    def categorical(self, probs: Tensor, stream: Stream) -> Tensor:
        if self.certain:
            return probs.max(-1).indices  # on a CPU twice as fast as argmax
        if probs.device.type != "cpu":
            return race(probs, self.uniforms(tuple(probs.shape), stream))
        return inversion(probs, self.uniforms(tuple(probs.shape[:-1]), stream))


def inversion(probs: Tensor, u: Tensor) -> Tensor:
    """Inverse of the distribution function: probs [..., V], u [...] → indices [...]. One pass, fast on a CPU."""
    cdf = probs.cumsum(-1, dtype=torch.float64)
    total = cdf[..., -1:]
    below = torch.nextafter(total, torch.zeros_like(total))  # u · total may round up to total, where no index lies
    index = torch.searchsorted(cdf, torch.minimum(u.unsqueeze(-1) * total, below), right=True).squeeze(-1)
    return index.clamp_max(probs.shape[-1] - 1)  # a row of NaN is found out later; until then its index must be one


def race(probs: Tensor, u: Tensor) -> Tensor:
    """Exponential race: the first of V clocks with rates probs to ring. Parallel over V, so fast on a GPU."""
    rings = -torch.log1p(-u)  # Exp(1); 0 where u is 0, which would win against everything
    return (probs.double() / rings.clamp_min(torch.finfo(torch.float64).tiny)).argmax(-1)


class SeededUniforms:
    """Fresh draws, one generator per row and stream: what a row draws depends neither on the rows beside it, nor on how
    many draws of another kind were made in between. So a tier may draw a whole round at once, and gets the same.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self._device = device
        self.generators = {
            stream: [torch.Generator(device).manual_seed(seed_of(seed, stream)) for seed in seeds] for stream in Stream
        }

    def reseed(self, row: int, seed: int) -> None:
        """A new sequence begins in `row`, which draws from now on as it would alone."""
        for stream, generators in self.generators.items():
            generators[row] = torch.Generator(self._device).manual_seed(seed_of(seed, stream))

    def __call__(self, shape: tuple[int, ...], stream: Stream) -> Tensor:
        generators = self.generators[stream]
        if shape[0] != len(generators):
            raise ValueError(f"{shape[0]} rows asked of a source that was seeded for {len(generators)}")
        rows = [torch.rand(shape[1:], generator=g, dtype=torch.float64, device=self._device) for g in generators]
        return rows[0].unsqueeze(0) if len(rows) == 1 else torch.stack(rows)


def seed_of(seed: int, stream: Stream) -> int:
    """A seed of 63 bits for one stream of a row."""
    return int.from_bytes(hashlib.sha256(f"{stream} {seed}".encode()).digest()[:8]) >> 1


class Counted:
    """Uniforms that note how many every call of a stream gives to a row."""

    def __init__(self, uniforms: Uniforms) -> None:
        self._uniforms = uniforms
        self.sizes: dict[Stream, list[int]] = {}

    def __call__(self, shape: tuple[int, ...], stream: Stream) -> Tensor:
        drawn = self._uniforms(shape, stream)
        self.sizes.setdefault(stream, []).append(drawn.numel() // shape[0])
        return drawn


class Drawn:
    """Uniforms of one round that were drawn before it began: [B, n] per stream, handed out in order."""

    def __init__(self, before: Mapping[Stream, Tensor]) -> None:
        self._left = dict(before)

    def __call__(self, shape: tuple[int, ...], stream: Stream) -> Tensor:
        size = torch.Size(shape).numel() // shape[0]
        left = self._left[stream]
        self._left[stream] = left[:, size:]
        return left[:, :size].reshape(shape)


def seeded(seeds: Sequence[int], device: torch.device, certain: bool = False) -> FromUniforms:
    """The source of production: one seed per row, seeded here and never again."""
    return FromUniforms(SeededUniforms(seeds, device), certain)
