"""The one source of randomness: `bernoulli` and `categorical` on whole tensors, injected everywhere.

Production draws fresh float64 uniforms from one generator per prompt, seeded once. Tests inject
sources that enumerate, play back a tape or audit reuse.
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import torch
from torch import Tensor


class Stream(StrEnum):
    """The purpose of a draw."""

    DRAFT = "draft"
    ACCEPT = "accept"
    EMIT = "emit"  # the token after the accepted ones: one draw, from the residual (correction) or from p (bonus)


class Source(Protocol):
    """Draws whole tensors; every element is independent of all others."""

    def bernoulli(self, probs: Tensor, stream: Stream) -> Tensor:
        """bool, same shape: true with probability min(probs, 1); never where probs is 0."""

    def categorical(self, probs: Tensor, stream: Stream) -> Tensor:
        """[...] indices drawn from [..., V] (need not be normalised); never an index whose probability is 0."""


Uniforms = Callable[[tuple[int, ...], Stream], Tensor]  # float64 in [0, 1)


@dataclass(frozen=True)
class FromUniforms:
    """A source that turns uniforms into decisions: u < probs, and inversion (CPU) or an exponential race (CUDA).

    certain: every row is a point mass, as at temperature 0; finding it instead of drawing takes
    a quarter of the time. agree: makes several processes take the same decisions.
    """

    uniforms: Uniforms
    certain: bool = False
    agree: Callable[[Tensor], Tensor] | None = None

    def bernoulli(self, probs: Tensor, stream: Stream) -> Tensor:
        accepted = self.uniforms(tuple(probs.shape), stream) < probs
        return accepted if self.agree is None else self.agree(accepted)

    def categorical(self, probs: Tensor, stream: Stream) -> Tensor:
        index = self._index(probs, stream)
        return index if self.agree is None else self.agree(index)

    def _index(self, probs: Tensor, stream: Stream) -> Tensor:
        if self.certain:
            return probs.max(-1).indices  # on a CPU twice as fast as argmax
        if probs.device.type != "cpu":
            return race(probs, self.uniforms(tuple(probs.shape), stream))
        return inversion(probs, self.uniforms(tuple(probs.shape[:-1]), stream))


def inversion(probs: Tensor, u: Tensor) -> Tensor:
    """Inverse of the distribution function: probs [..., V], u [...] → indices [...]. One pass, fast on a CPU."""
    cdf = probs.cumsum(-1, dtype=torch.float64)
    total = cdf[..., -1:]
    below = torch.nextafter(total, torch.zeros_like(total))  # u · total may round up to total, beyond the last index
    index = torch.searchsorted(cdf, torch.minimum(u.unsqueeze(-1) * total, below), right=True).squeeze(-1)
    return index.clamp_max(probs.shape[-1] - 1)  # a row of NaN is detected later; until then its index must be valid


def race(probs: Tensor, u: Tensor) -> Tensor:
    """Exponential race: the first of V clocks with rates probs to ring. Parallel over V, so fast on a GPU."""
    rings = torch.log1p(-u)  # the negative of Exp(1); 0 if u is 0, which would always win
    return (probs / rings.clamp_max(-torch.finfo(torch.float64).tiny)).argmin(-1)


AHEAD, RACED = 256, 1 << 17  # numbers per generator call: for one per draw, and for one per token of a race


class SeededUniforms:
    """Fresh draws, one generator per row and stream: a row's draws depend neither on other rows nor on the
    number of draws of other kinds in between. So a tier may draw a whole round at once, with the same results.

    A generator gives blocks of constant size, because on a GPU the numbers depend on it; draws are
    slices of them in order. So a draw needs no device call, except for the first one of a block.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self._streams = {
            stream: Ahead([generator(seed, stream, device) for seed in seeds], device) for stream in Stream
        }

    def reseed(self, row: int, seed: int) -> None:
        """Start a new sequence in `row`, with the draws that it would have alone."""
        for stream, ahead in self._streams.items():
            ahead.begin(row, generator(seed, stream, ahead.device))

    def __call__(self, shape: tuple[int, ...], stream: Stream) -> Tensor:
        ahead = self._streams[stream]
        if shape[0] != ahead.rows:
            raise ValueError(f"{shape[0]} rows requested from a source that was seeded for {ahead.rows}")
        return ahead.take(math.prod(shape[1:])).view(shape)


class Ahead:
    """The numbers of one stream: a generator per row, and their unused output.

    Rows restart at different times, so their blocks end at different positions: as far as all
    rows have numbers, these are one tensor [B, n]; the rest waits, row by row.
    """

    def __init__(self, generators: list[torch.Generator], device: torch.device) -> None:
        self.device, self._generators = device, generators
        self._size = AHEAD if device.type == "cpu" else RACED
        self._left = torch.empty((self.rows, 0), dtype=torch.float64, device=device)
        self._rest = [*self._left]
        self._at = 0  # columns already used

    @property
    def rows(self) -> int:
        return len(self._generators)

    def begin(self, row: int, generator: torch.Generator) -> None:
        rows = self._waiting()
        rows[row] = rows[row][:0]
        self._generators[row] = generator
        self._lay(rows)

    def take(self, count: int) -> Tensor:
        """[B, count] the next numbers of every row."""
        if self._at + count > self._left.shape[1]:
            rows = zip(self._waiting(), self._generators, strict=True)
            self._lay([self._with(row, one, count) for row, one in rows])
        self._at += count
        return self._left[:, self._at - count : self._at]

    def _waiting(self) -> list[Tensor]:
        """The unused numbers of every row."""
        return [torch.cat([left, rest]) for left, rest in zip(self._left[:, self._at :], self._rest, strict=True)]

    def _with(self, row: Tensor, one: torch.Generator, count: int) -> Tensor:
        blocks = range(len(row), count, self._size)
        more = [torch.rand(self._size, generator=one, dtype=row.dtype, device=self.device) for _ in blocks]
        return torch.cat([row, *more]) if more else row

    def _lay(self, rows: list[Tensor]) -> None:
        common = min(map(len, rows))
        self._left, self._at = torch.stack([row[:common] for row in rows]), 0
        self._rest = [row[common:] for row in rows]


def generator(seed: int, stream: Stream, device: torch.device) -> torch.Generator:
    """The generator of one stream of a row, with a seed of 63 bits."""
    digest = hashlib.sha256(f"{stream} {seed}".encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:8]) >> 1)


class Counted:
    """Uniforms that count the numbers given to a row per stream."""

    def __init__(self, uniforms: Uniforms) -> None:
        self._uniforms = uniforms
        self.sizes: dict[Stream, int] = {}

    def __call__(self, shape: tuple[int, ...], stream: Stream) -> Tensor:
        drawn = self._uniforms(shape, stream)
        self.sizes[stream] = self.sizes.get(stream, 0) + drawn.numel() // shape[0]
        return drawn


class Drawn:
    """Uniforms of one round that were drawn before it began: [B, n] per stream, used in order."""

    def __init__(self, before: Mapping[Stream, Tensor]) -> None:
        self._left = dict(before)

    def __call__(self, shape: tuple[int, ...], stream: Stream) -> Tensor:
        size = torch.Size(shape).numel() // shape[0]
        left = self._left[stream]
        self._left[stream] = left[:, size:]
        return left[:, :size].reshape(shape)


def seeded(
    seeds: Sequence[int],
    device: torch.device,
    certain: bool = False,
    agree: Callable[[Tensor], Tensor] | None = None,
) -> FromUniforms:
    """The source of production: one seed per row, seeded here and never again."""
    return FromUniforms(SeededUniforms(seeds, device), certain, agree)
