"""From the files of a checkpoint to a network, by transformers, with a report on what the files lacked or had besides.

Knows transformers' loaders; must not know what is done to a network afterwards.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from specbench.errors import SpecbenchError, UnusableModelError, out_of_memory
from specbench.models.checkpoints import divided, gguf_files, parallel, quantised, reduced_heads
from specbench.models.checkpoints.architectures import experts, network_class
from specbench.models.checkpoints.bounds import explained
from specbench.models.checkpoints.description import common
from specbench.models.checkpoints.how import How
from specbench.models.checkpoints.pairs import Checkpoint
from specbench.models.checkpoints.reading import Watch, stored


@dataclass(frozen=True)
class Files:
    """A checkpoint on this disk: its folder, its weight files (all of one kind) and its configuration."""

    checkpoint: Checkpoint
    folder: Path
    weights: list[Path]
    config: Any

    @property
    def pickled(self) -> bool:
        return self.weights[0].suffix == ".bin"

    @property
    def packed(self) -> bool:
        """Whether these are other tensors than those of the network, from which they are made."""
        return bool(self.checkpoint.file or quantised.method_of(self.config))

    @property
    def plain(self) -> bool:
        """Whether these are tensors as the network has them, which can be read one by one."""
        return not (self.pickled or self.packed)

    def label(self, device: torch.device) -> str:
        """What results say about the weights."""
        if self.checkpoint.file:
            return f"GGUF {gguf_files.commonest(self.weights[0])}, dequantised"
        kind = quantised.label(self.config, device) or self.weights[0].suffix.removeprefix(".")
        return ", ".join(filter(None, (kind, reduced_heads.label(self.config))))


def network(files: Files, dtype: torch.dtype, device: torch.device, how: How, watch: Watch) -> Any:
    """(the network on `device`, what its files lacked or had besides). UnusableModelError where they do not load."""
    settings = {
        "dtype": dtype,
        "device_map": None if device.type == "cpu" else {"": device},
        "attn_implementation": how.attention_of(files.config),
        "experts_implementation": experts(files.config, dtype),
        "ignore_mismatched_sizes": True,  # so that they are named by the caller, and refused
        "output_loading_info": True,
    }
    failed = f"{files.checkpoint.name}: cannot load {files.weights[0]}"
    if reduced_heads.size_of(files.config) is not None and not (
        files.plain and how.device_map is None and how.parallel is None
    ):
        raise UnusableModelError(f"{files.checkpoint.name}: {reduced_heads.UNREADABLE}")
    if how.parallel:
        return attempt(failed, lambda: _from_pretrained(files, {**settings, **parallel.settings(how.parallel or 1)}))
    if text := how.device_map:
        return attempt(
            failed, lambda: divided.load(text, device, lambda more: _from_pretrained(files, {**settings, **more}))
        )
    if files.plain:
        return attempt(failed, lambda: _from_safetensors(files, device, watch, settings))
    return attempt(failed, lambda: _from_pretrained(files, settings))


def attempt(failed: str, load: Callable[[], Any]) -> Any:
    """What `load` returns. UnusableModelError, saying what failed, for whatever a library raises."""
    try:
        return load()
    except SpecbenchError:
        raise  # said in our words already
    except Exception as error:  # a pickle with code in it, a damaged archive, an adapter of another base
        if out_of_memory(error):
            raise  # not the checkpoint's fault: the caller knows what else lies in memory
        raise UnusableModelError(f"{failed}: {explained(error)}") from error


def _from_safetensors(files: Files, device: torch.device, watch: Watch, settings: dict[str, Any]) -> Any:
    kind, own = network_class(files.config), files.folder / "generation_config.json"
    weights = stored(files.weights, device.type == "cpu", watch)
    head = reduced_heads.take(files.checkpoint.name, files.config, weights)
    config = reduced_heads.without(files.config) if head else files.config
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
    model.config.name_or_path = str(files.folder)  # transformers was given tensors and no name
    return model, info


def _from_pretrained(files: Files, settings: dict[str, Any]) -> Any:
    """The same of files that transformers reads by itself."""
    with gguf_files.read_once(files.checkpoint):
        return transformers.AutoModelForCausalLM.from_pretrained(
            files.folder,
            config=files.config,
            use_safetensors=not files.pickled,
            weights_only=True,  # torch's own unpickler for tensors: code in a .bin file does not run
            **common(files.checkpoint),
            **gguf_files.unpacking(files.checkpoint),
            **settings,
        )
