"""The least address space that the libraries below specbench can be loaded in."""

import sys

from specbench.errors import UnusableModelError

LEAST = 2 << 30  # bytes; measured with the demo pair: below 1.5 GiB it ends in as many ways as there are libraries


def refuse_too_small() -> None:
    """Ask for more than `ulimit -v` gives, before a library crashes or waits for ever in the middle of its loading.

    Raises UnusableModelError.
    """
    if sys.platform == "win32":
        return
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < LEAST:
        raise UnusableModelError(
            f"out of memory before the start: this shell limits the address space to {limit >> 20} MiB, "
            f"and loading torch takes {LEAST >> 20} MiB: raise it (ulimit -v unlimited)"
        )
