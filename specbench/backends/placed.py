"""Where what drafts lies: beside the target, or on a device of its own, between which tokens and rows travel.

Knows specs, devices and the forms of methods; must not know how anything is decoded.
"""

from collections.abc import Sequence
from typing import Any

import torch

from specbench.decoding.method_files import learners
from specbench.errors import UsageError
from specbench.models.checkpoints.description import device_named, recurrent
from specbench.spec import RunSpec

OPTION = "--draft-device"


def drafting_device(spec: RunSpec, device: torch.device) -> torch.device | None:
    """The device of what drafts, where that is another one than the target's. UsageError where there is none."""
    if spec.draft_device is None:
        return None
    found = device_named(spec.draft_device)
    if found.type == "cuda":
        found = torch.device("cuda", found.index or 0)
    return None if found == device else found


def refuse_apart(name: str, config: Any, borrows: bool, specs: Sequence[RunSpec]) -> None:
    """UsageError where a drafter cannot lie on a device of its own."""
    reason = ""
    if borrows:
        reason = "it is a head, which reads its target"
    elif recurrent(config):
        reason = "its recurrent state stays beside the target's text"
    elif specs[0].tensor_parallel is not None:
        reason = "each process has one device, with the whole draft"
    elif any(learners(spec.method) for spec in specs):
        reason = "it learns from the target's rows, where those are"
    if reason:
        raise UsageError(f"{OPTION} {specs[0].draft_device}: {name}: {reason}: leave it out")
