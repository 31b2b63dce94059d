"""Which engine measures a pair, ours or of another package: the only place that knows all of them by name."""

from collections.abc import Callable, Sequence

from specbench import plugins
from specbench.backends import native
from specbench.backends.base import Backend
from specbench.backends.generation import backend as generation
from specbench.backends.server import backend as server
from specbench.errors import UsageError
from specbench.spec import RunSpec
from specbench.wording import near

BACKENDS: dict[str, Callable[[Sequence[RunSpec]], Backend]] = {
    native.NAME: native.open_pair,
    generation.NAME: generation.open_pair,
    server.NAME: server.open_pair,
}


def backend_for(specs: Sequence[RunSpec]) -> Backend:
    """The backend of one pair, checked without weights. Raises UsageError or UnusableModelError."""
    name = specs[0].backend or native.NAME
    if name in BACKENDS:
        return BACKENDS[name](specs)
    added = plugins.names(plugins.BACKENDS, BACKENDS)
    if name not in added:
        known = [*BACKENDS, *added]
        raise UsageError(f"unknown --backend {name[:60]!r}{near(name, known)}: choose one of {', '.join(known)}")
    found: Backend = plugins.load(plugins.BACKENDS, name)(specs)
    return found
