"""Which of several methods emit text that is not distributed as the target says: z-tests with Holm's correction.

Knows sums over tokens; must not know models, or who emitted the text.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from scipy.special import ndtri

from specbench.judge.significance import holm
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
    chances = {name: two_sided(tally.z) for name, tally in found.items()}
    in_order = sorted(chances, key=chances.__getitem__)
    corrected = holm([chances[name] for name in in_order])
    limits = [float(-ndtri(level / left / 2)) for left in range(len(in_order), 0, -1)]
    return {
        name: Tested(found[name].z, limit, chance < level)
        for name, limit, chance in zip(in_order, limits, corrected, strict=True)
    }
