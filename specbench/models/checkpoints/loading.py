"""Networks of transformers, loaded from checkpoints: whole, in evaluation mode, on their device.

Refuses weights that would give wrong numbers: missing, damaged, or of other shapes.
transformers would fill those with random numbers.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import GgufConfig, PreTrainedModel
from transformers.distributed.configuration_utils import DistributedConfig

from specbench import hub
from specbench.errors import Missing, UnusableModelError, UsageError
from specbench.models.checkpoints import divided, gguf, names, quantise, reduced, weights
from specbench.models.checkpoints.check import attempt, json_object
from specbench.models.checkpoints.description import common, experts, load_config, network_class, resolve_dtype
from specbench.models.checkpoints.divided import AS_STORED, OPTION, How, limits, obstacle
from specbench.models.checkpoints.names import Checkpoint, fetch, install, repository, require
from specbench.models.checkpoints.weights import Watch, no_floats, stored, unwatched
from specbench.models.scale import growth
from specbench.wording import some

# transformers may convert pickled checkpoints in a separate thread: no thread may run during a timed loop.
os.environ["DISABLE_SAFETENSORS_CONVERSION"] = "1"

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Loaded:
    """A loaded network; `commit` is the hub's resolved revision, `warnings` are for stderr.

    weights: their source and conversions, in a few words, for the row of results.
    """

    model: PreTrainedModel
    dtype: torch.dtype
    commit: str | None
    warnings: tuple[str, ...]
    weights: str


def refuse_unable(checkpoint: Checkpoint, config: Any, dtype: torch.dtype, device: torch.device, how: How) -> None:
    """UsageError or UnusableModelError, before a weight is read, for settings that this machine does not support."""
    how.attention_of(config)
    quantise.refuse_unmet(checkpoint, config, device)
    if how.device_map is not None:
        limits(how.device_map, device)
        if reason := obstacle(checkpoint, how.quantize):
            raise UsageError(f"{OPTION}: {checkpoint.name} cannot be divided: {reason}")
    if how.parallel is not None:
        divided.refuse_unsplit(checkpoint, config, how, device)
    if how.quantize is None:
        return
    if method := quantise.method_of(config):
        raise UnusableModelError(
            f"{checkpoint.name}: its weights are quantised by {method} already: leave --quantize out"
        )
    quantise.refuse_unable(how.quantize, dtype, device)


@dataclass(frozen=True)
class _Wanted:
    """The settings of one network: dtype and device are resolved, `watch` receives the bytes read."""

    dtype: torch.dtype
    device: torch.device
    how: How
    watch: Watch


def load_model(
    checkpoint: Checkpoint,
    dtype: torch.dtype | None,
    device: torch.device,
    watch: Watch = unwatched,
    how: How = AS_STORED,
) -> Loaded:
    """The network in evaluation mode, without gradients; `dtype` None resolves as auto.

    Its weights go directly to `device`; `watch` receives the bytes fetched and read.
    """
    config = load_config(checkpoint)
    dtype = dtype or resolve_dtype("auto", config, device)
    refuse_unable(checkpoint, config, dtype, device, how)
    if how.quantize is None:
        return _plain(checkpoint, config, _Wanted(dtype, device, how, watch))
    # Read by the host and quantised layer by layer on the device, which never holds more than the quantised weights.
    loaded = _plain(checkpoint, config, _Wanted(dtype, CPU, how, watch))
    done = quantise.apply(loaded.model, how.quantize, device)
    loaded.model.to(device)  # type: ignore[arg-type]
    notes = (f"{checkpoint.name}: {line}" for line in done.warnings)
    return replace(loaded, warnings=(*loaded.warnings, *notes), weights=f"{loaded.weights}, {done.label}")


def _plain(checkpoint: Checkpoint, config: Any, wanted: _Wanted) -> Loaded:
    """The network before quantisation."""
    if checkpoint.shape is not None:
        small, attention = load_original(checkpoint), wanted.how.attention_of(config)
        config.dtype = wanted.dtype
        model = growth.network(small.model.state_dict(), small.model.config, config, wanted.device, attention)
        model.generation_config = small.model.generation_config
        warnings = (*small.warnings, *growth.warnings(checkpoint.name, config))
        return replace(small, model=model, dtype=wanted.dtype, warnings=warnings)
    if not checkpoint.file and (adapter := weights.find_adapter(checkpoint, names.fetch(checkpoint))):
        return _merged(adapter, config, wanted)
    return _stored(checkpoint, config, wanted)


def _stored(checkpoint: Checkpoint, config: Any, wanted: _Wanted) -> Loaded:
    folder, found = weights.find(checkpoint, wanted.watch)
    files = Files(checkpoint, folder, found, config)
    model, info = network(files, wanted.dtype, wanted.device, wanted.how, wanted.watch)
    gguf.forget(found[0])
    refuse_incomplete(checkpoint, info)
    if not files.packed:
        refuse_other_types(checkpoint, model, no_floats(files.weights))
    said = growth.warnings(checkpoint.name, config)
    if files.pickled:
        said.append(f"{checkpoint.name}: pickled weights (.bin), read by torch's weights-only loader")
    if info["unexpected_keys"]:
        said.append(f"{checkpoint.name}: weights that the model does not use: {some(info['unexpected_keys'])}")
    said += divided.notes(checkpoint.name, model)
    processes = f"split over {wanted.how.parallel} processes" if wanted.how.parallel else ""
    label = ", ".join(filter(None, (files.label(wanted.device), divided.label(model), processes)))
    return Loaded(model.eval().requires_grad_(False), wanted.dtype, names.commit(folder), tuple(said), label)


def _merged(adapter: weights.Adapter, config: Any, wanted: _Wanted) -> Loaded:
    name = adapter.checkpoint.name
    if method := quantise.method_of(config):
        raise UnusableModelError(f"{name}: the weights of its base are quantised by {method}: name an unquantised base")
    base = _plain(adapter.base, config, wanted)
    model = attempt(f"{name}: cannot merge this adapter", lambda: weights.merge(adapter, base.model, wanted.device))
    commit = names.commit(names.fetch(adapter.checkpoint))
    source = f"{adapter.base.place}@{base.commit}" if base.commit else adapter.base.place
    done = f"{base.weights}, LoRA adapter merged into {source}"
    return replace(base, model=model.eval().requires_grad_(False), commit=commit, weights=done)


def load_original(checkpoint: Checkpoint) -> Loaded:
    """The original of a checkpoint with a shape, as stored."""
    small = replace(checkpoint, shape=None)
    own = load_config(small).dtype
    return load_model(small, own if isinstance(own, torch.dtype) else None, CPU)


@dataclass(frozen=True)
class Files:
    """A checkpoint on disk: its folder, its weight files (all of one kind) and its configuration."""

    checkpoint: Checkpoint
    folder: Path
    weights: list[Path]
    config: Any

    @property
    def pickled(self) -> bool:
        return self.weights[0].suffix == ".bin"

    @property
    def packed(self) -> bool:
        """Whether the network's tensors must be computed from the stored ones."""
        return bool(self.checkpoint.file or quantise.method_of(self.config))

    @property
    def plain(self) -> bool:
        """Whether the stored tensors are the network's, which can be read one by one."""
        return not (self.pickled or self.packed)

    def label(self, device: torch.device) -> str:
        """The description of the weights in results."""
        if self.checkpoint.file:
            return f"GGUF {gguf.commonest(self.weights[0])}, dequantised"
        kind = quantise.stored_label(self.config, device) or self.weights[0].suffix.removeprefix(".")
        return ", ".join(filter(None, (kind, reduced.label(self.config))))


