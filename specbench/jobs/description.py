"""What stands in run.json before anything is measured, and how the folder of a run is called."""

from collections.abc import Sequence
from typing import Any

import torch

from specbench.results.folder import slug
from specbench.results.machine import command_line, environment, now
from specbench.spec import SCHEMA_VERSION, RunSpec


def described(specs: Sequence[RunSpec], device: torch.device, **more: Any) -> dict[str, Any]:
    """The content of run.json: what was asked for, how, and on which machine."""
    return {
        "schema_version": SCHEMA_VERSION,
        "started": now(),
        "command": command_line(),
        "specs": [spec.model_dump(mode="json") for spec in specs],
        "environment": environment(device),
        **more,
    }


def folder_name(spec: RunSpec, kind: str = "", key: str = "") -> str:
    """Time, target and draft, with the kind of a job before them and a key after them."""
    parts = (now(), kind, slug(spec.target), slug(spec.draft or "none"), key)
    return "_".join(part for part in parts if part)
