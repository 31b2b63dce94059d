"""Which tier the specs of a pair are executed in: the one asked for, where it measures what was asked for.

Knows specs, the forms of methods, tiers and how weights are quantised; must not know networks.
"""

from collections.abc import Sequence

import torch

from specbench.backends.forms import form
from specbench.backends.placed import drafting_device
from specbench.errors import UsageError
from specbench.models.checkpoints.quantise import UNPACKED_BY_COMPILER
from specbench.models.execution import compiled, onednn
from specbench.spec import RunSpec

AUTO = "auto"
PYTHON = compiled.EAGER.partition(";")[0]


def choose(specs: Sequence[RunSpec], device: torch.device) -> tuple[compiled.Name, str]:
    """(tier, what to know about it) of the cells of a pair. UsageError where a tier is not to be had; auto is eager
    where compiling would take minutes."""
    spec = specs[0]
    if spec.device_map is not None:
        return _eager_alone(spec, f"--device-map brings weights to {device} layer by layer", device)
    if drafting_device(spec, device) is not None:
        return _eager_alone(spec, "--draft-device has tokens travel between devices in every round", device)
    if spec.tensor_parallel is not None:
        return _eager_alone(spec, "--tensor-parallel waits for other processes in every layer", device)
    name, why = compiled.choose(spec.tier, device)
    if name != "compile" or device.type != "cpu":
        return name, why
    slow = _slow(specs) if spec.tier == AUTO else ""
    return eager(slow) if slow else (name, why)


def eager(reason: str) -> tuple[compiled.Name, str]:
    """The tier eager, and why."""
    return "eager", f"{reason}; {PYTHON}"


def not_whole(spec: RunSpec) -> str:
    """Why a round that cannot be compiled in parts is not compiled as a whole; empty where it is."""
    kinds = [kind for kind in (spec.quantize, spec.draft_quantize) if kind in UNPACKED_BY_COMPILER]
    if kinds:
        return f"where the compiler would unpack {kinds[0]} weights, so that they took the time of unquantised ones"
    return "for minutes, as --tier compile does" if spec.tier == AUTO else ""


def packs(spec: RunSpec, name: compiled.Name, device: torch.device) -> bool:
    """Whether eager passes have packed matrices: on a CPU that is faster with them, of weights that stay whole."""
    whole = spec.device_map is None and spec.tensor_parallel is None
    return name != "graph" and device.type == "cpu" and whole and onednn.pays()


def _slow(specs: Sequence[RunSpec]) -> str:
    """Why these cells are not compiled unless that is asked for: passes of every shape that they meet, one by one."""
    found = [spec for spec in specs if not form(spec, None).drafter.static]
    if not found:
        return ""
    name = found[0].method if found[0].schedule == "constant" else f"--schedule {found[0].schedule}"
    return f"rounds of {name} differ in shape, and to compile all shapes takes minutes the first time (--tier compile)"


def _eager_alone(spec: RunSpec, why: str, device: torch.device) -> tuple[compiled.Name, str]:
    if spec.tier not in ("auto", "eager"):
        raise UsageError(f"--tier {spec.tier}: {why}: use --tier eager")
    return compiled.choose("eager", device)
