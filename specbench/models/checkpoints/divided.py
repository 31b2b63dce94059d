"""A network that is larger than its device: divided by layers over GPUs, the memory of the host and the disk.

accelerate decides what lies where. Layers on GPUs compute there, one GPU after the other; what lies on the host or on
the disk is brought to the device at every pass: that is slow. Knows
devices and sizes; must not know what a network is used for.
"""

import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from accelerate.utils import convert_file_size_to_int

from specbench.errors import UnusableModelError, UsageError
from specbench.models.checkpoints import adapters, hub
from specbench.models.checkpoints.pairs import Checkpoint
from specbench.models.execution.free_memory import UNLIMITED, free_memory

OPTION = "--device-map"
AUTO = "auto"
SHARE = 0.8  # of what is free, where nothing else is said: the rest is for caches and passes
HOST = "cpu"


def place(device: torch.device) -> str:
    """The name of a device: cuda is cuda:0."""
    return HOST if device.type == HOST else f"{device.type}:{device.index or 0}"


def places(device: torch.device) -> list[str]:
    """The devices that layers may lie on, in the order in which they are filled: the device, and then other GPUs."""
    others = range(torch.cuda.device_count()) if device.type == "cuda" else ()
    return list(dict.fromkeys([place(device), *(f"cuda:{number}" for number in others)]))


def limits(text: str, device: torch.device) -> dict[str, int]:
    """How many bytes of weights the GPUs and the host may hold, by name. UsageError for any other text."""
    if text == AUTO:
        free = {name: free_memory(torch.device(name)) for name in (*places(device), HOST)}
        return {name: UNLIMITED if size is None else int(SHARE * size) for name, size in free.items()}
    parts = dict(part.strip().partition("=")[::2] for part in text.split(","))
    try:
        found = {place(torch.device(name)): convert_file_size_to_int(size) for name, size in parts.items()}
    except (ValueError, RuntimeError) as error:  # of a size, of a device
        sizes = ",".join(f"{name}=20GB" for name in dict.fromkeys((place(device), HOST)))
        raise UsageError(f"{OPTION} {text}: use {AUTO}, or how much to put where, such as {sizes}") from error
    known = dict.fromkeys((*places(device), HOST))
    if unknown := set(found) - set(known):
        raise UsageError(f"{OPTION} {text}: {min(unknown)} is none of {', '.join(known)}, which are here")
    return {name: found[name] for name in known if name in found}


def obstacle(checkpoint: Checkpoint, quantize: str | None) -> str:
    """Why a network stays whole: weights are made or changed after they were read. Empty where it can be divided."""
    if checkpoint.shape:
        return "it is grown from a small one"
    if checkpoint.file:
        return "GGUF files are dequantised as a whole"
    if adapters.find(checkpoint, hub.fetch(checkpoint)):
        return "its adapter is merged into all of it"
    return f"--quantize {quantize} needs all of it in memory" if quantize else ""


def refuse_unable(checkpoint: Checkpoint, quantize: str | None, text: str, device: torch.device) -> None:
    """UsageError where the network cannot be divided, or the text says nothing that is understood."""
    limits(text, device)
    if reason := obstacle(checkpoint, quantize):
        raise UsageError(f"{OPTION}: {checkpoint.name} cannot be divided: {reason}")


def load(text: str, device: torch.device, into: Callable[[dict[str, Any]], tuple[Any, Any]]) -> tuple[Any, Any]:
    """What `into` loads, told to divide it. UnusableModelError where the device holds not even the embeddings."""
    folder = tempfile.mkdtemp(prefix="specbench-")  # for weights that are not stored as they are wanted
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
    """The share of its weights that lies in each place, by name; empty for a network that is whole."""
    places: Mapping[str, Any] = getattr(model, "hf_device_map", None) or {}
    sizes = Counter[str]()
    for name, tensor in model.named_parameters() if places else ():
        (place,) = (found for part, found in places.items() if f"{name}.".startswith(f"{part}."))
        sizes[place if isinstance(place, str) else f"cuda:{place}"] += tensor.numel()
    return {place: size / sizes.total() for place, size in sizes.items()}


def label(model: Any) -> str:
    """What results say about where its weights lie; empty for a network that is whole."""
    return ", ".join(f"{share:.0%} on {place}" for place, share in shares(model).items())


def notes(name: str, model: Any) -> list[str]:
    """What a user should know before believing a time."""
    if not (found := label(model)):
        return []
    if set(shares(model)) & {HOST, "disk"}:
        return [f"{name} is divided ({found}): times are those of bringing its weights to the device at every pass"]
    return [f"{name} is divided ({found}): its GPUs compute one after the other, each for its layers"]
