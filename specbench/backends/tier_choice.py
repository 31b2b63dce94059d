"""Which tier the specs of a pair are executed in: the one asked for, where it measures what was asked for.

Knows specs, tiers and how weights are quantised; must not know networks.
"""

import torch

from specbench.errors import UsageError
from specbench.models.checkpoints.quantise import UNPACKED_BY_COMPILER
from specbench.models.execution import compiled
from specbench.spec import RunSpec


def choose(spec: RunSpec, device: torch.device) -> tuple[compiled.Name, str]:
    """(tier, what to know about it). UsageError where a tier is not to be had, or would unpack quantised weights."""
    if spec.device_map is not None:
        return _divided(spec, device)
    name, why = compiled.choose(spec.tier, device)
    kinds = [kind for kind in (spec.quantize, spec.draft_quantize) if kind is not None]
    unpacked = [kind for kind in kinds if kind in UNPACKED_BY_COMPILER]
    if name != "compile" or device.type != "cpu" or not unpacked:
        return name, why
    reason = f"a compiler that freezes weights unpacks {unpacked[0]} ones: they would take the time of unquantised ones"
    if spec.tier == "auto":
        return "eager", f"{reason}; {compiled.EAGER.partition(';')[0]}"
    raise UsageError(f"--tier compile: {reason}; use --tier eager, or int4, which stays packed")


def _divided(spec: RunSpec, device: torch.device) -> tuple[compiled.Name, str]:
    if spec.tier not in ("auto", "eager"):
        raise UsageError(
            f"--tier {spec.tier}: --device-map brings weights to {device} layer by layer: use --tier eager"
        )
    return compiled.choose("eager", device)
