"""Code that comes with a checkpoint (auto_map in its config.json): when it may run, and how its network is made known.

It runs only where --trust-remote-code asks for it, and only from a source that cannot change between looking at it and
running it: a repository at a pinned commit, or a folder on this disk.
"""

import json
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, PreTrainedConfig
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from specbench.errors import UnusableModelError
from specbench.models.checkpoints.pairs import Checkpoint
from specbench.repository import COMMIT

OPTION = "--trust-remote-code"
CODE = ("*.py",)
REFUSED = (
    "it needs code of its own (auto_map), and specbench runs no code that comes with a checkpoint unless you say "
    f"{OPTION}, and its revision is pinned to a commit (or it is a folder of yours)"
)


def refuse_unpinned(checkpoint: Checkpoint, folder: Path) -> None:
    """UnusableModelError for code that would run and is not pinned. Nothing of it has run yet."""
    named = auto_map(folder)
    if not checkpoint.trusted or not named:
        return
    if elsewhere := [name for name in named.values() if "--" in str(name)]:
        raise UnusableModelError(
            f"{checkpoint.name}: its code lies in another repository ({elsewhere[0]}), at no pinned commit: download "
            "both into one folder, and name that"
        )
    if not Path(checkpoint.source).is_dir() and not COMMIT.fullmatch(checkpoint.revision or ""):
        raise UnusableModelError(
            f"{checkpoint.name}: {OPTION} runs code of {checkpoint.source} only at a pinned commit: give its 40 hex "
            "digits with --target-revision or --draft-revision"
        )


def auto_map(folder: Path) -> dict[str, Any]:
    """The classes that a checkpoint brings, by those of transformers that they stand in for."""
    try:
        found = json.loads((folder / "config.json").read_bytes()).get("auto_map")
    except (OSError, ValueError, AttributeError):
        return {}  # whoever reads the configuration says what is wrong with it
    return found if isinstance(found, dict) else {}


def register(checkpoint: Checkpoint, folder: Path, config: PreTrainedConfig) -> None:
    """Make the network of trusted code known as that of its configuration, so that it is checked like any other."""
    name = auto_map(folder).get("AutoModelForCausalLM")
    if checkpoint.trusted and name:
        network: Any = get_class_from_dynamic_module(name, str(folder), local_files_only=True)
        network.config_class = type(config)
        AutoModelForCausalLM.register(type(config), network, exist_ok=True)
