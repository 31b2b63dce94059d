"""Which tier the specs of a pair are executed in: the one asked for, where it measures what was asked for.

Knows specs, the forms of methods, tiers and how weights are quantised; must not know networks.
"""

from collections.abc import Sequence

import torch

from specbench.backends.forms import form
from specbench.errors import UsageError
from specbench.models.checkpoints.quantise import UNPACKED_BY_COMPILER
from specbench.models.execution import compiled
from specbench.spec import RunSpec

PYTHON = compiled.EAGER.partition(";")[0]


def choose(specs: Sequence[RunSpec], device: torch.device) -> tuple[compiled.Name, str]:
    """(tier, what to know about it) of the cells of a pair. UsageError where a tier is not to be had, or would unpack
    quantised weights; auto then is eager, as it is where compiling would take minutes."""
    spec = specs[0]
    if spec.device_map is not None:
        return _divided(spec, device)
    name, why = compiled.choose(spec.tier, device)
    if name != "compile" or device.type != "cpu":
        return name, why
    unpacked, slow = _unpacked(spec), _slow(specs)
    if unpacked and spec.tier == "compile":
        raise UsageError(f"--tier compile: {unpacked}; use --tier eager, or int4, which stays packed")
    if spec.tier == "auto" and (unpacked or slow):
        return eager(unpacked or slow)
    return name, why


def eager(reason: str) -> tuple[compiled.Name, str]:
    """The tier eager, and why."""
    return "eager", f"{reason}; {PYTHON}"


def _unpacked(spec: RunSpec) -> str:
    """Why weights of this kind are not compiled; empty for others."""
    kinds = [kind for kind in (spec.quantize, spec.draft_quantize) if kind in UNPACKED_BY_COMPILER]
    if not kinds:
        return ""
    return f"a compiler that freezes weights unpacks {kinds[0]} ones: they would take the time of unquantised ones"


def _slow(specs: Sequence[RunSpec]) -> str:
    """Why these cells are not compiled unless that is asked for: passes of every shape that they meet, one by one."""
    found = [spec for spec in specs if not form(spec, None).drafter.static]
    if not found:
        return ""
    name = found[0].method if found[0].schedule == "constant" else f"--schedule {found[0].schedule}"
    return f"rounds of {name} differ in shape, and to compile all shapes takes minutes the first time (--tier compile)"


def _divided(spec: RunSpec, device: torch.device) -> tuple[compiled.Name, str]:
    if spec.tier not in ("auto", "eager"):
        raise UsageError(
            f"--tier {spec.tier}: --device-map brings weights to {device} layer by layer: use --tier eager"
        )
    return compiled.choose("eager", device)
