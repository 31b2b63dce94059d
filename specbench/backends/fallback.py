"""What becomes of a pair whose rounds cannot be compiled or captured: all of it is eager, or the tier is refused.

Knows tiers and exceptions; must not know networks, or how anything is compiled or captured.
"""

from specbench.backends.tier_choice import AUTO, PYTHON
from specbench.errors import SpecbenchError, UsageError, out_of_memory
from specbench.models.execution.compiled import Name
from specbench.spec import RunSpec
from specbench.wording import first_line

CANNOT: dict[Name, str] = {"compile": "cannot be compiled", "graph": "cannot be captured as CUDA graphs"}


def eager_instead(tier: Name, spec: RunSpec, error: Exception) -> str:
    """Why the arms of a pair are eager from now on, after an error while those of a spec were made ready in a tier.

    Raises what is no matter of the tier, and UsageError where the tier was asked for by its name.
    """
    if tier == "eager" or isinstance(error, SpecbenchError) or out_of_memory(error):
        raise error
    reason = f"rounds of {spec.method} {CANNOT[tier]} here ({type(error).__name__}: {first_line(error)})"
    if spec.tier != AUTO:
        raise UsageError(f"tier {spec.tier}: {reason}; use --tier eager, or auto, which then is eager") from error
    return f"{reason}, so baseline and methods are eager alike: {PYTHON}"
