"""Whether cells can be measured here: what they need and this machine lacks, found before a weight is read.

Knows backends, data sets and free memory; must not know how anything is decoded or shown.
"""

from collections.abc import Iterable, Sequence

import torch

from specbench import hub
from specbench.backends.base import Backend, Held
from specbench.backends.choose import backend_for
from specbench.data import sources
from specbench.errors import TooLargeError
from specbench.missing import Missing, MissingError
from specbench.models.execution.free_memory import free_memory, resident
from specbench.spec import RunSpec
from specbench.theory.memory import Fit

HOST = torch.device("cpu")


def complete_backend(specs: Sequence[RunSpec]) -> Backend:
    """The backend of a pair whose checkpoints and data sets are here or can be fetched; else a MissingError.

    Where a data set is all that is missing, whoever reads it says so.
    """
    try:
        backend = backend_for(specs)
    except MissingError as error:
        raise MissingError([*error.parts, *lacking_data(specs)]) from error
    if len(lacking := lacking_data(specs)) > 1:
        raise MissingError(lacking)
    return backend


def lacking_data(specs: Iterable[RunSpec]) -> list[Missing]:
    """The data sets that can neither be found on this machine nor be fetched."""
    found = []
    for dataset in dict.fromkeys(spec.dataset for spec in specs):
        if (source := sources.hub_file(dataset)) is None:
            continue
        repository = sources.repository(dataset, source)
        try:
            hub.one_file(repository, source.file)
        except hub.UnavailableError as error:
            found.append(unavailable(dataset, repository, source.file, error))
    return found


def unavailable(dataset: str, repository: hub.Repository, file: str, error: hub.UnavailableError) -> Missing:
    """A data set that cannot be had."""
    refusal = str(error).removeprefix(f"{repository.subject} ") if hub.refused(error.__cause__) else ""
    return Missing("data set", dataset, str(error), repository.command(file), refusal)


def fit_of(backend: Backend, held: Sequence[Held]) -> Fit | None:
    """The memory that measuring takes beside what there is; None where the engine does not know."""
    demand = backend.demand(held)
    if demand is None:
        return None
    here = backend.device.type == HOST.type
    host = None if here else free_memory(HOST)
    return Fit(str(backend.device), demand, free_memory(backend.device), host, resident() if here else 0)


def refuse_too_large(fit: Fit | None) -> None:
    """TooLargeError where memory is not enough, saying what would fit."""
    if fit is not None and not fit.fits:
        raise TooLargeError(fit.refusal)
