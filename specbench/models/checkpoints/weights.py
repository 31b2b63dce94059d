"""The weight files of a checkpoint: which there are, and whether they are whole. Opens headers, reads no weights."""

import json
from functools import partial
from pathlib import Path

from safetensors import SafetensorError, safe_open

from specbench.errors import UnusableModelError
from specbench.files import ANY, check_regular, read_whole
from specbench.models.checkpoints import gguf_files, hub
from specbench.models.checkpoints.bounds import LARGEST
from specbench.models.checkpoints.pairs import Checkpoint
from specbench.models.checkpoints.reading import Watch, unwatched
from specbench.wording import first_line

ADAPTED = ("adapter_model.safetensors", "adapter_model.bin")
DAMAGED = (ValueError, KeyError, AttributeError, TypeError, RecursionError, OSError)  # what a wrong index raises


def find(checkpoint: Checkpoint, watch: Watch = unwatched) -> tuple[Path, list[Path]]:
    """The folder of a checkpoint and its weight files: its GGUF file, else safetensors, else pickled files.

    `watch` hears how many bytes have been fetched.
    """
    if checkpoint.file:
        folder = gguf_files.fetch(checkpoint)
        return folder, [folder / checkpoint.file]
    for patterns in (hub.SAFETENSORS, hub.PICKLED):
        single = patterns[0]
        folder = hub.fetch(checkpoint, patterns, partial(watch, "fetching"))
        if (folder / single).exists():
            return folder, [_whole(checkpoint, folder, folder / single)]
        index = folder / f"{single}.index.json"
        if index.exists():
            return folder, [_whole(checkpoint, folder, file) for file in _shards(checkpoint, index)]
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
                return _existing(listed(index))
            except DAMAGED:
                return [index]
    return []


def _existing(files: list[Path]) -> list[Path]:
    return files if all(file.exists() for file in files) else []


def listed(index: Path) -> list[Path]:
    """The files that an index names; one of the errors `DAMAGED` for an index that is not usable."""
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


def _inside(folder: Path, found: Path) -> bool:
    """Whether a file is in a folder, or the cache of the hub has it for this folder, which may come from anybody."""
    blobs = folder.parents[1] / "blobs" if folder.parent.name == "snapshots" else folder
    return found.is_relative_to(folder) or found.parent == blobs.resolve()


def _again(checkpoint: Checkpoint) -> str:
    if Path(checkpoint.source).is_dir():
        return "; copy it again from where it came"
    return f"; delete it and run `{hub.download_command(checkpoint)}`"
