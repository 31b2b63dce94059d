"""The files of a checkpoint for another engine to read, which knows nothing of ours.

Knows roles and files; must not know any engine.
"""

from pathlib import Path

from specbench.backends.roles import Role
from specbench.errors import UsageError
from specbench.models.checkpoints import reduced, weights


def refuse_ours(engine: str, role: Role) -> None:
    """UsageError for a checkpoint that only we can read."""
    checkpoint = role.checkpoint
    if checkpoint.shape is not None:
        raise UsageError(
            f"--backend {engine}: {checkpoint.name} is grown when it is loaded: write it once with `specbench models "
            "grow`, and name that folder"
        )
    if known := reduced.label(role.config):
        raise UsageError(
            f"--backend {engine}: the head of {checkpoint.name} knows {known}, which that engine cannot read: train a "
            "draft with a whole head, or use --backend native"
        )


def files_of(role: Role) -> tuple[Path, list[Path]]:
    """The folder and the weight files of a role, fetched where they are not there yet."""
    folder, found = weights.find(role.checkpoint)
    return folder.resolve(), found  # the files of a hub are links to others with no endings
