"""The weight files of a checkpoint or adapter: found, checked for completeness, and read one weight at a time.

transformers itself maps all files of a checkpoint while it loads. With this module the host
holds only the few weights in transit, whatever their device.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor

from specbench.errors import SpecbenchError, UnusableModelError
from specbench.files import ANY, check_regular, read_whole
from specbench.models.checkpoints import gguf, names
from specbench.models.checkpoints.check import LARGEST
from specbench.models.checkpoints.names import Checkpoint, require, resolve
from specbench.wording import clean, first_line

DAMAGED = (ValueError, KeyError, AttributeError, TypeError, RecursionError, OSError)  # errors of an invalid index
ADAPTER = "adapter_config.json"
ADAPTED = ("adapter_model.safetensors", "adapter_model.bin")
WHOLE = (*names.SAFETENSORS, *names.PICKLED)
Watch = Callable[[str, int, int], None]  # (fetching or loading, bytes done, total bytes)


def unwatched(verb: str, done: int, total: int) -> None:
    """A `Watch` that does nothing."""


@dataclass(frozen=True)
class Adapter:
    checkpoint: Checkpoint
    base: Checkpoint


def find(checkpoint: Checkpoint, watch: Watch = unwatched) -> tuple[Path, list[Path]]:
    """The folder of a checkpoint and its weight files: its GGUF file, else safetensors, else pickled files.

    `watch` receives the bytes fetched.
    """
    if checkpoint.file:
        folder = gguf.fetch(checkpoint)
        return folder, [folder / checkpoint.file]
    for patterns in (names.SAFETENSORS, names.PICKLED):
        single = patterns[0]
        folder = names.fetch(checkpoint, patterns, partial(watch, "fetching"))
        if (folder / single).exists():
            return folder, [_whole(checkpoint, folder, folder / single)]
        index = folder / f"{single}.index.json"
        if index.exists():
            return folder, [_whole(checkpoint, folder, file) for file in _shards(checkpoint, index)]
    expected = f"{names.SAFETENSORS[0]} or {names.PICKLED[0]}"
    raise UnusableModelError(f"{checkpoint.name}: no weights in {folder}, expected {expected}, whole or in shards")


def there(checkpoint: Checkpoint, folder: Path) -> list[Path]:
    """The weight files in a folder, all shards of one kind; empty if one is missing. Readers check their contents."""
    if checkpoint.file:
        return _existing([folder / checkpoint.file])
    for single in (names.SAFETENSORS[0], names.PICKLED[0], *ADAPTED):
        index = folder / f"{single}.index.json"
        if found := _existing([folder / single]):
            return found
        if index.exists():
            try:
                return _existing(listed(index))
            except DAMAGED:
                return [index]
    return []


def _existing(files: list[Path]) -> list[Path]:
    return files if all(file.exists() for file in files) else []


def listed(index: Path) -> list[Path]:
    """The files named in an index; one of the errors `DAMAGED` for an invalid index."""
    names = sorted({str(name) for name in json.loads(read_whole(index, LARGEST))["weight_map"].values()})
    if not names or any(Path(name).is_absolute() or ".." in Path(name).parts for name in names):
        raise ValueError("it names no file, or one outside of its folder")
    return [index.parent / name for name in names]


def _shards(checkpoint: Checkpoint, index: Path) -> list[Path]:
    try:
        files = listed(index)
    except DAMAGED as error:
        why = f"{index} is damaged: {first_line(error)}"
        raise UnusableModelError(f"{checkpoint.name}: {why}{_again(checkpoint)}") from error
    if absent := [file.name for file in files if not file.exists()]:
        raise UnusableModelError(f"{checkpoint.name}: {absent[0]} is missing in {index.parent}{_again(checkpoint)}")
    return files


def _whole(checkpoint: Checkpoint, folder: Path, file: Path) -> Path:
    if not _inside(folder.resolve(), file.resolve()):
        raise UnusableModelError(
            f"{checkpoint.name}: {file} is a link to a file outside of its folder: copy the file into the folder"
        )
    # A safetensors header contains its length; transformers would not name a truncated file.
    try:
        check_regular(file, ANY)
        if file.suffix == ".safetensors":
            with safe_open(file, framework="pt", backend="pread"):
                pass
    except (SafetensorError, OSError) as error:
        reason = f"{file} is damaged: {getattr(error, 'strerror', None) or first_line(error)}{_again(checkpoint)}"
        raise UnusableModelError(f"{checkpoint.name}: {reason}") from error
    return file


def _inside(folder: Path, found: Path) -> bool:
    """Whether a file is in a folder, or in the hub's cache for this folder, whose contents are untrusted."""
    blobs = folder.parents[1] / "blobs" if folder.parent.name == "snapshots" else folder
    return found.is_relative_to(folder) or found.parent == blobs.resolve()


