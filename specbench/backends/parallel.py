"""A pair whose target several processes hold together, while each has the whole draft: what they can do in step.

Knows specs and the forms of methods; must not know how a network is split, or who writes results.
"""

from collections.abc import Callable, Collection, Sequence

from torch import Tensor

from specbench.decoding.method_files import leaves, read_method
from specbench.errors import UsageError
from specbench.models.checkpoints.divided import PARALLEL
from specbench.models.execution import processes
from specbench.spec import RunSpec

APART = ("Retrieval", "Distilled")  # parts that look into the target's own keys, or change weights on the way


def agreeing(spec: RunSpec) -> Callable[[Tensor], Tensor] | None:
    """How decisions become those of all processes; None where this is the only one."""
    return processes.decided if spec.tensor_parallel else None


def refuse_out_of_step(specs: Sequence[RunSpec], kept: Collection[str], heads: Collection[str]) -> None:
    """UsageError for what the processes of a target cannot do in step, or nobody has checked that they can."""
    if specs[0].tensor_parallel is None:
        return
    if parts := [*kept, *heads]:
        raise UsageError(f"{PARALLEL}: {parts[0]} drafts from parts of the target, which needs it whole")
    for method in dict.fromkeys(spec.method for spec in specs):
        found = {part for part, _, _ in leaves(read_method(method)["method"])}
        if wrong := [part for part in APART if part in found]:
            raise UsageError(f"{PARALLEL}: {method} uses {wrong[0]}, which needs a target in one process")
