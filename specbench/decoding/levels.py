"""The counts of a round, those of the rounds inside it added up level by level: one tensor, read on the host.

Knows the counts of rounds and nothing else of a method; level 1 is the round itself, level 2 the rounds that drafted
for it.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.decoding.types import Round
from specbench.metrics import LevelCounts, RoundCounts

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


def packed(done: Round) -> Tensor:
    """[B, 8 + 7 · levels + depth] float64: the counts of a round in one tensor, those of its inner levels included.

    What was believed of a chain stands behind them: as many columns again as the chain has tokens.
    """
    inner, belief = sums(done), [] if done.belief is None else [done.belief.double()]
    numbers = torch.stack([done.drafted, done.surplus, done.tested, done.accepted, done.emitted], 1).double()
    known = [numbers.new_full((numbers.shape[0], 1), count) for count in (done.nodes, len(inner))]
    return torch.cat([numbers, done.distance.unsqueeze(1), *known, *inner, done.overlap.double(), *belief], 1)


def read_counts(counts: Tensor) -> list[RoundCounts]:
    """The counts of a round on the host, one per row."""
    found = []
    for drafted, surplus, tested, accepted, emitted, distance, nodes, levels, *rest in counts.tolist():
        inner, overlap = read_sums(rest, int(levels))
        whole = (int(drafted), int(tested), int(accepted), int(emitted))
        belief = believed(overlap[int(nodes) :][: int(tested)])  # no draft has more levels than nodes, a chain as many
        chances = tuple(overlap[: int(tested)])
        found.append(RoundCounts(*whole, chances, int(nodes), distance, inner, int(surplus), belief))
    return found


def believed(chances: Sequence[float]) -> tuple[float | None, ...]:
    """What was believed of every tested token, None of one of which nothing was; empty where nothing was of any."""
    found = tuple(None if math.isnan(one) else one for one in chances)
    return found if any(one is not None for one in found) else ()
