"""A pair and its tier, which depend on each other: what is asked for, what the pair takes, and dtypes by the tier.

Knows specs, configurations and tiers; must not know weights or methods.
"""

from collections.abc import Sequence
from dataclasses import replace

from specbench.backends import foreign, recurrent
from specbench.backends.checked import CheckedPair, check_models
from specbench.backends.forms import form, refuse_heads, unthinking
from specbench.backends.heads import refuse_deep
from specbench.backends.tier_choice import AUTO, choose, eager, not_whole, packs
from specbench.backends.tiers import Tier
from specbench.models.checkpoints import description
from specbench.models.checkpoints.quantise import UncompiledError
from specbench.spec import RunSpec

HELD = {"compile": "compiled", "graph": "captured"}  # rounds that take memory of their own, by tier
Opened = tuple[CheckedPair, Tier, str]


def frugal(specs: Sequence[RunSpec], tier: Tier) -> Opened | None:
    """The pair in the tier that takes the least memory; None where that is its own, or another was asked for."""
    if specs[0].tier != AUTO or tier.name not in HELD:
        return None
    return opened(specs, f"memory is not enough for {HELD[tier.name]} rounds")


def opened(specs: Sequence[RunSpec], eager_for: str = "") -> Opened:
    """The pair, its tier, and what to know about that. Raises UsageError or UnusableModelError.

    eager_for: unless empty, why the tier is eager, which must have been left to us.
    """
    device = description.resolve_device(specs[0].device)
    name, why = eager(eager_for) if eager_for else choose(specs, device)
    try:
        pair = check_models(specs, device, name)
    except UncompiledError as error:
        if specs[0].tier != AUTO:
            raise
        return opened(specs, error.why)
    if recurrent.roles(pair):
        before, (name, why) = name, recurrent.checked(pair, specs)
        pair = pair if name == before else check_models(specs, device, name)  # dtypes depend on the tier
    for spec in specs if pair.heads else ():
        refuse_heads(spec, pair.heads)
        refuse_deep(spec, pair.heads, form(spec, None).drafter.depth)
    if joined := foreign.checked(pair, specs):
        before, (name, why) = name, joined
        pair = pair if name == before else check_models(specs, device, name)
    pair = replace(pair, warnings=(*pair.warnings, *unthinking(specs, pair.thinking)))
    tier = Tier(name, device, not_whole(specs[0]), packs(specs[0], name, device))
    return pair, tier, f"tier {name}: {why}"
