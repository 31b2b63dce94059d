"""Which of several methods emit text that is not distributed as the target says: z-tests with Holm's correction.

Knows sums over tokens; must not know models, or who emitted the text.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from scipy.special import ndtri

from specbench.results.tally import Tally, two_sided

LEVEL = 0.001  # chance that any of the methods is accused wrongly
Name = TypeVar("Name", bound=Hashable)  # of a test


@dataclass(frozen=True)
class Tested:
    """The z of a method, the limit that its amount is held against, and whether it is beyond it."""

    z: float
    limit: float
    differs: bool


def judged(found: Mapping[Name, Tally], level: float = LEVEL) -> dict[Name, Tested]:
    """Two-sided tests; `level` is the chance of any false alarm among them all (Holm 1979, step down).

    The farthest z is held against the limit of all tests together, the next one against that of one test fewer, and
    so on up to the first that is within its limit.
    """
    in_order = sorted(found, key=lambda name: two_sided(found[name].z))
    decided, differs = dict[Name, Tested](), True
    for rank, name in enumerate(in_order):
        z, limit = found[name].z, float(-ndtri(level / (len(in_order) - rank) / 2))
        differs = differs and not abs(z) <= limit
        decided[name] = Tested(z, limit, differs)
    return decided
