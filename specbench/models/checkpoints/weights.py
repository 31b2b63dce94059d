"""The weight files of a checkpoint: which there are, and whether they are whole. Opens headers, reads no weights."""

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open

from specbench.errors import UnusableModelError
from specbench.files import ANY, check_regular
from specbench.models.checkpoints import gguf_files, hub
from specbench.models.checkpoints.pairs import Checkpoint
from specbench.models.checkpoints.progress import bars
from specbench.models.checkpoints.reading import Watch, unwatched
from specbench.wording import first_line

ADAPTED = ("adapter_model.safetensors", "adapter_model.bin")
DAMAGED = (ValueError, KeyError, AttributeError, TypeError)  # what a wrong index raises


def find(checkpoint: Checkpoint, watch: Watch = unwatched) -> tuple[Path, list[Path]]:
    """The folder of a checkpoint and its weight files: its GGUF file, else safetensors, else pickled files.

    `watch` hears how many bytes have been fetched.
    """
    if checkpoint.file:
        folder = gguf_files.fetch(checkpoint)
        return folder, [folder / checkpoint.file]
    for patterns in (hub.SAFETENSORS, hub.PICKLED):
        single = patterns[0]
        folder = hub.fetch(checkpoint, patterns, bars(watch))
        if (folder / single).exists():
            return folder, [_whole(checkpoint, folder / single)]
        index = folder / f"{single}.index.json"
        if index.exists():
            return folder, [_whole(checkpoint, file) for file in _shards(checkpoint, index)]
    expected = f"{hub.SAFETENSORS[0]} or {hub.PICKLED[0]}"
    raise UnusableModelError(f"{checkpoint.name}: no weights in {folder}, expected {expected}, whole or in shards")


def there(checkpoint: Checkpoint, folder: Path) -> list[Path]:
    """The weight files that a folder has, all shards of one kind; empty where one is missing. Not whether they are
    whole: who reads them says so."""
    if checkpoint.file:
        return _existing([folder / checkpoint.file])
    for single in (hub.SAFETENSORS[0], hub.PICKLED[0], *ADAPTED):
        index = folder / f"{single}.index.json"
        if found := _existing([folder / single]):
            return found
        if index.exists():
            try:
                return _existing(_listed(index))
            except DAMAGED:
                return [index]
    return []


def _existing(files: list[Path]) -> list[Path]:
    return files if all(file.exists() for file in files) else []


def _listed(index: Path) -> list[Path]:
    """The files that an index names; one of the errors `DAMAGED` for one that cannot be read."""
    return sorted(index.parent / str(name) for name in set(json.loads(index.read_bytes())["weight_map"].values()))


def _shards(checkpoint: Checkpoint, index: Path) -> list[Path]:
    try:
        files = _listed(index)
    except DAMAGED as error:
        raise UnusableModelError(f"{checkpoint.name}: {index} is damaged{_again(checkpoint)}") from error
    if absent := [file.name for file in files if not file.exists()]:
        raise UnusableModelError(f"{checkpoint.name}: {absent[0]} is missing in {index.parent}{_again(checkpoint)}")
    return files


def _whole(checkpoint: Checkpoint, file: Path) -> Path:
    # The header of a safetensors file states its length; transformers would not name the file that is too short.
    try:
        check_regular(file, ANY)
        if file.suffix == ".safetensors":
            with safe_open(file, framework="pt", backend="pread"):
                pass
    except (SafetensorError, OSError) as error:
        reason = f"{file} is damaged: {getattr(error, 'strerror', None) or first_line(error)}{_again(checkpoint)}"
        raise UnusableModelError(f"{checkpoint.name}: {reason}") from error
    return file


def _again(checkpoint: Checkpoint) -> str:
    if Path(checkpoint.source).is_dir():
        return "; copy it again from where it came"
    return f"; delete it and run `{hub.download_command(checkpoint)}`"
