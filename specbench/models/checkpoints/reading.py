"""Safetensors files as weights that are read one by one, when a network takes them, and counted in bytes.

transformers itself maps all files of a checkpoint for as long as it loads. Read as here, the memory of the host holds
the few weights that are under way, wherever they go. Knows files and tensors; must not know networks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

Watch = Callable[[str, int, int], None]  # (fetching or loading, bytes that are done, bytes that there are)


def unwatched(verb: str, done: int, total: int) -> None:
    """A `Watch` that tells nobody."""


@dataclass
class Counted:
    """Bytes read so far, by several threads."""

    watch: Watch
    total: int
    done: int = 0
    _lock: Lock = field(default_factory=Lock)

    def add(self, size: int) -> None:
        with self._lock:
            self.done += size
            self.watch("loading", self.done, self.total)


@dataclass(frozen=True)
class Stored:
    """A weight in a file. `[...]` reads it, as of the slices of safetensors, which transformers takes as well."""

    file: Any
    name: str
    stays: bool
    counted: Counted

    def __getitem__(self, place: Any) -> Tensor:
        tensor: Tensor = self.file.get_tensor(self.name)
        self.counted.add(tensor.nbytes)
        # What is read lies at any multiple of 16 bytes, and processors load from multiples of 64.
        return (tensor.clone() if self.stays else tensor)[place]


def no_floats(files: Sequence[Path]) -> dict[str, str]:
    """The names of tensors of no floating type, and their types in the words of the files (I8, BOOL; torch.int8 …)."""
    found: dict[str, str] = {}
    for path in files:
        if path.suffix == ".bin":  # without the numbers, which torch does not read for this device
            tensors = torch.load(path, map_location="meta", weights_only=True)
            weights = {name: one for name, one in tensors.items() if isinstance(one, torch.Tensor)}
            found |= {name: str(one.dtype) for name, one in weights.items() if not one.is_floating_point()}
            continue
        with safe_open(path, framework="pt", backend="pread") as file:
            types = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
        found |= {name: kind for name, kind in types.items() if not kind.startswith(("F", "BF"))}
    return found


def stored(files: Sequence[Path], stays: bool, watch: Watch = unwatched) -> dict[str, Any]:
    """The weights of some files by name; `stays`: what is read is used where it is, and not copied elsewhere."""
    counted = Counted(watch, sum(file.stat().st_size for file in files))
    # Not by a map of the file: its pages would count as memory of this process until it is closed.
    opened: Any = [safe_open(file, framework="pt", device="cpu", backend="pread") for file in files]
    return {name: Stored(file, name, stays, counted) for file in opened for name in file.keys()}  # noqa: SIM118
