"""Code that comes with a checkpoint (auto_map in its descriptions): when it may run, and how its network is made known.

It runs only where --trust-remote-code asks for it, and only from a source that cannot change between looking at it and
running it: a repository at a pinned commit, or a folder on this disk.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, PreTrainedConfig
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from specbench.errors import UnusableModelError
from specbench.files import read_whole
from specbench.hub import COMMIT
from specbench.models.checkpoints.bounds import LARGEST_TOKENIZER
from specbench.models.checkpoints.pairs import Checkpoint
from specbench.wording import clean

OPTION = "--trust-remote-code"
CODE = ("*.py",)
DESCRIBED = "*config*.json"  # config.json, tokenizer_config.json, those of processors, and config.4.0.0.json
GENERATE = Path("custom_generate", "generate.py")  # transformers runs it in place of its own generate()
REFUSED = (
    "it needs code of its own (auto_map), and specbench runs no code that comes with a checkpoint unless you say "
    f"{OPTION}, and its revision is pinned to a commit, as that of an adapter to it (or both are folders of yours)"
)


def pinned(checkpoint: Checkpoint) -> bool:
    """Whether its files cannot change between two looks: a folder on this disk, or a repository at a commit."""
    return Path(checkpoint.source).is_dir() or COMMIT.fullmatch(checkpoint.revision or "") is not None


def may_run(checkpoint: Checkpoint) -> bool:
    """Whether transformers may run code of a checkpoint, whatever its files say."""
    return checkpoint.trusted and pinned(checkpoint)


def refuse_unpinned(checkpoint: Checkpoint, folder: Path) -> None:
    """UnusableModelError for code that would run and is not pinned. Nothing of it has run yet."""
    named = list(code_of(folder)) if checkpoint.trusted else []
    if elsewhere := [name for name in named if "--" in name]:
        raise UnusableModelError(
            f"{checkpoint.name}: its code is in another repository ({clean(elsewhere[0])}), at no pinned commit: "
            "download both into one folder, and name that"
        )
    if named and not pinned(checkpoint):
        raise UnusableModelError(
            f"{checkpoint.name}: {OPTION} runs code of {checkpoint.source} only at a pinned commit: give its 40 hex "
            "digits with --target-revision or --draft-revision"
        )


def code_of(folder: Path) -> Iterator[str]:
    """The classes that any description of a checkpoint names, and its own way to generate: what transformers runs."""
    for file in sorted(folder.glob(DESCRIBED)):
        yield from names_in(auto_map(file))
    if (folder / GENERATE).exists():
        yield str(GENERATE)


def names_in(found: Any) -> Iterator[str]:
    """The names of classes in an auto_map: a text, a pair of a slow and a fast tokenizer, or a mapping of these."""
    if isinstance(found, str):
        yield found
    elif isinstance(found, dict | list):
        for one in found.values() if isinstance(found, dict) else found:
            yield from names_in(one)


def auto_map(file: Path) -> Any:
    """What a description says of the classes that a checkpoint brings."""
    try:
        return json.loads(read_whole(file, LARGEST_TOKENIZER)).get("auto_map")
    except (OSError, ValueError, AttributeError, RecursionError):
        return None  # whoever reads the description says what is wrong with it


def register(checkpoint: Checkpoint, folder: Path, config: PreTrainedConfig) -> None:
    """Make the network of trusted code known as that of its configuration, so that it is checked like any other."""
    named = auto_map(folder / "config.json")
    name = named.get("AutoModelForCausalLM") if isinstance(named, dict) else None
    if may_run(checkpoint) and name:
        network: Any = get_class_from_dynamic_module(name, str(folder), local_files_only=True)
        network.config_class = type(config)
        AutoModelForCausalLM.register(type(config), network, exist_ok=True)
