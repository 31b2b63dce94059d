"""The rounds inside a round: what the levels of a nest did, added up, on the device and on the host.

Knows the counts of rounds and nothing else of a method; level 1 is the round itself, level 2 the rounds that drafted
for it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.decoding.types import Round
from specbench.metrics import LevelCounts

WIDTH = 7  # numbers of a level: the fields of LevelCounts, in their order


def sums(done: Round) -> list[Tensor]:
    """One [B, 7] float64 for each level inside a round, from level 2 on; nothing where its draft had no rounds."""
    found, rounds = [], done.inner
    while rounds:
        every = torch.stack([numbers(one) for one in rounds])
        found.append(torch.cat([every.sum(0), every[:, :, 1:2].amax(0)], 1))
        rounds = tuple(inner for one in rounds for inner in one.inner)
    return found


def numbers(one: Round) -> Tensor:
    """[B, 6] float64; a row that had ended before the round has zeros."""
    active = one.emitted > 0
    counts = torch.stack([active.long(), one.drafted, one.tested, one.accepted, one.emitted], 1).double()
    return torch.cat([counts, one.overlap.double().sum(1, keepdim=True)], 1) * active.unsqueeze(1)


def read_sums(numbers: Sequence[float], levels: int) -> tuple[tuple[LevelCounts, ...], Sequence[float]]:
    """The levels at the head of a row of numbers, and what stands after them."""
    parts = (numbers[WIDTH * i : WIDTH * (i + 1)] for i in range(levels))
    return tuple(map(read_level, parts)), numbers[WIDTH * levels :]


def read_level(part: Sequence[float]) -> LevelCounts:
    *counts, overlap, longest = part
    rounds, drafted, tested, accepted, emitted = map(int, counts)
    return LevelCounts(rounds, drafted, tested, accepted, emitted, overlap, int(longest))
