"""The devices and dtypes that a user can name, and what auto means for a checkpoint.

Knows configurations and what torch sees of this machine; must not know weights.
"""

import torch
from transformers import PreTrainedConfig

from specbench.errors import UsageError

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}


def resolve_device(name: str) -> torch.device:
    """The device called `name`, which must be there; auto is CUDA where there is one. A GPU is claimed."""
    device = device_named(name)
    return claimed(device) if device.type == "cuda" else device


def device_named(name: str) -> torch.device:
    """The same, of which nothing is claimed."""
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
    """A GPU by its number, made the current one: captures and events are those of the current device.

    Attention of cuDNN is left out. It plans for every length of keys, for 20 to 40 ms of host time each, so that eager
    steps, whose length grows by one, would take several times what their kernels take. Flash attention and the
    memory-efficient one are left.
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
        return torch.float32  # an old configuration that does not say: what torch would use
    if device.type == "cpu" and own.itemsize < 4:
        # A CPU has hardly any float16 arithmetic. Eager bfloat16 is slower than float32 there, and its rows depend on
        # how many positions are computed together, so that a verification would see other logits than a single step.
        # (Compiled, on a CPU that multiplies it, bfloat16 is faster: then it is asked for by name.)
        return torch.float32
    return own
