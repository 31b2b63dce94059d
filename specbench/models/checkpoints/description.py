"""What a checkpoint says about itself, as objects of transformers: configuration and tokenizer. Reads no weights.

Knows transformers; must not know what a network is used for. A checkpoint is a folder, a repository, a GGUF file or an
adapter, each perhaps grown to a shape: what is particular to one of them lies in a module of its own.
"""

from pathlib import Path
from typing import Any

import transformers
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from specbench.errors import UnusableModelError
from specbench.models.checkpoints import adapters, bounds, gguf_files, hub, quantised, reduced_heads, remote_code
from specbench.models.checkpoints.architectures import obstacle
from specbench.models.checkpoints.pairs import GROWN, Checkpoint
from specbench.models.scale import growth
from specbench.wording import first_line

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model", "*.tiktoken")


def load_config(checkpoint: Checkpoint) -> PreTrainedConfig:
    """The configuration of a checkpoint that the engine can drive; any other is refused with a reason."""
    config = _stored_config(checkpoint)
    if reason := _obstacle(config) or (checkpoint.shape and _not_to_be_grown(config, checkpoint)):
        raise UnusableModelError(f"{checkpoint.name}: {reason}")
    if checkpoint.shape is not None:
        return growth.grown_config(config, checkpoint.shape, origin(checkpoint))
    return config


def _obstacle(config: PreTrainedConfig) -> str | None:
    """Why the engine cannot drive a network of this configuration, or that it makes no sense."""
    try:
        return obstacle(config)
    except Exception as error:  # entries of a type that transformers lets pass
        return f"unusable config.json: {first_line(error)}"


def _not_to_be_grown(config: PreTrainedConfig, checkpoint: Checkpoint) -> str | None:
    if method := quantised.method_of(config):
        return f"its weights are quantised by {method}, and only plain ones can be grown"
    if known := reduced_heads.label(config):
        return f"its head knows {known}, and only one that knows all of them can be grown"
    return growth.obstacle(config, checkpoint.shape) if checkpoint.shape else None


def _stored_config(checkpoint: Checkpoint) -> PreTrainedConfig:
    """The configuration of what is stored, without a shape; that of its base where it is an adapter."""
    _silence()
    folder = description(checkpoint)
    if adapter := adapters.find(checkpoint, folder):
        return load_config(adapter.base)
    if not checkpoint.file and not (folder / "config.json").exists():
        hint = gguf_files.files_in(folder)
        raise UnusableModelError(f"{checkpoint.name}: no config.json in {folder}: not the folder of a checkpoint{hint}")
    if not checkpoint.file and (beyond := bounds.obstacle(folder)):
        raise UnusableModelError(f"{checkpoint.name}: {beyond}")
    remote_code.refuse_unpinned(checkpoint, folder)
    try:
        with gguf_files.read_once(checkpoint):
            config: PreTrainedConfig = transformers.AutoConfig.from_pretrained(folder, **common(checkpoint))
        remote_code.register(checkpoint, folder, config)
        if checkpoint.file:
            config.dtype = gguf_files.dtype_of(folder / checkpoint.file)
    except Exception as error:  # a broken configuration raises whatever the code that trips over it raises
        raise UnusableModelError(f"{checkpoint.name}: {_config_reason(checkpoint, folder, error)}") from error
    return config


def description(checkpoint: Checkpoint) -> Path:
    """The folder with everything of a checkpoint but its weights; of a GGUF file, which has all in one, with it."""
    if checkpoint.file:
        return gguf_files.fetch(checkpoint)
    return hub.fetch(checkpoint, remote_code.CODE if checkpoint.trusted else ())


def common(checkpoint: Checkpoint) -> dict[str, Any]:
    """What all loaders of transformers are told."""
    trust = {"local_files_only": True, "trust_remote_code": remote_code.may_run(checkpoint)}
    return {**trust, **gguf_files.arguments(checkpoint)}


def origin(checkpoint: Checkpoint) -> str:
    """What a scale model calls its original: an alias, a hub id, or the name of a folder or file without its path."""
    small = checkpoint.name.rpartition(GROWN)[0]
    return Path(small).name if Path(small).exists() else small


def _config_reason(checkpoint: Checkpoint, folder: Path, error: Exception) -> str:
    if "trust_remote_code" in str(error):
        return remote_code.REFUSED
    return f"unusable {folder / (checkpoint.file or 'config.json')}: {first_line(error)}"


def load_tokenizer(checkpoint: Checkpoint) -> PreTrainedTokenizerBase:
    """The tokenizer of a checkpoint; that of its base where an adapter brings none."""
    _silence()
    folder = description(checkpoint)
    present = checkpoint.file or any(any(folder.glob(pattern)) for pattern in TOKENIZER_FILES)
    if not present and (adapter := adapters.find(checkpoint, folder)):
        return load_tokenizer(adapter.base)
    if not present:
        raise UnusableModelError(f"{checkpoint.name}: no tokenizer in {folder}: expected tokenizer.json")
    remote_code.refuse_unpinned(checkpoint, folder)
    if not checkpoint.file and (beyond := bounds.tokenizer_obstacle(folder)):
        raise UnusableModelError(f"{checkpoint.name}: {beyond}")
    try:
        with gguf_files.read_once(checkpoint):
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **common(checkpoint))
        tokenizer("a")  # some faults of a description show with the first text only
        _refuse_other_templates(getattr(tokenizer, "chat_template", None) or "")
    except Exception as error:  # the tokenizers library raises bare Exceptions
        reason = f"unusable tokenizer in {folder}: {first_line(error)}{_tokenizer_hint(checkpoint, folder)}"
        raise UnusableModelError(f"{checkpoint.name}: {reason}") from error
    found: PreTrainedTokenizerBase = tokenizer
    return found


def _refuse_other_templates(found: Any) -> None:
    """TypeError for a chat template, or one of several by their names, that is no text."""
    for template in found.values() if isinstance(found, dict) else [found]:
        if not isinstance(template, str):
            raise TypeError(f"a chat_template is of type {type(template).__name__}, not text")


def _tokenizer_hint(checkpoint: Checkpoint, folder: Path) -> str:
    if checkpoint.file or (folder / "tokenizer.json").exists():
        return ""
    return " (without a tokenizer.json it needs sentencepiece)"


def _silence() -> None:
    """No progress bars and no advice from transformers: what matters is checked here and said in our words."""
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
