"""The memory that a process had at most while an arm decoded, as data.

Knows bytes; must not know how they were counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NAMES = ("peak_memory_device", "peak_memory_host")


@dataclass(frozen=True)
class Peak:
    """Bytes of tensors on the device, None on a CPU, and of the process's resident memory; None where nobody can tell.

    Whatever else is loaded is counted, as it is there: weights of all models, and caches that methods share.
    """

    device: int | None = None
    host: int | None = None

    def higher(self, other: "Peak") -> "Peak":
        """The higher one of each."""
        return Peak(highest(self.device, other.device), highest(self.host, other.host))


def highest(*some: int | None) -> int | None:
    return max((one for one in some if one is not None), default=None)


@dataclass(frozen=True)
class Peaks:
    """Of the two arms of a cell."""

    baseline: Peak = Peak()
    method: Peak = Peak()

    def row(self) -> dict[str, int | None]:
        found = (self.baseline.device, self.baseline.host, self.method.device, self.method.host)
        return dict(zip(COLUMNS, found, strict=True))

    def higher(self, other: "Peaks") -> "Peaks":
        return Peaks(self.baseline.higher(other.baseline), self.method.higher(other.method))

    def line(self) -> dict[str, list[int | None]]:
        """As the journal has them."""
        return {name: [one.device, one.host] for name, one in vars(self).items()}


COLUMNS = tuple(f"{arm}{name}" for arm in ("baseline_", "") for name in NAMES)


def read(line: Mapping[str, Any]) -> Peaks:
    """From the journal. ValueError or TypeError where they are no numbers of bytes."""
    found = {name: Peak(*one) for name, one in line.items()}
    if any(
        size is not None and (type(size) is not int or size < 0)
        for one in found.values()
        for size in vars(one).values()
    ):
        raise ValueError(f"memory of {line}")
    return Peaks(**found)
