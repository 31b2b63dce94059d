"""The description of a checkpoint: configuration, tokenizer, dtype, and whether the engine supports it.

Everything here is decided before a weight is read. A network must be causal, with a cache of keys and values by
position, or one that can be copied and restored. Code in a checkpoint (auto_map) runs only with --trust-remote-code,
and only from a source that cannot change between check and use: a repository at a pinned commit, or a local folder.
"""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from specbench.errors import UnusableModelError, UsageError
from specbench.models.checkpoints import check, gguf, names, quantise, reduced, weights
from specbench.models.checkpoints.check import LARGEST_TOKENIZER
from specbench.models.checkpoints.names import GGUF, GROWN, Checkpoint
from specbench.models.network import attention as grouped
from specbench.models.scale import growth
from specbench.wording import clean, first_line

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model", "*.tiktoken")


def load_config(checkpoint: Checkpoint) -> PreTrainedConfig:
    """The configuration of a supported checkpoint; any other is refused with a reason."""
    config = _stored_config(checkpoint)
    try:
        reason = obstacle(config)
    except Exception as error:  # entries of a type that transformers does not check
        reason = f"unusable config.json: {first_line(error)}"
    if checkpoint.shape and not reason:
        if method := quantise.method_of(config):
            reason = f"its weights are quantised by {method}, and only plain ones can be grown"
        elif known := reduced.label(config):
            reason = f"its head knows {known}, and only one that knows all of them can be grown"
        else:
            reason = growth.obstacle(config, checkpoint.shape)
    if reason:
        raise UnusableModelError(f"{checkpoint.name}: {reason}")
    if checkpoint.shape:
        small = checkpoint.name.rpartition(GROWN)[0]
        return growth.grown_config(config, checkpoint.shape, Path(small).name if Path(small).exists() else small)
    return config


def _stored_config(checkpoint: Checkpoint) -> PreTrainedConfig:
    """The stored configuration, without a shape; for an adapter that of its base."""
    _silence()
    folder = description(checkpoint)
    if adapter := weights.find_adapter(checkpoint, folder):
        return load_config(adapter.base)
    if not checkpoint.file and not (folder / "config.json").exists():
        files = sorted(folder.glob(f"*{GGUF}"))
        hint = f"; it holds GGUF files: name one of them, such as {files[0]}" if files else ""
        raise UnusableModelError(f"{checkpoint.name}: no config.json in {folder}: not the folder of a checkpoint{hint}")
    if not checkpoint.file and (beyond := check.obstacle(folder)):
        raise UnusableModelError(f"{checkpoint.name}: {beyond}")
    refuse_unpinned(checkpoint, folder)
    try:
        with gguf.read_once(checkpoint):
            config: PreTrainedConfig = transformers.AutoConfig.from_pretrained(folder, **common(checkpoint))
        named = check.json_object(folder / "config.json").get("auto_map")
        name = named.get("AutoModelForCausalLM") if isinstance(named, dict) else None
        if checkpoint.may_run and name:
            network: Any = get_class_from_dynamic_module(name, str(folder), local_files_only=True)
            network.config_class = type(config)
            AutoModelForCausalLM.register(type(config), network, exist_ok=True)
        if checkpoint.file:
            # the type of most weights; bfloat16 if these are packed
            config.dtype = gguf.UNPACKED.get(gguf.commonest(folder / checkpoint.file), torch.bfloat16)
    except Exception as error:  # broken configurations raise arbitrary errors
        reason = f"unusable {folder / (checkpoint.file or 'config.json')}: {first_line(error)}"
        reason = REFUSED if "trust_remote_code" in str(error) else reason
        raise UnusableModelError(f"{checkpoint.name}: {reason}") from error
    return config


def description(checkpoint: Checkpoint) -> Path:
    """The folder with all files of a checkpoint but its weights; for a GGUF file, which holds everything, with it."""
    if checkpoint.file:
        return gguf.fetch(checkpoint)
    return names.fetch(checkpoint, CODE if checkpoint.trusted else ())


def common(checkpoint: Checkpoint) -> dict[str, Any]:
    """The common arguments of all transformers loaders."""
    found = {"local_files_only": True, "trust_remote_code": checkpoint.may_run}
    return {**found, "gguf_file": checkpoint.file} if checkpoint.file else found


