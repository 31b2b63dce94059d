"""What machine and which versions a number came from. An allow-list: nothing of the environment is stored wholesale."""

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from specbench import __version__

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
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "device": str(device),
        "device_name": _cpu(),
    }
    if device.type == "cuda":
        found |= {"device_name": torch.cuda.get_device_name(device), "cuda": torch.version.cuda}
    return found


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    """The processor's model name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def now() -> str:
    """UTC, to the second, sortable and usable in a file name."""
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
