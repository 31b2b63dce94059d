"""What the machine said right after an arm had decoded the prompts of a turn: its processor, and its GPU if any.

Knows what a reading is and which values one can have; must not know how it is read, or what is concluded from it.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from specbench.settings import is_number


@dataclass(frozen=True)
class Reading:
    """None is what the system does not tell.

    cpu_mhz: clock of the processor on which the arm's thread ran last. cpu_wanted, cpu_stolen: processor seconds of the
    whole machine during the decode that were asked for, and those of them that the hypervisor gave to other machines.
    Of the GPU right after it: clocks of its processors and memory, temperature, power drawn and allowed, and as
    gpu_reasons the bits of what held its clocks down.
    """

    cpu_mhz: float | None = None
    cpu_wanted: float | None = None
    cpu_stolen: float | None = None
    gpu_mhz: float | None = None
    gpu_memory_mhz: float | None = None
    gpu_celsius: float | None = None
    gpu_watts: float | None = None
    gpu_watts_limit: float | None = None
    gpu_reasons: int | None = None

    def written(self) -> dict[str, float]:
        """What is known, for the journal."""
        return {name: value for name, value in asdict(self).items() if value is not None}


UNREAD = Reading()


def read_back(written: Mapping[str, Any]) -> Reading:
    """A reading from its line; TypeError or ValueError where nothing can have said that."""
    found = Reading(**written)
    for name, value in written.items():
        if not (is_number(value) and 0 <= float(value) < math.inf):
            raise ValueError(f"a reading with {name} {str(value)[:40]}")
    if type(found.gpu_reasons) not in (int, type(None)) or (found.cpu_stolen or 0) > (found.cpu_wanted or 0):
        raise ValueError(f"a reading of {str(found.written())[:200]}")
    return found
