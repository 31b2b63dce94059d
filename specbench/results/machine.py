"""The machine of a measurement: its description, by an allow-list, and its readings during the measurement.

Nothing else of the environment is kept. NVML refuses some queries to some users and on GPU partitions (MIG):
such values are None, and no NVML error leaves this module.
"""

import hashlib
import json
import math
import os
import platform
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache, partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from specbench import __version__
from specbench.settings import is_number
from specbench.wording import clean, redact

# Must match for comparable seconds. Not specbench itself, whose changes are what is compared.
MACHINE = ("device_name", "cpu", "cores", "threads", "platform", "cuda", "python", "torch", "transformers")
MEASURED_ON = ("device_name", "gpu_driver", "threads", "torch", "transformers", "specbench", "fingerprint")  # columns
PROCESSES, GENERATIONS, SHOWN = 4096, 32, 3  # limits on processes read, parents followed, names shown
PACKAGES = ("torch", "transformers", "tokenizers", "datasets", "numpy", "scipy")
PEAKS = tuple(f"{arm}{name}" for arm in ("baseline_", "") for name in ("peak_memory_device", "peak_memory_host"))
T = TypeVar("T")
NVML = "pynvml"
SM, MEMORY, CORE_SENSOR = 1, 2, 0  # NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU of nvml.h

# Causes of reduced GPU clocks (nvmlClocksThrottleReason… of nvml.h). Excluded: idle (1), clocks fixed by a
# user (2) and clocks set by a display (256).
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


# --- after a decode ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """A reading after a decode; None for unavailable values.

    cpu_mhz: clock of the processor on which the arm's thread ran last. cpu_wanted, cpu_stolen: processor seconds of the
    whole machine during the decode, demanded and stolen by the hypervisor. Of the GPU right after it: SM and memory
    clocks, temperature, power draw and limit, and as gpu_reasons the bits of clock throttling.
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
        """The known values, for the journal."""
        return {name: value for name, value in asdict(self).items() if value is not None}


UNREAD = Reading()


def reading_of(written: Mapping[str, Any]) -> Reading:
    """Parse a reading. TypeError or ValueError for impossible values."""
    found = Reading(**written)
    for name, value in written.items():
        if not (is_number(value) and 0 <= float(value) < math.inf):
            raise ValueError(f"a reading with {name} {str(value)[:40]}")
    if type(found.gpu_reasons) not in (int, type(None)) or (found.cpu_stolen or 0) > (found.cpu_wanted or 0):
        raise ValueError(f"a reading of {str(found.written())[:200]}")
    return found


class Peak(NamedTuple):
    """Peak bytes of tensors on the device, None on a CPU, and of resident memory; None if unknown.

    Everything loaded counts: weights of all models, and caches that methods share.
    """

    device: int | None = None
    host: int | None = None

    def higher(self, other: "Peak") -> "Peak":
        pairs = zip(self, other, strict=True)
        return Peak(*(max((size for size in pair if size is not None), default=None) for pair in pairs))


class Peaks(NamedTuple):
    """The peaks of a cell's two arms."""

    baseline: Peak = Peak()
    method: Peak = Peak()

    def row(self) -> dict[str, int | None]:
        return dict(zip(PEAKS, (*self.baseline, *self.method), strict=True))

    def higher(self, other: "Peaks") -> "Peaks":
        return Peaks(self.baseline.higher(other.baseline), self.method.higher(other.method))

    def line(self) -> dict[str, list[int | None]]:
        """The peaks for the journal."""
        return {name: list(one) for name, one in self._asdict().items()}


def peaks_of(line: Mapping[str, Any]) -> Peaks:
    """Parse peaks from the journal. ValueError or TypeError for invalid byte counts."""
    if any(size is not None and (type(size) is not int or size < 0) for one in line.values() for size in one):
        raise ValueError(f"memory of {line}")
    return Peaks(**{name: Peak(*one) for name, one in line.items()})


