"""Which engine measures a pair: the only place that knows all of them by name."""

from collections.abc import Callable, Sequence

from specbench.backends import native
from specbench.backends.base import Backend
from specbench.backends.generation import backend as generation
from specbench.backends.server import backend as server
from specbench.spec import RunSpec

BACKENDS: dict[str, Callable[[Sequence[RunSpec]], Backend]] = {
    native.NAME: native.open_pair,
    generation.NAME: generation.open_pair,
    server.NAME: server.open_pair,
}


def backend_for(specs: Sequence[RunSpec]) -> Backend:
    """The backend of one pair, checked without weights. Raises UsageError or UnusableModelError."""
    return BACKENDS[specs[0].backend or native.NAME](specs)
