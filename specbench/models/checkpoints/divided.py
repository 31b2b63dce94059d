"""The placement of a network in memory: its size, its attention, and its parts if it is divided or sharded.

--device-map divides it by layers over GPUs, the host and the disk, as accelerate decides; layers
on the host or on disk are copied to the device at every pass, which is slow. --tensor-parallel
shards every layer over processes, by the plan that transformers has for the architecture.
"""

import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from heapq import nlargest
from typing import Any

import torch
from accelerate.utils import convert_file_size_to_int
from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig

from specbench.errors import UnusableModelError, UsageError
from specbench.models.checkpoints import names, quantise, reduced, weights
from specbench.models.checkpoints.check import attempt
from specbench.models.checkpoints.description import attention, network_class
from specbench.models.checkpoints.names import Checkpoint
from specbench.models.execution import machine
from specbench.models.execution.machine import NO_MEMORY_LIMIT, free_memory
from specbench.models.network.attention import NAME
from specbench.models.network.passes import windows_of
from specbench.models.scale.growth import skeleton
from specbench.theory.memory import Network

MASKED = ("sdpa", "eager")
OPTION = "--device-map"
AUTO = "auto"
SHARE = 0.8  # of free memory, by default: the rest is for caches and passes
HOST = "cpu"
PARALLEL = "--tensor-parallel"
START = "torchrun --nproc-per-node {} -m specbench run …"
STYLES = {  # those whose rows were compared with a whole network's
    *("colwise", "rowwise", "colwise_gather_output", "replicated_with_grad_allreduce", "embedding_rowwise"),
}
SPLIT = ("num_attention_heads", "num_key_value_heads", "intermediate_size")
READERS = 4  # transformers' threads that read weights concurrently


@dataclass(frozen=True)
class How:
    """The settings `quantize` (or `draft_quantize`), `attn_implementation`, `device_map` and
    `tensor_parallel` of one network; None is the default."""

    quantize: str | None = None
    attention: str | None = None
    device_map: str | None = None
    parallel: int | None = None

    def attention_of(self, config: Any) -> str:
        """The attention that transformers is to use for a configuration. UsageError if it is not available."""
        own = attention(config)
        if self.attention is None:
            return own
        if self.attention not in MASKED:
            raise UsageError(
                f"--attn-implementation {self.attention}: token trees and rollback need attention that takes a mask "
                "of its own for every query: use auto, sdpa or eager"
            )
        if self.attention == "sdpa" and own == "eager":
            raise UsageError(f"--attn-implementation sdpa: {config.model_type} has no other than eager")
        return self.attention


AS_STORED = How()


def place(device: torch.device) -> str:
    """The name of a device: cuda is cuda:0."""
    return HOST if device.type == HOST else f"{device.type}:{device.index or 0}"


def limits(text: str, device: torch.device) -> dict[str, int]:
    """The maximum bytes of weights for GPUs and host, by name. UsageError for an invalid text."""
    others = range(torch.cuda.device_count()) if device.type == "cuda" else ()
    # in the order in which they are filled
    known = list(dict.fromkeys([place(device), *(f"cuda:{number}" for number in others), HOST]))
    if text == AUTO:
        free = {name: free_memory(torch.device(name)) for name in known}
        return {name: NO_MEMORY_LIMIT if size is None else int(SHARE * size) for name, size in free.items()}
    parts = dict(part.strip().partition("=")[::2] for part in text.split(","))
    try:
        found = {place(torch.device(name)): convert_file_size_to_int(size) for name, size in parts.items()}
    except (ValueError, RuntimeError) as error:  # an invalid size or device
        sizes = ",".join(f"{name}=20GB" for name in dict.fromkeys((place(device), HOST)))
        raise UsageError(f"{OPTION} {text}: use {AUTO}, or how much to put where, such as {sizes}") from error
    if unknown := set(found) - set(known):
        raise UsageError(f"{OPTION} {text}: {min(unknown)} is not one of {', '.join(known)}")
    return {name: found[name] for name in known if name in found}


def obstacle(checkpoint: Checkpoint, quantize: str | None) -> str:
    """Why a network cannot be divided: weights are made or changed after reading. Empty if it can."""
    if checkpoint.shape:
        return "it is grown from a small one"
    if checkpoint.file:
        return "GGUF files are dequantised as a whole"
    if weights.find_adapter(checkpoint, names.fetch(checkpoint)):
        return "its adapter is merged into all of it"
    return f"--quantize {quantize} needs all of it in memory" if quantize else ""


