"""LoRA adapters as checkpoints: a folder with adapter_config.json, whose base is loaded and merged with it.

Knows what an adapter says about itself, and peft; must not know how a base is loaded.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ValidationError

from specbench.errors import SpecbenchError, UnusableModelError
from specbench.files import read_whole
from specbench.models.checkpoints import hub, remote_code
from specbench.models.checkpoints.bounds import LARGEST
from specbench.models.checkpoints.extras import require
from specbench.models.checkpoints.pairs import Checkpoint, resolve
from specbench.wording import clean

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
WHOLE = (*hub.SAFETENSORS, *hub.PICKLED)


class _Description(BaseModel):
    """The part of adapter_config.json that decides what is loaded."""

    peft_type: str
    base_model_name_or_path: str
    revision: str | None = None  # of the base


@dataclass(frozen=True)
class Adapter:
    """An adapter and the checkpoint that it changes."""

    checkpoint: Checkpoint
    base: Checkpoint


def find(checkpoint: Checkpoint, folder: Path) -> Adapter | None:
    """The adapter that the description in `folder` is of; None for a whole model.

    UnusableModelError where it is no LoRA adapter, where a whole model lies beside it, or where its base is unknown.
    """
    file = folder / CONFIG
    if checkpoint.file or not file.is_file():
        return None
    if whole := [match.name for pattern in WHOLE for match in folder.glob(pattern)]:
        raise UnusableModelError(
            f"{checkpoint.name}: {folder} holds a whole model ({whole[0]}) and an adapter: keep them in two folders"
        )
    require("peft", f"{checkpoint.name}: an adapter")
    described = _described(checkpoint, file)
    if described.peft_type != "LORA":
        kind = clean(described.peft_type)
        raise UnusableModelError(f"{checkpoint.name}: an adapter of type {kind}: only LoRA is merged into its base")
    return Adapter(checkpoint, _base(checkpoint, described))


def _described(checkpoint: Checkpoint, file: Path) -> _Description:
    try:
        return _Description.model_validate_json(read_whole(file, LARGEST))
    except ValidationError as error:
        first = error.errors()[0]
        reason = ": ".join([*map(str, first["loc"]), first["msg"]])
        raise UnusableModelError(f"{checkpoint.name}: unusable {file}: {clean(reason, 200)}") from error
    except OSError as error:
        raise UnusableModelError(f"{checkpoint.name}: cannot read {file}: {error.strerror}") from error


def _base(checkpoint: Checkpoint, described: _Description) -> Checkpoint:
    name = described.base_model_name_or_path
    try:
        # An adapter that can change can name another base, with other code.
        return replace(resolve(name, described.revision), trusted=remote_code.may_run(checkpoint))
    except SpecbenchError as error:
        raise UnusableModelError(
            f"{checkpoint.name}: the base of this adapter, {clean(name)!r}, cannot be found: correct "
            f"base_model_name_or_path in {CONFIG} (a folder, a hub id or an alias)"
        ) from error


def merge(adapter: Adapter, model: Any, device: torch.device) -> Any:
    """The base with the adapter added to its weights, as an ordinary network."""
    from peft import PeftModel

    folder = hub.fetch(adapter.checkpoint, WEIGHTS)
    if not any((folder / name).is_file() for name in WEIGHTS):
        raise UnusableModelError(f"{adapter.checkpoint.name}: no {WEIGHTS[0]} in {folder}")
    added = PeftModel.from_pretrained(model, str(folder), torch_device=str(device))
    return added.merge_and_unload(safe_merge=True)


def label(adapter: Adapter, base_commit: str | None) -> str:
    """What results say about the weights."""
    commit = f"@{base_commit}" if base_commit else ""
    return f"LoRA adapter merged into {adapter.base.place}{commit}"
