"""Checkpoints as objects of transformers: configuration, tokenizer, network. Refuses what would give wrong numbers.

Knows transformers; must not know what the network is used for. Code that comes with a checkpoint never runs.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from specbench.errors import UnusableModelError, UsageError
from specbench.models.checkpoints import hub, weights
from specbench.models.checkpoints.architectures import attention, experts, network_class, obstacle
from specbench.models.checkpoints.pairs import GROWN, Checkpoint
from specbench.models.checkpoints.reading import Watch, stored, unwatched
from specbench.models.scale import grow, growth
from specbench.wording import first_line

# transformers may convert pickled checkpoints in a thread of its own: nothing is to run beside a timed loop.
os.environ["DISABLE_SAFETENSORS_CONVERSION"] = "1"

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model", "*.tiktoken")


@dataclass(frozen=True)
class Loaded:
    """A network that is ready to use; `commit` is what the hub's revision stood for, `warnings` are for stderr."""

    model: PreTrainedModel
    dtype: torch.dtype
    commit: str | None
    warnings: tuple[str, ...]


def resolve_device(name: str) -> torch.device:
    """The device called `name`, which must be there; auto is CUDA where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in {"cpu", "cuda"}:
        raise UsageError(f"unknown device {name!r}: use auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(f"no device {name}: torch sees {torch.cuda.device_count()} CUDA devices; use cpu or auto")
    return device


def resolve_dtype(name: str, config: PreTrainedConfig, device: torch.device) -> torch.dtype:
    """The dtype called `name`; auto is the checkpoint's own, at least float32 on CPU."""
    if name in DTYPES:
        return DTYPES[name]
    if name != "auto":
        raise UsageError(f"unknown dtype {name!r}: use auto, {', '.join(DTYPES)}")
    own = config.dtype or config.get_text_config(decoder=True).dtype
    if not isinstance(own, torch.dtype):
        return torch.float32  # an old configuration that does not say: what torch would use
    if device.type == "cpu" and own.itemsize < 4:
        # A CPU has hardly any float16 arithmetic. Eager bfloat16 is slower than float32 there, and its rows depend on
        # how many positions are computed together, so that a verification would see other logits than a single step.
        # (Compiled, on a CPU with AMX, bfloat16 is faster: then it is asked for by name.)
        return torch.float32
    return own


def load_config(checkpoint: Checkpoint) -> PreTrainedConfig:
    """The configuration of a checkpoint that the engine can drive; any other is refused with a reason."""
    _silence()
    folder = hub.fetch(checkpoint)
    if not (folder / "config.json").is_file():
        raise UnusableModelError(f"{checkpoint.name}: no config.json in {folder}: not the folder of a checkpoint")
    try:
        config: PreTrainedConfig = transformers.AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # a broken configuration raises whatever the code that trips over it raises
        raise UnusableModelError(f"{checkpoint.name}: {_config_reason(folder, error)}") from error
    if reason := obstacle(config) or (checkpoint.shape and growth.obstacle(config, checkpoint.shape)):
        raise UnusableModelError(f"{checkpoint.name}: {reason}")
    if checkpoint.shape is not None:
        return growth.grown_config(config, checkpoint.shape, origin(checkpoint))
    return config


def origin(checkpoint: Checkpoint) -> str:
    """What a scale model calls its original: an alias, a hub id, or the name of a folder without its path."""
    small = checkpoint.name.rpartition(GROWN)[0]
    return Path(checkpoint.source).name if Path(small).is_dir() else small


def _config_reason(folder: Path, error: Exception) -> str:
    if "trust_remote_code" in str(error):
        return "it needs code of its own (auto_map), and specbench runs no code that comes with a checkpoint"
    return f"unusable {folder / 'config.json'}: {first_line(error)}"


def load_tokenizer(checkpoint: Checkpoint) -> PreTrainedTokenizerBase:
    """The tokenizer of a checkpoint."""
    _silence()
    folder = hub.fetch(checkpoint)
    if not any(any(folder.glob(pattern)) for pattern in TOKENIZER_FILES):
        raise UnusableModelError(f"{checkpoint.name}: no tokenizer in {folder}: expected tokenizer.json")
    try:
        tokenizer: PreTrainedTokenizerBase = transformers.AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # the tokenizers library raises bare Exceptions
        hint = "" if (folder / "tokenizer.json").exists() else " (without a tokenizer.json it needs sentencepiece)"
        reason = f"unusable tokenizer in {folder}: {first_line(error)}{hint}"
        raise UnusableModelError(f"{checkpoint.name}: {reason}") from error
    return tokenizer


