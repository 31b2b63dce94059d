"""Whether a checkpoint is on this machine or available from the hub; and its missing parts, as a download."""

import json
from pathlib import Path

from specbench import hub
from specbench.errors import Missing, UnusableModelError
from specbench.files import read_whole
from specbench.models.checkpoints import quantise, weights
from specbench.models.checkpoints.bounds import LARGEST
from specbench.models.checkpoints.names import Checkpoint, download_command, fetch, install, repository, require

WEIGHTS = (".safetensors", ".bin")


def unavailable(role: str, checkpoint: Checkpoint) -> Missing | None:
    """The missing part of a role's checkpoint that cannot be fetched; None if all is here or available."""
    if Path(checkpoint.source).exists():
        return None
    try:
        folder = fetch(checkpoint)
    except UnusableModelError as error:
        said = error.__cause__
        return described(role, checkpoint, str(error), said and said.__cause__)
    if weights.there(checkpoint, folder) or hub.answer_of(repository(checkpoint)) is None:
        return None
    absent = (
        f"{repository(checkpoint).subject}: its weights are not in the cache, and the hub does not answer: run "
        f"`{download_command(checkpoint)}` where there is a network"
    )
    return described(role, checkpoint, absent, None)


def without_extra(checkpoint: Checkpoint) -> Missing | None:
    """The missing extra of ours that installs a checkpoint's reader; checks its description."""
    try:
        extra, words = needed_extra(checkpoint, fetch(checkpoint))
    except UnusableModelError:
        return None  # unknown: the checkpoint itself is missing
    return lacking_extra(extra, f"{checkpoint.name}: {words}") if extra else None


def lacking_extra(extra: str, words: str) -> Missing | None:
    """A missing extra; `words` describe its use."""
    try:
        require(extra, words)
    except UnusableModelError as error:
        return Missing("extra", extra, str(error), install(extra))
    return None


def needed_extra(checkpoint: Checkpoint, folder: Path) -> tuple[str, str]:
    """The extra that a checkpoint needs, and the reason; empty for an ordinary one."""
    if checkpoint.file:
        return "gguf", "a GGUF file"
    if (folder / weights.ADAPTER).is_file():
        return "peft", "an adapter"
    try:
        found = json.loads(read_whole(folder / "config.json", LARGEST)).get("quantization_config") or {}
        method = str(found.get("quant_method"))
    except (OSError, ValueError, AttributeError, RecursionError):
        return "", ""  # the reader of the configuration reports the error
    need = quantise.NEEDS.get(method)
    return (need.extra, f"its weights are quantised by {method}, which") if need else ("", "")


def described(role: str, checkpoint: Checkpoint, message: str, cause: BaseException | None) -> Missing:
    """An unavailable checkpoint, with its size if the hub reports it. cause: the hub's answer, if any."""
    refusal = message.removeprefix(f"{repository(checkpoint).subject} ") if hub.refused(cause) else ""
    return Missing(role, checkpoint.name, message, download_command(checkpoint), refusal, download_size(checkpoint))


def download_size(checkpoint: Checkpoint) -> int | None:
    """The bytes of a checkpoint's files that a run reads; None if the hub does not report them."""
    sizes = hub.file_sizes(repository(checkpoint))
    own = {name: size for name, size in sizes.items() if "/" not in name}
    kinds = [sum(size for name, size in own.items() if name.endswith(kind)) for kind in WEIGHTS]
    small = sum(size for name, size in own.items() if name.endswith(".json"))
    return small + next(size for size in kinds if size) if any(kinds) else None
