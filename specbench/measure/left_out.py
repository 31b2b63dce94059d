"""Which cells of a pair memory is enough for, by the estimate: the others are left out, and end as `oom`.

Knows estimates and failures; must not know how anything is decoded.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specbench.backends.base import Backend, Held
from specbench.errors import SMALLER, TooLargeError
from specbench.measure.failures import Failure
from specbench.measure.fit import fit_of, refuse_too_large
from specbench.spec import RunSpec
from specbench.theory.memory import Fit
from specbench.wording import gigabytes


@dataclass(frozen=True)
class Fitting:
    """The memory that all cells take which are measured, beside what there is, None where nobody knows; why the others
    are not; and the bytes that each takes with its baseline alone."""

    fit: Fit | None = None
    left_out: Mapping[RunSpec, Failure] = field(default_factory=dict)
    sizes: Mapping[RunSpec, int] = field(default_factory=dict)

    def row(self, spec: RunSpec) -> dict[str, Any]:
        """As columns: what a cell takes by the estimate, and what was free before anything was read; in bytes."""
        return {"memory_estimate": self.sizes.get(spec), "memory_free": self.fit and self.fit.free}


def fitting(backend: Backend, held: Sequence[Held]) -> Fitting:
    """The cells of some groups that fit. TooLargeError, saying what would help, where none does."""
    fit = fit_of(backend, held)
    if fit is None:
        return Fitting()
    known = {spec: fit.demand.cells.get(spec.key, fit.total) for one in held for spec in one.specs}
    out = {spec: alone(fit, size) for spec, size in known.items() if not fit.holds(size)}
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
    """`fitting`, and for what: where it is left to the backend, in the way of execution that leaves out fewer cells."""
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


def alone(fit: Fit, size: int) -> Failure:
    free = gigabytes(fit.free or 0)
    return Failure(
        "oom", f"it takes about {gigabytes(size)} of the memory of {fit.device}, of which {free} are free: {SMALLER}"
    )


def beside(fit: Fit, size: int) -> Failure:
    """Of a cell that fits alone."""
    return Failure(
        "oom",
        f"it takes about {gigabytes(size)} of the memory of {fit.device}, which is not free beside the other cells: "
        "measure it in a run of its own",
    )
