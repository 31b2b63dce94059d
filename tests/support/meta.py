"""Rounds on meta tensors: which operators a device is asked for, without a device and without values.

A tensor on meta has a shape and no numbers, so that a round which the host would have to wait for cannot go on: every
read raises. And sizes cost nothing: the target is as wide as one of 7B.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from specbench.decoding.decode import begin
from specbench.decoding.method_files import needs
from specbench.decoding.methods import build
from specbench.decoding.protocols import Model
from specbench.decoding.randomness import FromUniforms, Stream
from specbench.decoding.rounds import state
from specbench.decoding.timing import WallClock
from specbench.decoding.types import packed
from specbench.errors import UsageError
from specbench.models.network.attention import NAME
from specbench.models.network.causal import Causal
from specbench.models.network.early_exit import pair
from specbench.models.network.sampling import Sampling
from specbench.models.network.skipping import base_of, chosen, shares, with_layers
from specbench.models.scale.growth import skeleton

META = torch.device("meta")
VOCAB, NEW = 1000, 64
PROMPT = [1, 2, 3, 4, 5]
READ = "aten::_local_scalar_dense"
MAKERS = (torch.tensor, torch.as_tensor, Tensor.new_tensor)  # of numbers of the host
NO_KERNEL = {"_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty"}  # and all that gives a view
SHALLOW, DEEP = 2, 13  # layers of a target; some methods name layers that only the second has


@dataclass
class Device(TorchDispatchMode):
    """What is asked of it: kernels so far, and the operators that were given, or gave, what is or was the host's.

    reads: what the host reads, while something is made ready; None: it must not read.
    """

    kernels: int = 0
    strays: list[str] = field(default_factory=list)
    reads: int | None = None

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().partition(".")[0]
        if name == READ and self.reads is not None:
            return self.reads
        result = func(*args, **(kwargs or {}))
        self.kernels += not (name.removeprefix("aten::") in NO_KERNEL or is_view(func))
        tensors = [one for one in pytree.tree_leaves((args, kwargs, result)) if isinstance(one, Tensor)]
        self.strays += [name for one in tensors if one.device != META]
        return result


def is_view(func: Any) -> bool:
    """Whether an operator gives memory of its arguments, and does nothing to it."""
    shared = [one.alias_info for one in func._schema.returns]
    return bool(shared) and all(one is not None and not one.is_write for one in shared)


class Sent(TorchFunctionMode):
    """Notes lists that become tensors, for which meta has no operator; a single number is filled in by the device."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        index = args[1] if func is Tensor.__getitem__ else None
        listed = isinstance(index, list) or (isinstance(index, tuple) and any(isinstance(one, list) for one in index))
        if listed or (func in MAKERS and result.ndim):
            self.device.strays.append(func.__name__)
        return result


@contextmanager
def fused_attention(device: Device) -> Iterator[None]:
    """Attention as a GPU has it, in one kernel: meta tensors take its parts."""

    def attention(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        device.kernels += 1
        rows, heads, length, _ = query.shape
        return query.new_empty((rows, length, heads, value.shape[-1])).transpose(1, 2)  # as fused kernels lay it out

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(F, "scaled_dot_product_attention", attention)
        yield


@cache
def target(layers: int, kv_heads: int = 32) -> Any:
    """As wide as Llama 7B."""
    return llama(
        layers, hidden_size=4096, intermediate_size=11008, num_attention_heads=32, num_key_value_heads=kv_heads
    )


@cache
def draft() -> Any:
    """As wide as the usual draft of Llama, which has 68M parameters in two such layers."""
    return llama(1, hidden_size=768, intermediate_size=3072, num_attention_heads=12)


def llama(layers: int, **shape: int) -> Any:
    config = hf.LlamaConfig(num_hidden_layers=layers, vocab_size=VOCAB, dtype=torch.bfloat16, **shape)  # type: ignore[arg-type]
    return skeleton(config, NAME)


def models(names: set[str], whole: Any, law: Sampling) -> dict[str, Model]:
    """The models that a method names, as a backend makes them; the draft stands for those that it does not know."""
    small, depth = draft(), whole.config.num_hidden_layers
    found: dict[str, Any] = {"target": Causal(whole, law, VOCAB, fixed=True)}
    for name in sorted(names - {"target"}):
        network = whole if base_of(name) == "target" else small
        if shares(name):
            found["target"], found[name] = pair(found["target"], len(chosen(name, depth)))
        else:
            layers = network.config.num_hidden_layers
            kept = with_layers(network, chosen(name, layers)) if base_of(name) != name else network
            found[name] = Causal(kept, law, VOCAB, fixed=True)
    return found


def depth_for(names: set[str]) -> int:
    """The least layers with which a target has those that a method names."""
    try:
        return SHALLOW if all(chosen(name, SHALLOW) for name in names if base_of(name) != name) else DEEP
    except UsageError:
        return DEEP


def uniforms(shape: tuple[int, ...], stream: Stream) -> Tensor:
    """No kernels: a round finds its uniforms drawn."""
    return torch.empty(shape, dtype=torch.float64, device=META)


def steady_round(
    method: str, k: int, law: Sampling, *, rows: int = 1, whole: Any = None, watch: Device | None = None
) -> dict[str, int]:
    """Kernels of a round by phase, "told" for what the host will read of it, after one that may bring its constants.

    AssertionError where the host is asked for a tensor; torch raises where the host reads one.
    """
    names, device = needs(method), watch or Device()
    whole = whole or target(depth_for(names))
    clock = WallClock(lambda: float(device.kernels))
    built = build(method, models(names, whole, law), k, clock)
    rng = FromUniforms(uniforms, law.certain)
    with torch.no_grad(), fused_attention(device), device, Sent(device):
        device.reads = len(PROMPT) - 1
        context = begin([PROMPT] * rows, NEW, built.drafter.room, [0], META)
        built.start(context)
        packed(built.advance(context, None, rng).round)  # with its constants
        device.reads, device.strays = None, []
        clock.start()
        done = built.advance(context, None, rng).round
        state(context), packed(done)
        total, spans = clock.stop()
    assert not device.strays, f"{method}: tensors of the host in a round, in {device.strays}"
    phases = {phase: int(kernels) for phase, kernels in spans.items() if "/" not in phase}
    return phases | {"told": int(total) - sum(phases.values())}
