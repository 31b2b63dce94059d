"""A pair and its tier, which depend on each other: what is asked for, what the pair takes, and dtypes by the tier.

Knows specs, configurations and tiers; must not know weights or methods.
"""

from collections.abc import Sequence

from specbench.backends import recurrent, tier_choice
from specbench.backends.checked import CheckedPair, check_models
from specbench.backends.tiers import Tier
from specbench.models.checkpoints import precision
from specbench.models.checkpoints.quantised import UncompiledError
from specbench.spec import RunSpec

AUTO = "auto"


def opened(specs: Sequence[RunSpec], eager_for: str = "") -> tuple[CheckedPair, Tier, str]:
    """The pair, its tier, and what to know about that. Raises UsageError or UnusableModelError.

    eager_for: unless empty, why the tier is eager, which must have been left to us.
    """
    device = precision.resolve_device(specs[0].device)
    left_to_us = specs[0].tier == AUTO
    name, why = tier_choice.eager(eager_for) if eager_for else tier_choice.choose(specs, device)
    try:
        pair = check_models(specs, device, name)
    except UncompiledError as error:
        if not left_to_us:
            raise
        return opened(specs, error.why)
    if recurrent.roles(pair):
        before, (name, why) = name, recurrent.checked(pair, specs)
        pair = pair if name == before else check_models(specs, device, name)  # dtypes depend on the tier
    return pair, Tier(name, device, not left_to_us), f"tier {name}: {why}"
