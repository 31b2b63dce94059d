"""Requirements that this machine may lack, checked before weights are loaded: memory, checkpoints, data and extras."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from specbench import hub
from specbench.backends.base import Backend, Held
from specbench.backends.checked import checkpoints_of, lacking_extras
from specbench.backends.choose import backend_for
from specbench.backends.engines.install import LLAMA_CPP, VLLM
from specbench.backends.roles import shipped_source
from specbench.data import sources
from specbench.errors import SMALLER, Missing, TooLargeError
from specbench.measure.group import Failure, attempt
from specbench.models.checkpoints import loading, weights
from specbench.models.checkpoints.names import Checkpoint, fetch, repository
from specbench.models.execution.machine import free_memory, resident
from specbench.spec import RunSpec
from specbench.theory.memory import Fit
from specbench.wording import gigabytes

HOST = torch.device("cpu")
ANSWERS = (4096, 8192)  # tokens of two answers, whose caches differ by what a token takes
State = Literal["here", "to fetch", "missing"]


def fit_of(backend: Backend, held: Sequence[Held]) -> Fit | None:
    """Required and free memory; None if the engine cannot estimate it."""
    demand = backend.demand(held)
    if demand is None:
        return None
    if demand.place is not None:
        return Fit(demand.place[0], demand, demand.place[1], None)
    here = backend.device.type == HOST.type
    host = None if here else free_memory(HOST)
    return Fit(str(backend.device), demand, free_memory(backend.device), host, resident() if here else 0)


def refuse_too_large(fit: Fit | None) -> None:
    """Raise TooLargeError if memory is insufficient, naming what would fit."""
    if fit is not None and not fit.fits:
        raise TooLargeError(fit.refusal)


@dataclass(frozen=True)
class Fitting:
    """Required and free memory of the measured cells, None if unknown; left-out cells; baseline-only sizes in bytes."""

    fit: Fit | None = None
    left_out: Mapping[RunSpec, Failure] = field(default_factory=dict)
    sizes: Mapping[RunSpec, int] = field(default_factory=dict)

    def row(self, spec: RunSpec) -> dict[str, Any]:
        """As columns: the estimated memory of a cell, and the free memory before loading; in bytes."""
        return {"memory_estimate": self.sizes.get(spec), "memory_free": self.fit and self.fit.free}


def fitting(backend: Backend, held: Sequence[Held]) -> Fitting:
    """The cells of some groups that fit. TooLargeError, with a remedy, if none does."""
    fit = fit_of(backend, held)
    if fit is None:
        return Fitting()
    known = {spec: fit.demand.cells.get(spec.key, fit.total) for one in held for spec in one.specs}
    out = {spec: too_large(fit, size) for spec, size in known.items() if not fit.holds(size)}
    rest: Fit | None = fit
    while rest is not None and not rest.fits:
        left = without(held, out)
        rest = fit_of(backend, left) if left else None
        if rest is not None and not rest.fits:
            largest = max((spec for one in left for spec in one.specs), key=known.__getitem__)
            out[largest] = beside(fit, known[largest])
    if rest is None:
        refuse_too_large(fit)
    return Fitting(rest, out, known)


def roomiest(backend: Backend, held: Sequence[Held]) -> tuple[Backend, Fitting]:
    """`fitting`, and the backend used: if it may choose, the execution tier that leaves out fewer cells."""
    try:
        found = fitting(backend, held)
    except TooLargeError:
        if (other := backend.frugal()) is None:
            raise
        return other, fitting(other, held)
    if not found.left_out or (other := backend.frugal()) is None:
        return backend, found
    instead = fitting(other, held)
    return (other, instead) if len(instead.left_out) < len(found.left_out) else (backend, found)


def without(held: Sequence[Held], specs: Collection[RunSpec]) -> list[Held]:
    """The groups without some of their cells."""
    some = [replace(one, specs=[spec for spec in one.specs if spec not in specs]) for one in held]
    return [one for one in some if one.specs]


def too_large(fit: Fit, size: int) -> Failure:
    free = gigabytes(fit.free or 0)
    return Failure(
        "oom", f"it takes about {gigabytes(size)} of the memory of {fit.device}, and {free} are free: {SMALLER}"
    )


def beside(fit: Fit, size: int) -> Failure:
    """The failure of a cell that would fit alone."""
    return Failure(
        "oom",
        f"it takes about {gigabytes(size)} of the memory of {fit.device}, which is not free with the other cells "
        "loaded: measure it in a run of its own",
    )


def draft_memory(spec: RunSpec) -> str:
    """The memory that the draft of a cell takes, and the tokens whose keys and values then fit into what is free, in
    one slot or in several; empty without a draft, or if sizes are not known."""
    found, each = attempt(lambda: backend_for([spec])), list[int]()
    if isinstance(found, Failure) or spec.backend in (VLLM, LLAMA_CPP):  # these count all weights for each process
        return ""
    for one in (spec.baseline, spec):
        fit, longer = (fit_of(found, [Held([one.with_(batch=1, max_new_tokens=n)], 0)]) for n in ANSWERS)
        if fit is None or longer is None:
            return ""
        parts = fit.demand.parts, longer.demand.parts
        short, long = (sum(part.size for part in some if part.kind == "caches") for some in parts)
        each.append((long - short) // (ANSWERS[1] - ANSWERS[0]))
        weights, free = [part for part in fit.demand.parts if part.kind.endswith("weights")], fit.free
    target, draft = (sum(part.size for part in weights if (part.role == "target") is own) for own in (True, False))
    alone, both = each
    taken = f"{gigabytes(draft)} and {(both - alone) / 1000:.1f} kB a token" if draft or both > alone else ""
    if not taken or free is None or not alone:
        return taken
    before, after = (max(free - size, 0) // cache for size, cache in ((target, alone), (target + draft, both)))
    return f"{taken}: room for {after:,} tokens, not {before:,}" + (f" (−{1 - after / before:.0%})" if before else "")


@dataclass(frozen=True)
class Needed:
    """A required item. size: in bytes, None if unknown; command: fetches it, empty if it is local.

    why: the reason that a missing item is not fetched automatically.
    """

    what: str
    name: str
    source: str
    state: State
    size: int | None = None
    command: str = ""
    why: str = ""

    @property
    def row(self) -> dict[str, Any]:
        """For programs: the size in bytes."""
        found = {"kind": "needed", "what": self.what, "name": self.name, "state": self.state}
        return {**found, "bytes": self.size, "command": self.command}

    @property
    def line(self) -> dict[str, Any]:
        size = "" if self.size is None else gigabytes(self.size)
        origin = "" if self.source == self.name else self.source
        return {"name": self.name, "what": self.what, "state": self.state, "files": size, "from": origin}

    @property
    def lacking(self) -> Missing:
        """The same as a missing item, fetchable or not."""
        return Missing(self.what, self.name, self.why, self.command, size=self.size)


def needed(specs: Sequence[RunSpec]) -> list[Needed]:
    """All required items, in the order of their roles."""
    checkpoints = checkpoints_of(specs)
    models = [of_model(role, checkpoint) for role, checkpoint in checkpoints.items()]
    data = [of_data(name) for name in dict.fromkeys(spec.dataset for spec in specs)]
    extras = lacking_extras(checkpoints, specs[0])
    return [*models, *data, *(Needed(e.what, e.name, "", "missing", None, e.command, e.alone) for e in extras)]


def of_model(role: str, checkpoint: Checkpoint) -> Needed:
    """Check that weights are available without fetching them; small description files are fetched."""
    about = (role, checkpoint.name, shipped_source(checkpoint.source))
    if lacking := loading.unavailable(role, checkpoint):
        return Needed(*about, "missing", lacking.size, lacking.command, lacking.alone)
    folder = fetch(checkpoint)
    files = weights.there(checkpoint, folder)
    if files or Path(checkpoint.source).exists():
        return Needed(*about, "here", sum(file.stat().st_size for file in files))
    return Needed(*about, "to fetch", loading.download_size(checkpoint), repository(checkpoint).command())


def of_data(dataset: str) -> Needed:
    """A data set of the hub, or one that needs no download."""
    if (repository := sources.repository(dataset)) is None:
        return Needed("data set", dataset, "", "here")
    about = ("data set", dataset, repository.id)
    try:
        repository, files = sources.hub_files(dataset, repository)
    except hub.UnavailableError as error:
        return Needed(*about, "missing", None, repository.command(), str(error))
    here = [path for file in files if (path := hub.cached_file(repository, file))]
    if len(here) == len(files):
        return Needed(*about, "here", sum(path.stat().st_size for path in here))
    command, refusal = repository.command(" ".join(files)), hub.answer_of(repository)
    if refusal is None:
        sizes = hub.file_sizes(repository)
        return Needed(*about, "to fetch", sum(sizes.get(file, 0) for file in files) or None, command)
    return Needed(*about, "missing", None, command, hub.reason(repository, refusal, files[0]))
