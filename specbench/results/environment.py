"""The machine and the versions that a number came from, by an allow-list: nothing else of the environment is kept.

Knows the system; must not know what was measured on it.
"""

import hashlib
import json
import os
import platform
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Any

from specbench import __version__
from specbench.redact import redact
from specbench.results.nvml import Gpu, gpu_named, library
from specbench.wording import clean

# What makes seconds of two runs comparable. Not specbench itself: its changes are what one compares.
MACHINE = ("device_name", "cpu", "cores", "threads", "platform", "cuda", "python", "torch", "transformers")
PROCESSES, GENERATIONS, SHOWN = 4096, 32, 3  # processes that are read, parents that are followed, names that are shown
PACKAGES = ("torch", "transformers", "tokenizers", "datasets", "numpy", "scipy")


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
    return found | {"fingerprint": fingerprint(found)}


def fingerprint(found: Mapping[str, Any]) -> str:
    """Twelve hex digits that are equal on machines whose absolute times may be compared."""
    machine = {name: found.get(name) for name in MACHINE}
    return hashlib.sha256(json.dumps(machine, sort_keys=True).encode()).hexdigest()[:12]


def attention_kinds() -> str:
    """The functions that attention may be computed by on a GPU: which are left in decides what a step costs there."""
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
    """The GPU of a device, where there is one that NVML knows: by its id, as CUDA may count GPUs otherwise."""
    import torch

    if device.type != "cuda":
        return None
    return gpu_named(str(torch.cuda.get_device_properties(device).uuid), library())


def load_average() -> float | None:
    """Processes that ran or waited during the last minute, where the system counts them."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def running_besides(proc: Path = Path("/proc")) -> str:
    """Programs that use a processor or wait for one now, the most frequent first, as `cc1plus ×6, python`.

    This process and those that it began are left out. Empty where nothing else runs, or the system has no /proc.
    """
    table = dict(islice(_processes(proc), PROCESSES))
    found = Counter(name for pid, (name, state, _) in table.items() if state == "R" and not _ours(pid, table))
    return ", ".join(
        f"{clean(name, 32)} ×{count}" if count > 1 else clean(name, 32) for name, count in found.most_common(SHOWN)
    )


def _processes(proc: Path) -> Iterator[tuple[int, tuple[str, str, int]]]:
    """The name, state and parent of every process by its id. A name may hold brackets, and ends at the last one."""
    try:
        with os.scandir(proc) as entries:
            for entry in entries:
                if entry.name.isdecimal() and (found := _process(Path(entry.path, "stat"))):
                    yield int(entry.name), found
    except OSError:
        return


def _process(file: Path) -> tuple[str, str, int] | None:
    """None of a process that has ended."""
    try:
        head, _, tail = file.read_text(encoding="utf-8", errors="replace").rpartition(")")
        state, parent = tail.split()[:2]
        return head.partition("(")[2], state, int(parent)
    except (OSError, ValueError):
        return None


def _ours(pid: int, table: Mapping[int, tuple[str, str, int]]) -> bool:
    """Whether it is this process, or has it among its parents."""
    for _ in range(GENERATIONS):
        if pid == os.getpid():
            return True
        if pid not in table:
            return False
        pid = table[pid][2]
    return False


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    """The processor's model name where the system says."""
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
