"""The files of a checkpoint as a local folder: the folder itself, or a snapshot in the hub's cache, fetched if need be.

Knows which files of a repository belong to a checkpoint; must not know what is in them, or how the hub is asked.
"""

from pathlib import Path
from typing import Any

from specbench import hub
from specbench.errors import UnusableModelError
from specbench.models.checkpoints.pairs import HUB_ID, Checkpoint
from specbench.repository import COMMIT, Repository

DESCRIPTION = ("*.json", "*.model", "*.txt", "*.jinja", "*.tiktoken")  # configuration and tokenizer: everything small
SAFETENSORS = ("model.safetensors", "model-*-of-*.safetensors", "model.safetensors-*-of-*.safetensors")
PICKLED = ("pytorch_model.bin", "pytorch_model-*-of-*.bin")


def fetch(checkpoint: Checkpoint, weights: tuple[str, ...] = (), bars: type[Any] | None = None) -> Path:
    """The folder with the description of `checkpoint` and those of the given weight files that it has.

    `bars` shows progress: a class like `tqdm`, made for the bytes of all files together.
    """
    if Path(checkpoint.source).is_dir():
        return Path(checkpoint.source)
    if not HUB_ID.fullmatch(checkpoint.source):
        raise UnusableModelError(f"{checkpoint.name}: there is no folder {checkpoint.source}")
    try:
        return hub.snapshot(repository(checkpoint), [*DESCRIPTION, *weights], bars)
    except hub.UnavailableError as error:
        raise UnusableModelError(str(error)) from error


def repository(checkpoint: Checkpoint) -> Repository:
    return Repository(checkpoint.source, checkpoint.revision, checkpoint.name, gated=checkpoint.gated)


def commit(folder: Path) -> str | None:
    """The commit a snapshot in the hub's cache was taken from; None for any other folder."""
    return folder.name if folder.parent.name == "snapshots" and COMMIT.fullmatch(folder.name) else None


def download_command(checkpoint: Checkpoint) -> str:
    return repository(checkpoint).command()
