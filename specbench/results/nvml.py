"""What an NVIDIA GPU says of itself through NVML: driver, power, clocks, temperature, and what holds its clocks down.

Knows the functions of the package nvidia-ml-py, or whatever has functions of these names and answers in its place; must
not know what runs on the GPU. NVML refuses some questions to some users and on parts of a GPU (MIG): what it does not
answer is None, and nothing that it raises leaves this module.
"""

# ruff: noqa: N802 (the names are NVML's)

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol, TypeVar, cast

T = TypeVar("T")
MODULE = "pynvml"
SM, MEMORY, CORE_SENSOR = 1, 2, 0  # NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU of nvml.h
PREFIXES = ("GPU-", "MIG-")  # of the names of whole GPUs, and of parts of one

# What makes a GPU slower than it was set to be (nvmlClocksThrottleReason… of nvml.h). Not among them: that it is idle
# (1), clocks that somebody has fixed (2) and clocks that a display asks for (256).
REASONS = {
    0x4: "power limit",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "temperature",
    0x40: "hardware, for its temperature",
    0x80: "power brake",
    0x200: "board limit",
    0x400: "reliability voltage",
}


class Nvml(Protocol):
    """The functions of nvidia-ml-py that are used here. Clocks are MHz, powers mW, temperatures °C."""

    def nvmlInit(self) -> None: ...
    def nvmlSystemGetDriverVersion(self) -> str: ...
    def nvmlDeviceGetHandleByUUID(self, uuid: str, /) -> Any: ...
    def nvmlDeviceGetClockInfo(self, handle: Any, clock: int, /) -> int: ...
    def nvmlDeviceGetTemperature(self, handle: Any, sensor: int, /) -> int: ...
    def nvmlDeviceGetPowerUsage(self, handle: Any, /) -> int: ...
    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Any, /) -> int: ...
    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any, /) -> int: ...


@dataclass(frozen=True)
class GpuState:
    """A GPU at one moment: clocks of its processors and memory, temperature, power drawn and allowed, and the bits of
    what holds its clocks down. What NVML did not say is None."""

    gpu_mhz: float | None
    gpu_memory_mhz: float | None
    gpu_celsius: float | None
    gpu_watts: float | None
    gpu_watts_limit: float | None
    gpu_reasons: int | None


@dataclass(frozen=True)
class Gpu:
    """One GPU, as NVML knows it."""

    nvml: Nvml
    handle: Any

    def driver(self) -> str | None:
        """The version of the driver."""
        return answer(self.nvml.nvmlSystemGetDriverVersion)

    def watts_limit(self) -> float | None:
        """The power that is allowed now."""
        return watts(answer(lambda: self.nvml.nvmlDeviceGetEnforcedPowerLimit(self.handle)))

    def state(self) -> GpuState:
        """The GPU now: six questions, none of which waits for what runs on it."""
        nvml, handle = self.nvml, self.handle
        return GpuState(
            answer(lambda: nvml.nvmlDeviceGetClockInfo(handle, SM)),
            answer(lambda: nvml.nvmlDeviceGetClockInfo(handle, MEMORY)),
            answer(lambda: nvml.nvmlDeviceGetTemperature(handle, CORE_SENSOR)),
            watts(answer(lambda: nvml.nvmlDeviceGetPowerUsage(handle))),
            self.watts_limit(),
            answer(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
        )


def answer(question: Callable[[], T]) -> T | None:
    """What NVML says; None where it says nothing."""
    try:
        return question()
    except Exception:  # NVMLError of many kinds, and what old drivers and packages lack: no measurement ends for it
        return None


def watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def installed() -> bool:
    """Whether the extra `gpu` is."""
    return find_spec(MODULE) is not None


@cache
def library() -> Nvml | None:
    """NVML itself, begun once in a process; None where it is not installed, or does not work here."""
    return answer(begun)


def begun() -> Nvml:
    """NVML, which has found a driver; raises whatever it raises where there is none."""
    found = cast(Nvml, import_module(MODULE))
    found.nvmlInit()
    return found


def gpu_named(uuid: str, nvml: Nvml | None) -> Gpu | None:
    """The GPU of an id, without `GPU-` before it as torch gives it; None where NVML does not know it."""
    if nvml is None:
        return None
    handles = (answer(partial(nvml.nvmlDeviceGetHandleByUUID, f"{prefix}{uuid}")) for prefix in PREFIXES)
    return next((Gpu(nvml, handle) for handle in handles if handle is not None), None)


def reasons(bits: int) -> list[str]:
    """What holds the clocks down, in words; none where nothing does that would not be there on purpose."""
    return [words for bit, words in REASONS.items() if bits & bit]
