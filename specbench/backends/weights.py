"""The weights of a role, read, and probed for how tokens are taken back from the network.

Knows checkpoints and networks; must not know specs or methods.
"""

from collections.abc import Mapping
from typing import Any

import torch

from specbench.backends import heads
from specbench.backends.base import Loading, unseen
from specbench.backends.roles import Role
from specbench.errors import TooLargeError, out_of_memory
from specbench.models.checkpoints import loading
from specbench.models.checkpoints.description import recurrent
from specbench.models.network.probe import Rollback, rollback_of


def read_role(
    role: Role, read: Mapping[str, Any], width: int, device: torch.device, watch: Loading
) -> tuple[loading.Loaded, Rollback]:
    """The same for a role that a head may play, which is read after its target: `read` are those read before."""
    if role.head is None or not role.borrows:
        return read_weights(role, width, device, watch)
    return heads.load(role, role.head, read["target"]), "position"


def read_weights(
    role: Role, width: int, device: torch.device, watch: Loading = unseen
) -> tuple[loading.Loaded, Rollback]:
    """The network of a role, for rows of `width`; `watch` hears how many bytes have been fetched and read.

    UnusableModelError for one that cannot be read, or taken back; TooLargeError where memory is not enough.
    """

    def named(verb: str, done: int, total: int) -> None:
        watch(f"{verb} {role.checkpoint.name}", done, total)

    try:
        loaded = loading.load_model(role.checkpoint, role.dtype, device, named, role.how)
    except Exception as error:
        if not out_of_memory(error):
            raise
        raise TooLargeError(
            f"{role.checkpoint.name}: its weights do not fit into the memory of {device}; "
            "choose a smaller --dtype, a smaller model or --device cpu"
        ) from error
    return loaded, rollback_of(loaded.model, recurrent(role.config), width, role.checkpoint.name)