def load_tokenizer(checkpoint: Checkpoint) -> PreTrainedTokenizerBase:
    """The tokenizer of a checkpoint; that of its base if an adapter has none."""
    _silence()
    folder = description(checkpoint)
    present = checkpoint.file or any(any(folder.glob(pattern)) for pattern in TOKENIZER_FILES)
    if not present and (adapter := weights.find_adapter(checkpoint, folder)):
        return load_tokenizer(adapter.base)
    if not present:
        raise UnusableModelError(f"{checkpoint.name}: no tokenizer in {folder}: expected tokenizer.json")
    refuse_unpinned(checkpoint, folder)
    if not checkpoint.file and (beyond := check.tokenizer_obstacle(folder)):
        raise UnusableModelError(f"{checkpoint.name}: {beyond}")
    try:
        with gguf.read_once(checkpoint):
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, **common(checkpoint))
        tokenizer("a")  # some faults of a description appear only with the first text
        chats = getattr(tokenizer, "chat_template", None) or ""
        for template in chats.values() if isinstance(chats, dict) else [chats]:
            if not isinstance(template, str):
                raise TypeError(f"a chat_template is of type {type(template).__name__}, not text")
    except Exception as error:  # the tokenizers library raises bare Exceptions
        whole = checkpoint.file or (folder / "tokenizer.json").exists()
        hint = "" if whole else " (without a tokenizer.json it needs sentencepiece)"
        reason = f"unusable tokenizer in {folder}: {first_line(error)}{hint}"
        raise UnusableModelError(f"{checkpoint.name}: {reason}") from error
    return tokenizer


def _silence() -> None:
    """Turn off transformers' progress bars and advice: relevant problems are checked here and reported in our words."""
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]


# By name, because the list must hold over several releases: any unlisted layer class is refused.
ROLLED_BACK_BY_POSITION = {"DynamicLayer", "DynamicSlidingWindowLayer"}
PUT_BACK = {
    *("LinearAttentionLayer", "LinearAttentionAndFullAttentionLayer"),
    *("LinearAttentionAndSlidingWindowAttentionLayer", "DummyLayer"),
}
OTHER_HEAD = re.compile(r"For(?!CausalLM|ConditionalGeneration)[A-Z]")  # LlamaForSequenceClassification


def obstacle(config: PreTrainedConfig) -> str | None:
    """Why a checkpoint with this configuration is not supported; None if it is."""
    if (reason := _not_causal(config)) or recurrent(config):
        return reason
    if reason := _not_by_position(config):
        return reason
    missing = {"past_key_values", "position_ids"} - set(inspect.signature(network_class(config).forward).parameters)
    if missing:
        return f"{config.model_type} takes no {' and no '.join(sorted(missing))}, which token trees and rollback need"
    return None


def recurrent(config: PreTrainedConfig) -> bool:
    """Whether a network's whole memory is a transformers cache with recurrent states."""
    layers = _cache_layers(config)
    return any(name.startswith("Linear") for name in layers) and layers <= PUT_BACK | ROLLED_BACK_BY_POSITION


def _not_causal(config: PreTrainedConfig) -> str | None:
    kind = type(config)
    if config.is_encoder_decoder:
        return f"{config.model_type} is an encoder-decoder; only decoder-only models can be benchmarked"
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return f"{config.model_type} is not a causal language model"
    # Encoders may have a causal head, but without this flag they attend in both directions.
    if kind in MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", True):
        return f"{config.model_type} is an encoder (is_decoder is false), not a causal language model"
    if other := [name for name in getattr(config, "architectures", None) or () if OTHER_HEAD.search(name)]:
        return f"it was saved as {other[0]}, which is not a causal language model"
    return None


def attention(config: PreTrainedConfig) -> str:
    """The attention to load a checkpoint with: ours, built on sdpa; sdpa itself for an
    architecture that checks it by name; eager for softcapping or sinks that support no other."""
    network = network_class(config)
    if not network._supports_sdpa:
        return "eager"
    return grouped.NAME if network._can_set_attn_implementation() else "sdpa"


def experts(config: PreTrainedConfig, dtype: torch.dtype) -> str | None:
    """The implementation of a mixture's experts; None for transformers' default, which does not support float64."""
    return "batched_mm" if dtype == torch.float64 and network_class(config)._can_set_experts_implementation() else None


def _not_by_position(config: PreTrainedConfig) -> str | None:
    # Neither sign suffices alone: RWKV and xLSTM report ordinary cache layers, MiniMax and LFM2 report no state.
    foreign = _cache_layers(config) - ROLLED_BACK_BY_POSITION
    if foreign or network_class(config)._is_stateful:
        kept = f" ({', '.join(sorted(foreign))})" if foreign else ""
        return (
            f"the state of {config.model_type} cannot be rolled back by position{kept}, nor copied as a cache of "
            "transformers, so rejected tokens could not be taken back; models with full or sliding-window attention "
            "work, and recurrent ones with such a cache: Mamba, Mamba2, Qwen3-Next, LFM2"
        )
    text = config.get_text_config(decoder=True)
    if "chunked_attention" in (getattr(text, "layer_types", None) or ()) or getattr(text, "attention_chunk_size", None):
        return f"{config.model_type} attends in chunks; only full and sliding-window attention are supported"
    return None


