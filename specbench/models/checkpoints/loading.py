"""Networks of transformers, loaded from checkpoints: whole, in evaluation mode, as they are wanted.

Knows transformers; must not know what the network is used for. Refuses what would give wrong numbers: weights that are
missing, damaged or of other shapes. Code that comes with a checkpoint runs only as `remote_code` allows.
"""

import os
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedModel

from specbench.errors import UnusableModelError
from specbench.models.checkpoints import (
    adapters,
    complete,
    divided,
    gguf_files,
    hub,
    parallel,
    quantise,
    quantised,
    weights,
)
from specbench.models.checkpoints.description import load_config
from specbench.models.checkpoints.files import Files, attempt, network
from specbench.models.checkpoints.how import AS_STORED, How
from specbench.models.checkpoints.pairs import Checkpoint
from specbench.models.checkpoints.precision import resolve_dtype
from specbench.models.checkpoints.reading import Watch, no_floats, unwatched
from specbench.models.scale import grow, growth

# transformers may convert pickled checkpoints in a thread of its own: nothing is to run beside a timed loop.
os.environ["DISABLE_SAFETENSORS_CONVERSION"] = "1"

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Loaded:
    """A network that is ready to use; `commit` is what the hub's revision stood for, `warnings` are for stderr.

    weights: where they came from and what was done to them, in a few words, for the row of results.
    """

    model: PreTrainedModel
    dtype: torch.dtype
    commit: str | None
    warnings: tuple[str, ...]
    weights: str


def refuse_unable(checkpoint: Checkpoint, config: Any, dtype: torch.dtype, device: torch.device, how: How) -> None:
    """UsageError or UnusableModelError, before a weight is read, for what cannot be had on this machine."""
    how.attention_of(config)
    quantised.refuse_unmet(checkpoint, config, device)
    if how.device_map is not None:
        divided.refuse_unable(checkpoint, how.quantize, how.device_map, device)
    if how.parallel is not None:
        parallel.refuse_unable(checkpoint, config, how, device)
    if how.quantize is None:
        return
    if method := quantised.method_of(config):
        raise UnusableModelError(
            f"{checkpoint.name}: its weights are quantised by {method} already: leave --quantize out"
        )
    quantise.refuse_unable(how.quantize, dtype, device)


@dataclass(frozen=True)
class _Wanted:
    """What is wanted of one network: dtype and device are resolved, `watch` hears how many bytes have come."""

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
    """The network in evaluation mode, without gradients; `dtype` None is what auto resolves to.

    Its weights go straight to `device`; `watch` hears how many bytes of them have been fetched and read.
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
    """The network before anything is quantised."""
    if checkpoint.shape is not None:
        return _grown(checkpoint, config, wanted)
    if not checkpoint.file and (adapter := adapters.find(checkpoint, hub.fetch(checkpoint))):
        return _merged(adapter, config, wanted)
    return _stored(checkpoint, config, wanted)


def _stored(checkpoint: Checkpoint, config: Any, wanted: _Wanted) -> Loaded:
    folder, found = weights.find(checkpoint, wanted.watch)
    files = Files(checkpoint, folder, found, config)
    model, info = network(files, wanted.dtype, wanted.device, wanted.how, wanted.watch)
    gguf_files.forget(found[0])
    complete.refuse_incomplete(checkpoint, info)
    if not files.packed:
        complete.refuse_other_types(checkpoint, model, no_floats(files.weights))
    warnings = (
        *complete.loading_warnings(checkpoint, config, info, files.pickled),
        *divided.notes(checkpoint.name, model),
    )
    ready = model.eval().requires_grad_(False)
    parts = (files.label(wanted.device), divided.label(model), parallel.label(wanted.how))
    label = ", ".join(filter(None, parts))
    return Loaded(ready, wanted.dtype, hub.commit(folder), warnings, label)


def _merged(adapter: adapters.Adapter, config: Any, wanted: _Wanted) -> Loaded:
    name = adapter.checkpoint.name
    if method := quantised.method_of(config):
        raise UnusableModelError(f"{name}: the weights of its base are quantised by {method}: name an unquantised base")
    base = _plain(adapter.base, config, wanted)
    model = attempt(f"{name}: cannot merge this adapter", lambda: adapters.merge(adapter, base.model, wanted.device))
    commit = hub.commit(hub.fetch(adapter.checkpoint))
    done = f"{base.weights}, {adapters.label(adapter, base.commit)}"
    return replace(base, model=model.eval().requires_grad_(False), commit=commit, weights=done)


def _grown(checkpoint: Checkpoint, config: Any, wanted: _Wanted) -> Loaded:
    small, attention = load_original(checkpoint), wanted.how.attention_of(config)
    config.dtype = wanted.dtype
    model = grow.network(small.model.state_dict(), small.model.config, config, wanted.device, attention)
    model.generation_config = small.model.generation_config
    warnings = (*small.warnings, *growth.warnings(checkpoint.name, config))
    return replace(small, model=model, dtype=wanted.dtype, warnings=warnings)


def load_original(checkpoint: Checkpoint) -> Loaded:
    """What a checkpoint with a shape is grown from, as it is stored."""
    small = replace(checkpoint, shape=None)
    own = load_config(small).dtype
    return load_model(small, own if isinstance(own, torch.dtype) else None, CPU)