def network(files: Files, dtype: torch.dtype, device: torch.device, how: How, watch: Watch) -> Any:
    """(the network on `device`, its missing and unexpected weights). UnusableModelError if they do not load."""
    settings = {
        "dtype": dtype,
        "device_map": None if device.type == "cpu" else {"": device},
        "attn_implementation": how.attention_of(files.config),
        "experts_implementation": experts(files.config, dtype),
        "ignore_mismatched_sizes": True,  # so that the caller names and refuses them
        "output_loading_info": True,
    }
    failed = f"{files.checkpoint.name}: cannot load {files.weights[0]}"
    if reduced.size_of(files.config) is not None and not (
        files.plain and how.device_map is None and how.parallel is None
    ):
        raise UnusableModelError(f"{files.checkpoint.name}: {reduced.UNREADABLE}")
    if how.parallel:  # transformers places every part on the device of its process
        split = {"distributed_config": DistributedConfig(tp_size=how.parallel), "device_map": None}
        return attempt(failed, lambda: _from_pretrained(files, {**settings, **split}))
    if text := how.device_map:
        return attempt(
            failed, lambda: divided.load(text, device, lambda more: _from_pretrained(files, {**settings, **more}))
        )
    if files.plain:
        return attempt(failed, lambda: _from_safetensors(files, device, watch, settings))
    return attempt(failed, lambda: _from_pretrained(files, settings))


def _from_safetensors(files: Files, device: torch.device, watch: Watch, settings: dict[str, Any]) -> Any:
    kind, own = network_class(files.config), files.folder / "generation_config.json"
    weights = stored(files.weights, device.type == "cpu", watch)
    head = reduced.take(files.checkpoint.name, files.config, weights)
    config = reduced.without(files.config) if head else files.config
    text = config.get_text_config(decoder=True)
    model, info = kind.from_pretrained(
        None,
        config=text if kind.config_class is type(text) else config,
        state_dict=weights,
        generation_config=transformers.GenerationConfig.from_pretrained(files.folder) if own.is_file() else None,
        **settings,
    )
    if head:
        head.put_into(model, info)
    model.config.name_or_path = str(files.folder)  # transformers received tensors and no name
    return model, info