def network_class(config: PreTrainedConfig) -> Any:
    """The transformers class of networks with such a configuration."""
    return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]


def _cache_layers(config: PreTrainedConfig) -> set[str]:
    """Class names of the cache layers that transformers itself would make for this configuration."""
    try:
        return {type(layer).__name__ for layer in DynamicCache(config=config).layers}
    except Exception as error:  # a configuration without a transformers cache is not supported
        return {f"no cache layers known: {type(error).__name__}"}


DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")}


def resolve_device(name: str) -> torch.device:
    """The device called `name`, which must exist; auto is CUDA if available. A GPU is made current."""
    device = device_named(name)
    return claimed(device) if device.type == "cuda" else device


def device_named(name: str) -> torch.device:
    """The same device, without making it current."""
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
    if device.type == "cpu" and device.index:
        raise UsageError(f"no device {name}: there is one CPU; its name is cpu")
    return device


def claimed(device: torch.device) -> torch.device:
    """A GPU by its number, made the current one: captures and events use the current device.

    cuDNN's attention is disabled. It plans for every length of keys, for 20 to 40 ms of host
    time each, so that eager steps, whose length grows by one, would take several times their
    kernels' time. Flash and memory-efficient attention remain.
    """
    found = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
    torch.cuda.set_device(found)
    torch.backends.cuda.enable_cudnn_sdp(False)
    return found


def resolve_dtype(name: str, config: PreTrainedConfig, device: torch.device) -> torch.dtype:
    """The dtype called `name`; auto is the checkpoint's own, at least float32 on CPU."""
    if name in DTYPES:
        return DTYPES[name]
    if name != "auto":
        raise UsageError(f"unknown dtype {name!r}: use auto, {', '.join(DTYPES)}")
    own = config.dtype or config.get_text_config(decoder=True).dtype
    if not isinstance(own, torch.dtype):
        return torch.float32  # an old configuration without a dtype: torch's default
    if device.type == "cpu" and own.itemsize < 4:
        # A CPU has hardly any float16 arithmetic. Eager bfloat16 is slower than float32 there, and its rows
        # depend on how many positions are computed together, so that a verification would see other logits than a
        # single step. (Compiled, with AVX-512 or AMX, it is faster: then it is requested by name.)
        return torch.float32
    return own


OPTION = "--trust-remote-code"
CODE = ("*.py",)
DESCRIBED = "*config*.json"  # config.json, tokenizer_config.json, those of processors, and config.4.0.0.json
GENERATE = Path("custom_generate", "generate.py")  # transformers runs it in place of its own generate()
REFUSED = (
    f"it needs code of its own (auto_map), and specbench runs code of a checkpoint only with {OPTION} and a revision "
    "pinned to a commit, for an adapter too (or from folders of yours)"
)


def refuse_unpinned(checkpoint: Checkpoint, folder: Path) -> None:
    """UnusableModelError for unpinned code that would run. Nothing of it has run yet."""
    named = list(code_of(folder)) if checkpoint.trusted else []
    if elsewhere := [name for name in named if "--" in name]:
        raise UnusableModelError(
            f"{checkpoint.name}: its code is in another repository ({clean(elsewhere[0])}), at no pinned commit: "
            "download both into one folder, and name that"
        )
    if named and not checkpoint.pinned:
        raise UnusableModelError(
            f"{checkpoint.name}: {OPTION} runs code of {checkpoint.source} only at a pinned commit: give its 40 hex "
            "digits with --target-revision or --draft-revision"
        )


def code_of(folder: Path) -> Iterator[str]:
    """The classes named in a checkpoint's descriptions, and its own generate(): the code that transformers runs."""
    for file in sorted(folder.glob(DESCRIBED)):
        yield from names_in(check.json_object(file, LARGEST_TOKENIZER).get("auto_map"))
    if (folder / GENERATE).exists():
        yield str(GENERATE)


def names_in(found: Any) -> Iterator[str]:
    """The class names in an auto_map: a text, a pair of a slow and a fast tokenizer, or a mapping of these."""
    if isinstance(found, str):
        yield found
    elif isinstance(found, dict | list):
        for one in found.values() if isinstance(found, dict) else found:
            yield from names_in(one)
