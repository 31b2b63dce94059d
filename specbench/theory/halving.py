"""Successive halving: many candidates get a little, the better half of them gets more, until few are left.

Knows scores and amounts; must not know what a candidate is. Jamieson and Talwalkar, "Non-stochastic Best Arm
Identification and Hyperparameter Optimization", arXiv 1502.07943.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Rung(Generic[T]):
    """One rung: how much every candidate on it has had in all, and their scores, higher is better."""

    amount: int
    scores: Mapping[T, float]

    @property
    def order(self) -> list[T]:
        """Best first; of equal scores the earlier candidate."""
        return sorted(self.scores, key=lambda one: -self.scores[one])


def amounts(total: int, rungs: int) -> list[int]:
    """What a candidate has had in all after every rung: twice as much as on the one before, `total` on the last."""
    return [max(1, total >> (rungs - 1 - number)) for number in range(rungs)]


def successive_halving(
    candidates: Sequence[T],
    steps: Sequence[int],
    score: Callable[[T, int], float],
    besides: Callable[[Rung[T], Sequence[T]], Sequence[T]] = lambda rung, kept: (),
) -> list[Rung[T]]:
    """The rungs, in their order: `score(candidate, amount)` brings one up to an amount in all, and says how good it is.

    `besides` names candidates of a rung that go on with those that are kept, whatever their score, for a comparison;
    how many are kept does not depend on them.
    """
    found: list[Rung[T]] = []
    going, kept = list(candidates), len(candidates)
    for amount in steps:
        found.append(rung := Rung(amount, {one: score(one, amount) for one in going}))
        kept = max(1, (kept + 1) // 2)
        better = rung.order[:kept]
        going = list(dict.fromkeys([*better, *besides(rung, better)]))
    return found
