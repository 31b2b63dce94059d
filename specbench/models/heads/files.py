"""The files of a head: whether a checkpoint is one, and its tensors.

Headers are read until the kind of the files is known, then only the tensors of the head.
Pickles are read by torch's loader for tensors alone, which runs no code.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from specbench.errors import UnusableModelError
from specbench.files import read_whole
from specbench.models.checkpoints import names
from specbench.models.checkpoints.check import LARGEST
from specbench.models.checkpoints.description import TOKENIZER_FILES
from specbench.models.checkpoints.names import Checkpoint
from specbench.models.checkpoints.weights import DAMAGED, listed
from specbench.models.heads.recognition import SPECULATORS, Head, Shapes, flat, part, recognise, without_mtp
from specbench.wording import first_line

CONFIG = "config.json"
# File names of heads, most trusted first; hubs are queried for these names.
SAFETENSORS = ("model.safetensors", "model.safetensors.index.json", "medusa_lm_head.safetensors")
PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json", "medusa_lm_head.pt", "hydra_lm_head.pt", "model.pt")
PICKLE = "has more in it than tensors, which only code could read, and none is run: convert it to safetensors"


@dataclass(frozen=True)
class Stored:
    """The tensors of some files: their shapes, and `read`, which reads some of them by name."""

    shapes: Shapes
    read: Callable[[Sequence[str]], dict[str, Tensor]]


def read_head(folder: Path, name: str | None = None) -> Head | None:
    """The head in a folder; None if missing, as for an ordinary network, whose weights are not read.

    name: its name in errors, by default the folder. UnusableModelError for a head that is
    refused, for damaged files, and for a pickle that holds more than tensors.
    """
    called = name or str(folder)
    config = config_of(folder)
    try:
        stored = open_files(folder) if config is not None else None
        if config is None or stored is None or (found := recognise(config, stored.shapes)) is None:
            return None
        theirs = stored.read(list(found.names.values()))
    except UnusableModelError as error:
        raise UnusableModelError(f"{called}: {error}") from error
    tensors = {ours: theirs[stored_as] for ours, stored_as in found.names.items()}
    return Head(found.kind, found.format, flat(config), tensors, folder, called)


def config_of(folder: Path) -> Mapping[str, Any] | None:
    """None if missing or not a JSON object; the loader reports which."""
    try:
        found = json.loads(read_whole(folder / CONFIG, LARGEST))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def open_files(folder: Path) -> Stored | None:
    """The first of the known files in a folder, with all its shards; None if missing."""
    for name in (*SAFETENSORS, *PICKLED):
        if (file := folder / name).is_file():
            files = _shards(file) if name.endswith(".index.json") else [file]
            return _safetensors(files) if name in SAFETENSORS else _pickled(files)
    return None


def _shards(index: Path) -> list[Path]:
    try:
        files = listed(index)
    except DAMAGED as error:
        raise UnusableModelError(f"{index} is damaged; copy it again from where it came") from error
    if absent := [file.name for file in files if not file.is_file()]:
        raise UnusableModelError(f"{absent[0]} is missing in {index.parent}")
    return files


def _safetensors(files: Sequence[Path]) -> Stored:
    shapes: dict[str, tuple[int, ...]] = {}
    where: dict[str, Path] = {}
    for file in files:
        with _opened(file) as tensors:
            for name in tensors.keys():  # noqa: SIM118 - no mapping
                shapes[name], where[name] = tuple(tensors.get_slice(name).get_shape()), file

    def read(names: Sequence[str]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for file in files:
            if inside := [name for name in names if where[name] == file]:
                with _opened(file) as tensors:
                    found |= {name: tensors.get_tensor(name) for name in inside}
        return found

    return Stored(shapes, read)


def _opened(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError) as error:
        raise _damaged(file, error) from error


def _damaged(file: Path, error: Exception) -> UnusableModelError:
    return UnusableModelError(f"{file} is damaged: {first_line(error)}; copy it again from where it came")


def _pickled(files: Sequence[Path]) -> Stored:
    tensors = {name: tensor for file in files for name, tensor in _unpickled(file).items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    return Stored(shapes, lambda names: {name: tensors[name] for name in names})


def _unpickled(file: Path) -> Mapping[str, Tensor]:
    """The tensors of a file, mapped and not read; a file of the old format, which cannot be mapped, is read."""
    try:
        try:
            found = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:
            found = torch.load(file, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        raise UnusableModelError(f"{file} {PICKLE}") from error
    except Exception as error:  # truncated files raise arbitrary errors
        raise _damaged(file, error) from error
    if not isinstance(found, Mapping) or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise UnusableModelError(f"{file} holds no table of tensors by name: save the state_dict of the head")
    return found


# Keys of config.json that only heads have. EAGLE-1 has none, but its heads have no tokenizer.
KEYS = {"speculators_model_type", "dflash_config", "eagle_config", "medusa_num_heads", "n_predict", "pard_token"}
PROMISES = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
SHARDS = ("model-*-of-*.safetensors", "pytorch_model-*-of-*.bin")


def find(checkpoint: Checkpoint, target: Checkpoint) -> Head | None:
    """The head in a checkpoint, for this target; None for a network.

    An MTP module is in the files of its target: it is used if both have one source. UnusableModelError
    for a head that is refused or damaged, and for a module that is declared but missing.
    """
    if checkpoint.file or checkpoint.shape:
        return None
    same = (checkpoint.source, checkpoint.revision) == (target.source, target.revision)
    folder = folder_of(checkpoint, same)
    head = read_head(folder, checkpoint.name)
    if head is None and same and promises_mtp(folder):
        files = open_files(folder)
        why = without_mtp(config_of(folder) or {}, files.shapes if files else {})
        raise UnusableModelError(f"{checkpoint.name}: its config.json names an MTP module, but {why}")
    inside = head is not None and head.kind == "mtp" and head.format != SPECULATORS
    return None if inside and not same else head


def folder_of(checkpoint: Checkpoint, same: bool) -> Path:
    """The folder of its files, with its weights if it may be a head, or if its target has one (`same`)."""
    folder = names.fetch(checkpoint)
    described = KEYS & set(config_of(folder) or ())
    tokenizer = any(any(folder.glob(pattern)) for pattern in TOKENIZER_FILES)
    wanted = described or not tokenizer or (same and promises_mtp(folder))
    if Path(checkpoint.source).is_dir() or not wanted:
        return folder
    return names.fetch(checkpoint, (*SAFETENSORS, *SHARDS, *PICKLED))


def promises_mtp(folder: Path) -> bool:
    """Whether a configuration declares an MTP module next to the network."""
    config = config_of(folder) or {}
    return any(bool(part_.get(key)) for part_ in (config, part(config, "text_config")) for key in PROMISES)
