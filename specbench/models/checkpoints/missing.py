"""Whether a checkpoint is on this machine or can be had from the hub; and what is missing of it, as a download.

Knows the files of checkpoints and what the hub says about them; must not know what a checkpoint is needed for.
"""

from pathlib import Path

from specbench import hub
from specbench.errors import UnusableModelError
from specbench.hub_refusals import refused
from specbench.missing import Missing
from specbench.models.checkpoints import weights
from specbench.models.checkpoints.hub import download_command, fetch, repository
from specbench.models.checkpoints.pairs import Checkpoint

WEIGHTS = (".safetensors", ".bin")


def unavailable(role: str, checkpoint: Checkpoint) -> Missing | None:
    """What is missing of the checkpoint of a role and will not come by itself; None where all is here or can be had."""
    if Path(checkpoint.source).exists():
        return None
    try:
        folder = fetch(checkpoint)
    except UnusableModelError as error:
        said = error.__cause__
        return described(role, checkpoint, str(error), said and said.__cause__)
    if weights.there(checkpoint, folder) or hub.answer_of(repository(checkpoint)) is None:
        return None
    return described(role, checkpoint, without_weights(checkpoint), None)


def described(role: str, checkpoint: Checkpoint, message: str, cause: BaseException | None) -> Missing:
    """A checkpoint that cannot be had, with its size where the hub says it. cause: what the hub answered, if it did."""
    refusal = message.removeprefix(f"{repository(checkpoint).subject} ") if refused(cause) else ""
    return Missing(role, checkpoint.name, message, download_command(checkpoint), refusal, download_size(checkpoint))


def without_weights(checkpoint: Checkpoint) -> str:
    return (
        f"{repository(checkpoint).subject}: its weights are not in the cache, and the hub does not answer: run "
        f"`{download_command(checkpoint)}` where there is a network"
    )


def download_size(checkpoint: Checkpoint) -> int | None:
    """The bytes of the files of a checkpoint that a run reads; None where the hub does not say."""
    sizes = hub.file_sizes(repository(checkpoint))
    own = {name: size for name, size in sizes.items() if "/" not in name}
    kinds = [sum(size for name, size in own.items() if name.endswith(kind)) for kind in WEIGHTS]
    small = sum(size for name, size in own.items() if name.endswith(".json"))
    return small + next(size for size in kinds if size) if any(kinds) else None
