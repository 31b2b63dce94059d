"""Measurements made by hand of methods whose schedule believes something of the tokens that it drafts."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from specbench.metrics import RoundCounts
from specbench.results.samples import Sample
from tests.support.measured import K, sample

Belief = tuple[float | None, ...]
# Two rounds: of seven tests one had no belief. The bins of the others, by their upper ends: 0.3, 0.7 twice, 0.8,
# 0.9 twice, of which the first of 0.7 (0.65) and that of 0.3 were not accepted.
ROUNDS: tuple[tuple[Belief, int], ...] = (((0.9, 0.8, 0.65), 2), ((0.85, None, 0.7, 0.3), 3))


def round_of(belief: Belief, accepted: int) -> RoundCounts:
    """A round in which so many tokens were tested, and some accepted."""
    tested = len(belief)
    return RoundCounts(K, tested, accepted, accepted + 1, (0.5,) * tested, belief=belief)


def believing(prompt: str = "p1", rounds: Sequence[tuple[Belief, int]] = ROUNDS, **changes: Any) -> Sample:
    """A sample with such rounds."""
    one = sample(prompt, [accepted for _, accepted in rounds], **changes)
    return replace(one, method=replace(one.method, rounds=tuple(round_of(*each) for each in rounds)))