def _from_pretrained(files: Files, settings: dict[str, Any]) -> Any:
    """The same for files that transformers reads itself."""
    with gguf.read_once(files.checkpoint):
        return transformers.AutoModelForCausalLM.from_pretrained(
            files.folder,
            config=files.config,
            use_safetensors=not files.pickled,
            weights_only=True,  # torch's own unpickler for tensors: code in a .bin file does not run
            **common(files.checkpoint),
            **({"quantization_config": GgufConfig(dequantize=True)} if files.checkpoint.file else {}),
            **settings,
        )


def refuse_incomplete(checkpoint: Checkpoint, info: dict[str, Any]) -> None:
    # transformers fills missing weights with random numbers. It does not count tied weights as missing.
    if info["mismatched_keys"]:
        name, stored, wanted = min(info["mismatched_keys"], key=lambda entry: str(entry[0]))
        raise UnusableModelError(
            f"{checkpoint.name}: weights do not fit config.json: {name} is {list(stored)}, not {list(wanted)}"
        )
    if info["missing_keys"]:
        raise UnusableModelError(f"{checkpoint.name}: weights are missing: {some(info['missing_keys'])}")
    if info["error_msgs"]:
        raise UnusableModelError(f"{checkpoint.name}: weights do not load: {' '.join(info['error_msgs'][0].split())}")


def refuse_other_types(checkpoint: Checkpoint, model: Any, no_floats: Mapping[str, str]) -> None:
    """UnusableModelError for weights that are not stored as floats (their names and types) but computed as such."""
    floats = {name for name, weight in model.named_parameters() if weight.is_floating_point()}
    for name, kind in sorted(no_floats.items()):
        if {name, f"{model.base_model_prefix}.{name}"} & floats:
            raise UnusableModelError(
                f"{checkpoint.name}: {name} is stored as {kind}, and config.json names no way of quantising: write the "
                "weights as float32, float16 or bfloat16, or name in quantization_config how they are quantised"
            )


# --- what is missing --------------------------------------------------------------------------------------------------
# Whether a checkpoint is on this machine or available from the hub; and its missing parts, as a download.

WEIGHTS = (".safetensors", ".bin")


def unavailable(role: str, checkpoint: Checkpoint) -> Missing | None:
    """The missing part of a role's checkpoint that cannot be fetched; None if all is here or available."""
    if Path(checkpoint.source).exists():
        return None
    try:
        folder = fetch(checkpoint)
    except UnusableModelError as error:
        said = error.__cause__
        return described(role, checkpoint, str(error), said and said.__cause__)
    if weights.there(checkpoint, folder) or hub.answer_of(repository(checkpoint)) is None:
        return None
    absent = (
        f"{repository(checkpoint).subject}: its weights are not in the cache, and the hub does not answer: run "
        f"`{repository(checkpoint).command()}` where there is a network"
    )
    return described(role, checkpoint, absent, None)


def without_extra(checkpoint: Checkpoint) -> Missing | None:
    """The missing extra of ours that installs a checkpoint's reader; checks its description."""
    try:
        extra, words = needed_extra(checkpoint, fetch(checkpoint))
    except UnusableModelError:
        return None  # unknown: the checkpoint itself is missing
    return lacking_extra(extra, f"{checkpoint.name}: {words}") if extra else None


def lacking_extra(extra: str, words: str) -> Missing | None:
    """A missing extra; `words` describe its use."""
    try:
        require(extra, words)
    except UnusableModelError as error:
        return Missing("extra", extra, str(error), install(extra))
    return None


def needed_extra(checkpoint: Checkpoint, folder: Path) -> tuple[str, str]:
    """The extra that a checkpoint needs, and the reason; empty for an ordinary one."""
    if checkpoint.file:
        return "gguf", "a GGUF file"
    if (folder / weights.ADAPTER).is_file():
        return "peft", "an adapter"
    found = json_object(folder / "config.json").get("quantization_config")
    method = str(found.get("quant_method")) if isinstance(found, dict) else ""
    extra = quantise.NEEDS.get(method, "")
    return (extra, f"its weights are quantised by {method}, which") if extra else ("", "")


def described(role: str, checkpoint: Checkpoint, message: str, cause: BaseException | None) -> Missing:
    """An unavailable checkpoint, with its size if the hub reports it. cause: the hub's answer, if any."""
    source = repository(checkpoint)
    refusal = message.removeprefix(f"{source.subject} ") if hub.refused(cause) else ""
    return Missing(role, checkpoint.name, message, source.command(), refusal, download_size(checkpoint))


def download_size(checkpoint: Checkpoint) -> int | None:
    """The bytes of a checkpoint's files that a run reads; None if the hub does not report them."""
    sizes = hub.file_sizes(repository(checkpoint))
    own = {name: size for name, size in sizes.items() if "/" not in name}
    kinds = [sum(size for name, size in own.items() if name.endswith(kind)) for kind in WEIGHTS]
    small = sum(size for name, size in own.items() if name.endswith(".json"))
    return small + next(size for size in kinds if size) if any(kinds) else None
