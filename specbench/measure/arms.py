"""The arms of a group while they decode: how each does, and what is noted of it beside its traces.

Knows decodes and prompts; must not know groups, or what becomes of a trace.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from specbench.backends.base import Decode
from specbench.data.prompts import Prompt
from specbench.measure.choosing import Choosing
from specbench.measure.sensors import Sensors
from specbench.metrics import Trace
from specbench.models.execution.peak_memory import watched
from specbench.results.machine import Peak, Peaks
from specbench.spec import BASELINE, RunSpec


@dataclass
class Arms:
    """How each arm of a group decodes, the seconds that it took to build, compile or capture it, which arms carry
    something from prompt to prompt, which choose their method, and the memory that there was at most while each
    decoded. sensors: of the machine that they decode on."""

    device: torch.device
    sensors: Sensors
    decodes: dict[str, Decode] = field(default_factory=dict)
    ready: dict[str, float] = field(default_factory=dict)
    carrying: set[str] = field(default_factory=set)
    choosing: dict[str, Choosing] = field(default_factory=dict)
    memory: dict[str, Peak] = field(default_factory=dict)

    def decode(self, arm: str, prompts: Sequence[Prompt], seeds: Sequence[int]) -> list[Trace]:
        with watched(self.device) as peak:
            traces = self.decodes[arm]([prompt.ids for prompt in prompts], seeds)
        self.memory[arm] = self.memory.get(arm, Peak()).higher(Peak(*peak()))
        return traces

    def peaks(self, spec: RunSpec) -> Peaks:
        """Those of a cell; unknown where all that it has was decoded by a run that it goes on with."""
        return Peaks(self.memory.get(BASELINE, Peak()), self.memory.get(spec.key, Peak()))
