"""NVML made up: the functions of nvidia-ml-py over sequences of what a GPU says, one entry for every question."""

# ruff: noqa: N802 (the names are NVML's)

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

UUID = "6b7ca2ad-0000-4000-8000-000000000001"


class NVMLError(Exception):
    """As those of the package: of many kinds, derived from Exception alone."""


@dataclass
class FakeNvml:
    """A GPU by name. Every answer is the next one of its sequence, the last one again after its end; an error among
    them is raised. asked: the questions, in their order."""

    named: str = f"GPU-{UUID}"
    mhz: Sequence[Any] = (1980,)
    memory_mhz: Sequence[Any] = (2619,)
    celsius: Sequence[Any] = (54,)
    milliwatts: Sequence[Any] = (412_300,)
    milliwatts_limit: Sequence[Any] = (700_000,)
    reasons: Sequence[Any] = (0,)
    driver: Sequence[Any] = ("580.65.06",)
    asked: list[str] = field(default_factory=list)

    def next(self, question: str, answers: Sequence[Any]) -> Any:
        place = self.asked.count(question)
        self.asked.append(question)
        found = answers[min(place, len(answers) - 1)]
        if isinstance(found, Exception):
            raise found
        return found

    def nvmlInit(self) -> None:
        self.asked.append("init")

    def nvmlSystemGetDriverVersion(self) -> str:
        return str(self.next("driver", self.driver))

    def nvmlDeviceGetHandleByUUID(self, uuid: str, /) -> Any:
        if uuid != self.named:
            raise NVMLError("Not Found")
        return "handle"

    def nvmlDeviceGetClockInfo(self, handle: Any, clock: int, /) -> int:
        return int(self.next(*{1: ("mhz", self.mhz), 2: ("memory_mhz", self.memory_mhz)}[clock]))

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: int, /) -> int:
        assert sensor == 0
        return int(self.next("celsius", self.celsius))

    def nvmlDeviceGetPowerUsage(self, handle: Any, /) -> int:
        return int(self.next("milliwatts", self.milliwatts))

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Any, /) -> int:
        return int(self.next("milliwatts_limit", self.milliwatts_limit))

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any, /) -> int:
        return int(self.next("reasons", self.reasons))


def dumb() -> FakeNvml:
    """A GPU that refuses every question, as parts of one and missing permissions do."""
    refused = (NVMLError("Not Supported"),)
    return FakeNvml(f"MIG-{UUID}", *[refused] * 7)