def _again(checkpoint: Checkpoint) -> str:
    if Path(checkpoint.source).is_dir():
        return "; copy it again from where it came"
    return f"; delete it and run `{names.repository(checkpoint).command()}`"


class _Description(BaseModel):
    """The part of adapter_config.json that decides what is loaded."""

    peft_type: str
    base_model_name_or_path: str
    revision: str | None = None  # of the base


def find_adapter(checkpoint: Checkpoint, folder: Path) -> Adapter | None:
    """The adapter described in `folder`; None for a whole model.

    UnusableModelError if it is not a LoRA adapter, has a whole model in its folder, or has an unknown base.
    """
    file = folder / ADAPTER
    if checkpoint.file or not file.is_file():
        return None
    if whole := [match.name for pattern in WHOLE for match in folder.glob(pattern)]:
        raise UnusableModelError(
            f"{checkpoint.name}: {folder} holds a whole model ({whole[0]}) and an adapter: keep them in two folders"
        )
    require("peft", f"{checkpoint.name}: an adapter")
    described = _described(checkpoint, file)
    if described.peft_type != "LORA":
        kind = clean(described.peft_type)
        raise UnusableModelError(f"{checkpoint.name}: an adapter of type {kind}: only LoRA is merged into its base")
    return Adapter(checkpoint, _base(checkpoint, described))


def _described(checkpoint: Checkpoint, file: Path) -> _Description:
    try:
        return _Description.model_validate_json(read_whole(file, LARGEST))
    except ValidationError as error:
        first = error.errors()[0]
        reason = ": ".join([*map(str, first["loc"]), first["msg"]])
        raise UnusableModelError(f"{checkpoint.name}: unusable {file}: {clean(reason, 200)}") from error
    except OSError as error:
        raise UnusableModelError(f"{checkpoint.name}: cannot read {file}: {error.strerror}") from error


def _base(checkpoint: Checkpoint, described: _Description) -> Checkpoint:
    name = described.base_model_name_or_path
    try:
        # An unpinned adapter can name another base, with other code.
        return replace(resolve(name, described.revision), trusted=checkpoint.may_run)
    except SpecbenchError as error:
        raise UnusableModelError(
            f"{checkpoint.name}: the base of this adapter, {clean(name)!r}, cannot be found: correct "
            f"base_model_name_or_path in {ADAPTER} (a folder, a hub id or an alias)"
        ) from error


def merge(adapter: Adapter, model: Any, device: torch.device) -> Any:
    """The base with the adapter added to its weights, as an ordinary network."""
    from peft import PeftModel

    folder = names.fetch(adapter.checkpoint, ADAPTED)
    if not any((folder / name).is_file() for name in ADAPTED):
        raise UnusableModelError(f"{adapter.checkpoint.name}: no {ADAPTED[0]} in {folder}")
    added = PeftModel.from_pretrained(model, str(folder), torch_device=str(device))
    return added.merge_and_unload(safe_merge=True)


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
    """A weight in a file. `[...]` reads it, as for the slices of safetensors, which transformers accepts as well."""

    file: Any
    name: str
    stays: bool
    counted: Counted

    def __getitem__(self, place: Any) -> Tensor:
        tensor: Tensor = self.file.get_tensor(self.name)
        self.counted.add(tensor.nbytes)
        # Tensors are read to any multiple of 16 bytes, and processors load from multiples of 64.
        return (tensor.clone() if self.stays else tensor)[place]


def no_floats(files: Sequence[Path]) -> dict[str, str]:
    """The names of tensors that are not floats, and their types as stored (I8, BOOL; torch.int8 …)."""
    found: dict[str, str] = {}
    for path in files:
        if path.suffix == ".bin":  # without values, which torch does not read for this device
            tensors = torch.load(path, map_location="meta", weights_only=True)
            weights = {name: one for name, one in tensors.items() if isinstance(one, torch.Tensor)}
            found |= {name: str(one.dtype) for name, one in weights.items() if not one.is_floating_point()}
            continue
        with safe_open(path, framework="pt", backend="pread") as file:
            types = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
        found |= {name: kind for name, kind in types.items() if not kind.startswith(("F", "BF"))}
    return found


def stored(files: Sequence[Path], stays: bool, watch: Watch = unwatched) -> dict[str, Any]:
    """The weights of some files by name; `stays`: the read tensors are used in place, not copied elsewhere."""
    counted = Counted(watch, sum(file.stat().st_size for file in files))
    # Not mapped: its pages would count as memory of this process until it is closed.
    opened: Any = [safe_open(file, framework="pt", device="cpu", backend="pread") for file in files]
    return {name: Stored(file, name, stays, counted) for file in opened for name in file.keys()}  # noqa: SIM118