def load(text: str, device: torch.device, into: Callable[[dict[str, Any]], tuple[Any, Any]]) -> tuple[Any, Any]:
    """The network that `into` loads, divided. UnusableModelError if the device cannot hold even the embeddings."""
    folder = tempfile.mkdtemp(prefix="specbench-")  # for weights that are not stored in the requested form
    sizes = limits(text, device)
    most = {name if name == HOST else torch.device(name).index: size for name, size in sizes.items()}
    try:
        model, report = into({"device_map": "sequential", "max_memory": most, "offload_folder": folder})
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(model, shutil.rmtree, folder, ignore_errors=True)
    if model.device.type == "meta":
        raise UnusableModelError(f"{OPTION} {text}: {device} must hold at least the embeddings of {model.name_or_path}")
    return model, report


def shares(model: Any) -> dict[str, float]:
    """The share of its weights in each place, by name; empty for an undivided network."""
    places: Mapping[str, Any] = getattr(model, "hf_device_map", None) or {}
    sizes = Counter[str]()
    for name, tensor in model.named_parameters() if places else ():
        (place,) = (found for part, found in places.items() if f"{name}.".startswith(f"{part}."))
        sizes[place if isinstance(place, str) else f"cuda:{place}"] += tensor.numel()
    return {place: size / sizes.total() for place, size in sizes.items()}


def label(model: Any) -> str:
    """The placement of its weights, for results; empty for an undivided network."""
    return ", ".join(f"{share:.0%} on {place}" for place, share in shares(model).items())


def notes(name: str, model: Any) -> list[str]:
    """Warnings about the times of a divided network."""
    if not (found := label(model)):
        return []
    if set(shares(model)) & {HOST, "disk"}:
        return [f"{name} is divided ({found}): times are those of bringing its weights to the device at every pass"]
    return [f"{name} is divided ({found}): its GPUs compute one after the other, each for its layers"]


def refuse_unsplit(checkpoint: Checkpoint, config: Any, how: How, device: torch.device) -> None:
    """UsageError or UnusableModelError, before a weight is read, if the processes cannot share the network."""
    count = how.parallel or 1
    if machine.joined() != count:
        raise UsageError(
            f"{PARALLEL} {count}: {machine.joined()} of {count} processes are there: start with {START.format(count)}"
        )
    if how.device_map is not None:
        raise UsageError(f"{PARALLEL} and {OPTION} divide the target in two ways: leave one out")
    if device.type == "cpu" and torch.cuda.is_available():
        raise UsageError(f"{PARALLEL} computes on GPUs where there are any: leave --device {device} out")
    if reason := obstacle(checkpoint, how.quantize):
        raise UsageError(f"{PARALLEL}: {checkpoint.name} cannot be split: {reason}")
    refuse_uneven(checkpoint.name, config.get_text_config(decoder=True), count)
    refuse_unplanned(checkpoint.name, config)


def refuse_uneven(name: str, config: Any, count: int) -> None:
    """UnusableModelError if a size of a network is not divisible by the number of processes."""
    sizes = {part: size for part in SPLIT if isinstance(size := getattr(config, part, None), int)}
    if uneven := [part for part, size in sizes.items() if size % count]:
        able = [n for n in range(2, min(sizes.values()) + 1) if not any(size % n for size in sizes.values())]
        use = f"use {', '.join(map(str, able[:6]))}" if able else "it can only be held whole"
        raise UnusableModelError(
            f"{PARALLEL} {count}: {name} has {uneven[0]} = {sizes[uneven[0]]}, which does not divide by {count}: {use}"
        )


def refuse_unplanned(name: str, config: Any) -> None:
    """UnusableModelError if transformers has no plan for an architecture, or one that is untested here."""
    # transformers' plan: the styles, by the names of the network's parts
    base = getattr(config.get_text_config(decoder=True), "base_model_tp_plan", None) or {}
    plan = {**base, **(getattr(network_class(config), "_tp_plan", None) or {})} if base else {}
    if not plan:
        raise UnusableModelError(f"{PARALLEL}: transformers has no plan for {config.model_type}, which {name} is")
    if unknown := sorted(set(plan.values()) - STYLES):
        raise UnusableModelError(f"{PARALLEL}: {name} is split by {unknown[0]}, which is not supported here")


