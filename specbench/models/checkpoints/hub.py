"""The files of a checkpoint as a local folder: the folder itself, or a snapshot in the hub's cache, fetched if need be.

Knows the hub and what it answers when something is wrong; must not know what is in the files.
"""

import logging
import re
from pathlib import Path

import huggingface_hub
from huggingface_hub import constants, is_offline_mode
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils.logging import set_verbosity
from huggingface_hub.utils.tqdm import disable_progress_bars

from specbench.errors import UnusableModelError
from specbench.models.checkpoints.pairs import HUB_ID, Checkpoint
from specbench.wording import first_line

DESCRIPTION = ("*.json", "*.model", "*.txt", "*.jinja", "*.tiktoken")  # configuration and tokenizer: everything small
SAFETENSORS = ("model.safetensors", "model-*-of-*.safetensors", "model.safetensors-*-of-*.safetensors")
PICKLED = ("pytorch_model.bin", "pytorch_model-*-of-*.bin")


def fetch(checkpoint: Checkpoint, weights: tuple[str, ...] = ()) -> Path:
    """The folder with the description of `checkpoint` and those of the given weight files that it has."""
    if Path(checkpoint.source).is_dir():
        return Path(checkpoint.source)
    if not HUB_ID.fullmatch(checkpoint.source):
        raise UnusableModelError(f"{checkpoint.name}: there is no folder {checkpoint.source}")
    disable_progress_bars()  # the caller says what it is waiting for
    set_verbosity(logging.ERROR)
    try:
        folder = huggingface_hub.snapshot_download(
            checkpoint.source,
            revision=checkpoint.revision,
            allow_patterns=[*DESCRIPTION, *weights],
            ignore_patterns=["*/*"],
            local_files_only=not _reachable(checkpoint),
        )
    except Exception as error:  # besides its own errors the hub lets those of its HTTP library through
        raise UnusableModelError(f"{checkpoint.name}: {_reason(checkpoint, error)}") from error
    return Path(folder)


def _reachable(checkpoint: Checkpoint) -> bool:
    """Whether the hub answers, whatever it says: asked first, because a download gives up only after half a minute."""
    if is_offline_mode():
        return False
    try:
        huggingface_hub.HfApi().model_info(checkpoint.source, revision=checkpoint.revision, timeout=10)
    except HfHubHTTPError:
        return True
    except Exception:  # no connection, no proxy, no answer in time: each an error of the HTTP library
        return False
    return True


def commit(folder: Path) -> str | None:
    """The commit a snapshot in the hub's cache was taken from; None for any other folder."""
    return folder.name if folder.parent.name == "snapshots" and re.fullmatch("[0-9a-f]{40}", folder.name) else None


def _reason(checkpoint: Checkpoint, error: Exception) -> str:
    repo, url = checkpoint.source, f"{constants.ENDPOINT}/{checkpoint.source}"
    if isinstance(error, GatedRepoError):
        return f"{repo} is gated: accept its conditions on {url}, then {_log_in()}"
    if isinstance(error, RepositoryNotFoundError):
        # The hub gives the same answer for what does not exist and for what it does not show to us.
        return f"{repo} does not exist (neither as a folder nor at {url}), or it is gated or private: then {_log_in()}"
    if isinstance(error, RevisionNotFoundError):
        return f"{repo} has no revision {checkpoint.revision}: see {url}/commits/main"
    if isinstance(error, HfHubHTTPError):
        return f"the hub refused {repo} with status {error.response.status_code}: {first_line(error)}"
    if isinstance(error, OSError) and error.errno:
        return f"{repo} could not be fetched into {constants.HF_HUB_CACHE}: {error.strerror}"
    return _unreachable(checkpoint, error)


def _log_in() -> str:
    if huggingface_hub.get_token():
        return "check that the token in use may read it (`hf auth whoami`, HF_TOKEN)"
    return "log in with `hf auth login` or set HF_TOKEN (no token is set)"


def _unreachable(checkpoint: Checkpoint, error: Exception) -> str:
    login = " (it is gated: log in with `hf auth login` first)" if checkpoint.gated else ""
    return (
        f"{checkpoint.source} is not complete in the cache and the hub cannot be reached ({_cause(error)}): "
        f"run `{download_command(checkpoint)}` where there is a network{login}"
    )


def _cause(error: Exception) -> str:
    if is_offline_mode():
        return "HF_HUB_OFFLINE is set"
    if isinstance(error, LocalEntryNotFoundError):
        return f"no answer from {constants.ENDPOINT}"
    return f"{type(error).__name__}: {first_line(error)}"


def download_command(checkpoint: Checkpoint) -> str:
    revision = f" --revision {checkpoint.revision}" if checkpoint.revision else ""
    return f"hf download {checkpoint.source}{revision}"