# --- an NVIDIA GPU, by NVML -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gpu:
    """One GPU, through nvidia-ml-py: clocks in MHz, powers in mW, temperatures in °C."""

    nvml: Any
    handle: Any

    def driver(self) -> str | None:
        return answer(self.nvml.nvmlSystemGetDriverVersion)

    def watts_limit(self) -> float | None:
        return watts(answer(lambda: self.nvml.nvmlDeviceGetEnforcedPowerLimit(self.handle)))

    def state(self) -> Reading:
        """The current state of the GPU: six queries that do not wait for running work."""
        nvml, handle = self.nvml, self.handle
        return Reading(
            gpu_mhz=answer(lambda: nvml.nvmlDeviceGetClockInfo(handle, SM)),
            gpu_memory_mhz=answer(lambda: nvml.nvmlDeviceGetClockInfo(handle, MEMORY)),
            gpu_celsius=answer(lambda: nvml.nvmlDeviceGetTemperature(handle, CORE_SENSOR)),
            gpu_watts=watts(answer(lambda: nvml.nvmlDeviceGetPowerUsage(handle))),
            gpu_watts_limit=self.watts_limit(),
            gpu_reasons=answer(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
        )


def answer(question: Callable[[], T]) -> T | None:
    """The answer of an NVML query; None if it fails."""
    try:
        return question()
    except Exception:  # many kinds of NVMLError, and features missing in old drivers: no measurement may end for it
        return None


def watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def installed() -> bool:
    """Whether the extra `gpu` is installed."""
    return find_spec(NVML) is not None


@cache
def library() -> Any:
    """NVML, initialised once per process; None if not installed or not working."""
    with suppress(Exception):  # of many kinds
        found: Any = import_module(NVML)
        found.nvmlInit()
        return found
    return None


def gpu_named(uuid: str, nvml: Any) -> Gpu | None:
    """The GPU with an id, without the `GPU-` prefix as in torch; None if NVML does not know it."""
    if nvml is None:
        return None
    handles = (
        answer(partial(nvml.nvmlDeviceGetHandleByUUID, f"{prefix}{uuid}")) for prefix in ("GPU-", "MIG-")
    )  # partitions
    return next((Gpu(nvml, handle) for handle in handles if handle is not None), None)


def throttle_reasons(bits: int) -> list[str]:
    """Causes of reduced clocks, in words; empty without causes beyond deliberate settings."""
    return [words for bit, words in REASONS.items() if bits & bit]


# --- the description --------------------------------------------------------------------------------------------------


def environment(device: Any) -> dict[str, Any]:
    """Versions, processor, threads, load and accelerator of this process."""
    import torch

    found: dict[str, Any] = {
        "specbench": __version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        "platform": platform.platform(terse=True),
        "cpu": _cpu(),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "load_average": load_average(),
        "device": str(device),
        "device_name": _cpu(),
    }
    if device.type == "cuda":
        found |= {"device_name": torch.cuda.get_device_name(device), "cuda": torch.version.cuda}
        found |= {"attention": attention_kinds()}
    gpu = gpu_of(device)
    found |= {"gpu_driver": gpu.driver(), "gpu_watts_limit": gpu.watts_limit()} if gpu else {}
    # equal on machines whose absolute times are comparable
    same = json.dumps({name: found.get(name) for name in MACHINE}, sort_keys=True)
    return found | {"fingerprint": hashlib.sha256(same.encode()).hexdigest()[:12]}


def attention_kinds() -> str:
    """The enabled attention kernels on a GPU, which determine the cost of a step."""
    import torch

    cuda: Any = torch.backends.cuda
    kinds = {
        "flash": cuda.flash_sdp_enabled(),
        "efficient": cuda.mem_efficient_sdp_enabled(),
        "cudnn": cuda.cudnn_sdp_enabled(),
        "math": cuda.math_sdp_enabled(),
    }
    return ", ".join(name for name, enabled in kinds.items() if enabled)


def gpu_of(device: Any) -> Gpu | None:
    """The NVML GPU of a device, if any; matched by id, as CUDA may number GPUs differently."""
    import torch

    if device.type != "cuda":
        return None
    return gpu_named(str(torch.cuda.get_device_properties(device).uuid), library())


def load_average() -> float | None:
    """The mean number of running or waiting processes in the last minute; None if unavailable."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def running_besides(proc: Path = Path("/proc")) -> str:
    """Programs that use or wait for a processor now, most frequent first, as `cc1plus ×6, python`.

    This process and its children are left out. Empty if nothing else runs, or without /proc.
    """
    table = dict(islice(_processes(proc), PROCESSES))
    found = Counter(name for pid, (name, state, _) in table.items() if state == "R" and not _ours(pid, table))
    return ", ".join(clean(name, 32) + f" ×{count}" * (count > 1) for name, count in found.most_common(SHOWN))


def _processes(proc: Path) -> Iterator[tuple[int, tuple[str, str, int]]]:
    """The name, state and parent of every process by id. A name may contain brackets; it ends at the last one."""
    with suppress(OSError), os.scandir(proc) as entries:
        for entry in entries:
            with suppress(OSError, ValueError):  # it has ended
                if entry.name.isdecimal():
                    head, _, tail = Path(entry.path, "stat").read_text("utf-8", "replace").rpartition(")")
                    state, parent = tail.split()[:2]
                    yield int(entry.name), (head.partition("(")[2], state, int(parent))


def _ours(pid: int, table: Mapping[int, tuple[str, str, int]]) -> bool:
    """Whether it is this process or a descendant."""
    for _ in range(GENERATIONS):
        if pid == os.getpid():
            return True
        if pid not in table:
            return False
        pid = table[pid][2]
    return False


@cache
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    """The processor's model name, if the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def command_line() -> str:
    """The command line of this process without its credentials."""
    return shlex.join(["specbench", *map(redact, sys.argv[1:])])


def now() -> str:
    """UTC, to the second, sortable and usable in a file name."""
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