class KeptError(Exception):
    """Carries the number of values that a layer hands to a cache per token."""


class Watched(DynamicCache):
    """A cache that ends a pass of one token at its first update."""

    def update(self, key_states: Tensor, value_states: Tensor, *rest: Any, **more: Any) -> tuple[Tensor, Tensor]:
        raise KeptError(sum(states.shape[1] * states.shape[3] for states in (key_states, value_states)))


def network_sizes(config: PreTrainedConfig, dtype: torch.dtype, device: torch.device, how: How = AS_STORED) -> Network:
    """The sizes from which the memory of a network with this configuration and these settings is estimated."""
    text: Any = config.get_text_config(decoder=True)
    attention = how.attention_of(config)
    net = in_dtype(config, dtype, attention)
    ends = net.get_input_embeddings().weight, net.get_output_embeddings().weight
    shapes = [tensor.shape for tensor in net.parameters() if all(tensor is not end for end in ends)]
    heads, shared = heads_of(text)
    windows, ours = windows_of(text), attention == NAME
    # torch's kernels for a GPU that hold no scores take no float32, or no key that several queries share
    plain = device.type == "cuda" and dtype.itemsize > 2 and shared < heads
    sizes = [tensor.numel() * tensor.element_size() for tensor in net.parameters()]
    return Network(
        weights=weight_bytes(net, config, device, how),
        read=sum(sizes if how.quantize and device.type != "cpu" else nlargest(READERS, sizes)),
        layers=text.num_hidden_layers,
        kept=kept_by(net) // (how.parallel or 1),
        hidden=text.hidden_size,
        inner=max(max(shape[-2:]) for shape in shapes if len(shape) > 1),
        heads=heads,
        groups=heads // shared if ours and shared else 1,
        vocabulary=text.vocab_size,
        item=dtype.itemsize,
        scored=attention == "eager" or plain,
        masked=0 if ours and windows == {"": None} else len(windows),
    )


def heads_of(text: Any) -> tuple[int, int]:
    """(heads, heads of keys and values); zeros if there is only a recurrent state."""
    heads = getattr(text, "num_attention_heads", 0)
    return heads, getattr(text, "num_key_value_heads", None) or heads


def kept_by(net: Any) -> int:
    """The number of values that a layer of a network on the device meta caches per token: as its first layer hands them
    to a cache, because latent attention caches fewer than its heads have; computed from the heads if that fails."""
    ids = torch.zeros(1, 1, dtype=torch.long, device="meta")
    try:
        net(input_ids=ids, position_ids=ids, past_key_values=Watched(), use_cache=True)
    except KeptError as found:
        return int(found.args[0])
    except Exception:  # any error of a recurrent state, or of missing weights
        pass
    text = net.config.get_text_config(decoder=True)
    heads, shared = heads_of(text)
    return int(2 * shared * (getattr(text, "head_dim", None) or text.hidden_size // max(heads, 1)))


def in_dtype(config: PreTrainedConfig, dtype: torch.dtype, attention: str) -> Any:
    """The network in a dtype, on the device meta. UnusableModelError if its configuration contradicts itself."""
    wanted = copy(config)
    wanted.dtype = dtype
    unusable = f"unusable {config.name_or_path}/config.json: it describes no network"
    return attempt(unusable, lambda: reduced.hollow(skeleton(wanted, attention), config))


def weight_bytes(net: Any, config: PreTrainedConfig, device: torch.device, how: How) -> int:
    """The bytes of the weights on the device; a CPU holds them whole before it quantises them."""
    if how.quantize and device.type != "cpu":
        return quantise.bytes_of(net, how.quantize)
    if how.device_map is not None:
        return min(quantise.bytes_of(net), limits(how.device_map, device).get(place(device), 0))
    if how.parallel is not None:  # embedding and head are counted whole: not every plan shards them
        ends = {id(end): end for end in (net.get_input_embeddings().weight, net.get_output_embeddings().weight)}
        table = sum(end.numel() * end.element_size() for end in ends.values())
        return int(table + (quantise.bytes_of(net) - table) // how.parallel)
    whole, bits = quantise.bytes_of(net), quantise.stored_settings(config).get("bits")
    if not bits or quantise.stored_label(config, device).endswith("dequantised"):
        return whole
    packed = quantise.linear_layers(net).values()
    return whole - int(sum(layer.weight.numel() * (layer.weight.element_size() - int(bits) / 8) for layer in packed))
