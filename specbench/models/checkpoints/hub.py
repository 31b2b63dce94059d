"""The files of a checkpoint as a local folder: the folder itself, or a snapshot in the hub's cache."""

from pathlib import Path

from specbench import hub
from specbench.errors import UnusableModelError
from specbench.files import ANY, check_regular
from specbench.hub import COMMIT, Progress, Repository
from specbench.models.checkpoints.pairs import HUB_ID, Checkpoint
from specbench.wording import clean

DESCRIPTION = ("*.json", "*.model", "*.txt", "*.jinja", "*.tiktoken")  # configuration and tokenizer: everything small
READ = (*(pattern[1:] for pattern in DESCRIPTION), ".safetensors", ".bin", ".pt", ".py")
SAFETENSORS = ("model.safetensors", "model-*-of-*.safetensors", "model.safetensors-*-of-*.safetensors")
PICKLED = ("pytorch_model.bin", "pytorch_model-*-of-*.bin")


def fetch(checkpoint: Checkpoint, weights: tuple[str, ...] = (), progress: Progress | None = None) -> Path:
    """The folder with the description of `checkpoint` and those of the given weight files that it has."""
    if (folder := Path(checkpoint.source)).is_dir():
        refuse_unreadable(checkpoint, folder)
        return folder
    if not HUB_ID.fullmatch(checkpoint.source):
        raise UnusableModelError(f"{checkpoint.name}: there is no folder {checkpoint.source}")
    try:
        return hub.snapshot(repository(checkpoint), [*DESCRIPTION, *weights], progress)
    except hub.UnavailableError as error:
        raise UnusableModelError(str(error)) from error


def refuse_unreadable(checkpoint: Checkpoint, folder: Path) -> None:
    """UnusableModelError for a folder in which a file that a library may open is a pipe or a device: it would wait."""
    try:
        for path in folder.iterdir():
            if path.suffix in READ and path.exists() and not path.is_dir():
                check_regular(path, ANY)
    except OSError as error:
        found = clean(error.filename or folder, 300)
        raise UnusableModelError(f"{checkpoint.name}: cannot read {found}: {error.strerror}") from error


def repository(checkpoint: Checkpoint) -> Repository:
    return Repository(checkpoint.source, checkpoint.revision, checkpoint.name, gated=checkpoint.gated)


def commit(folder: Path) -> str | None:
    """The commit a snapshot in the hub's cache was taken from; None for any other folder."""
    return folder.name if folder.parent.name == "snapshots" and COMMIT.fullmatch(folder.name) else None


def download_command(checkpoint: Checkpoint) -> str:
    return repository(checkpoint).command()