def load_model(
    checkpoint: Checkpoint, dtype: torch.dtype | None, device: torch.device, watch: Watch = unwatched
) -> Loaded:
    """The network in evaluation mode, without gradients; `dtype` None is what auto resolves to.

    Its weights go straight to `device`; `watch` hears how many bytes of them have been read.
    """
    config = load_config(checkpoint)
    dtype = dtype or resolve_dtype("auto", config, device)
    if checkpoint.shape is not None:
        return _grown(checkpoint, config, dtype, device)
    folder, files = weights.find(checkpoint)
    pickled = files[0].suffix == ".bin"
    try:
        if pickled or hasattr(config, "quantization_config"):
            model, info = _from_pretrained(folder, config, dtype, device, pickled)
        else:
            model, info = _from_safetensors(folder, files, config, dtype, device, watch)
        model = model.eval().requires_grad_(False)
    except (torch.OutOfMemoryError, MemoryError):
        raise  # not the checkpoint's fault: the caller knows what else lies in memory
    except Exception as error:  # a missing quantisation library, a pickle with code in it, a damaged archive
        raise UnusableModelError(f"{checkpoint.name}: cannot load {files[0]}: {first_line(error)}") from error
    _refuse_incomplete(checkpoint, info)
    return Loaded(model, dtype, hub.commit(folder), _warnings(checkpoint, config, info, pickled))


def _from_safetensors(
    folder: Path, files: list[Path], config: Any, dtype: torch.dtype, device: torch.device, watch: Watch
) -> Any:
    """(the network, what its weight files lacked or had besides)."""
    kind, own = network_class(config), folder / "generation_config.json"
    text = config.get_text_config(decoder=True)
    return kind.from_pretrained(
        None,
        config=text if kind.config_class is type(text) else config,
        state_dict=stored(files, device.type == "cpu", watch),
        generation_config=transformers.GenerationConfig.from_pretrained(folder) if own.is_file() else None,
        **_settings(config, dtype, device),
    )


def _from_pretrained(
    folder: Path, config: PreTrainedConfig, dtype: torch.dtype, device: torch.device, pickled: bool
) -> Any:
    """The same of files that transformers reads by itself."""
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder,
        config=config,
        use_safetensors=not pickled,
        weights_only=True,  # torch's own unpickler for tensors: code in a .bin file does not run
        **_settings(config, dtype, device),
    )


def _settings(config: PreTrainedConfig, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """How transformers loads weights, wherever they come from."""
    return {
        "dtype": dtype,
        "device_map": None if device.type == "cpu" else {"": device},
        "attn_implementation": attention(config),
        "experts_implementation": experts(config, dtype),
        "trust_remote_code": False,
        "local_files_only": True,
        "ignore_mismatched_sizes": True,  # so that they are named by the caller, and refused
        "output_loading_info": True,
    }


def _grown(checkpoint: Checkpoint, config: Any, dtype: torch.dtype, device: torch.device) -> Loaded:
    small = load_original(checkpoint)
    config.dtype = dtype
    model = grow.network(small.model.state_dict(), small.model.config, config, device, attention(config))
    model.generation_config = small.model.generation_config
    return Loaded(model, dtype, small.commit, (*small.warnings, *growth.warnings(checkpoint.name, config)))


def load_original(checkpoint: Checkpoint) -> Loaded:
    """What a checkpoint with a shape is grown from, as it is stored."""
    small = replace(checkpoint, shape=None)
    own = load_config(small).dtype
    return load_model(small, own if isinstance(own, torch.dtype) else None, torch.device("cpu"))


def _refuse_incomplete(checkpoint: Checkpoint, info: dict[str, Any]) -> None:
    # transformers fills what is missing with random numbers. Tied weights are not among what it calls missing.
    if info["mismatched_keys"]:
        name, stored, wanted = min(info["mismatched_keys"], key=lambda entry: str(entry[0]))
        raise UnusableModelError(
            f"{checkpoint.name}: weights do not fit config.json: {name} is {list(stored)}, not {list(wanted)}"
        )
    if info["missing_keys"]:
        raise UnusableModelError(f"{checkpoint.name}: weights are missing: {_some(info['missing_keys'])}")
    if info["error_msgs"]:
        raise UnusableModelError(f"{checkpoint.name}: weights do not load: {' '.join(info['error_msgs'][0].split())}")


def _warnings(checkpoint: Checkpoint, config: Any, info: dict[str, Any], pickled: bool) -> tuple[str, ...]:
    warnings = growth.warnings(checkpoint.name, config)
    if pickled:
        warnings.append(f"{checkpoint.name}: pickled weights (.bin), read by torch's weights-only loader")
    if info["unexpected_keys"]:
        warnings.append(f"{checkpoint.name}: weights that the model does not use: {_some(info['unexpected_keys'])}")
    return tuple(warnings)


def _some(names: set[str]) -> str:
    first = ", ".join(sorted(names)[:3])
    return first if len(names) <= 3 else f"{first} and {len(names) - 3} more"


def _silence() -> None:
    """No progress bars and no advice from transformers: what matters is checked here and said in our words."""
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
