"""Quantised weights: by torchao or by layers of ours after loading, or as stored in a checkpoint.

Linear layers become int8, int4 or fp8 (weight only), or with int8 activations as well (w8a8, w4a8) by layers of
ours: torchao's have no kernel for a CPU, and wait for a GPU in every product. The head, the embedding and all weights
outside linear layers (norms, biases, stacked experts) keep their type: head and embedding are often one tensor, and the
head decides between near tokens. With `+head` the head has its own int8 codes: it is half of what a small network then
reads per token. Activations have a scale per token, so that a row of logits depends on its own sequence alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

from specbench.decoding.timing import clock_for
from specbench.errors import UnusableModelError, UsageError
from specbench.models.checkpoints.names import Checkpoint, require
from specbench.models.execution import graphs, int8_operators
from specbench.models.network import packed
from specbench.wording import clean, first_line

GROUP = 32  # weights of a row with a common scale and zero point in int4: torchao's finest, as in GGUF's Q4
BYTES = {"int8": 1.0, "int4": 0.5, "fp8": 1.0}
HEAD = "+head"
OURS: dict[str, type[packed.Int8Linear | packed.Int4Linear]] = {"w8a8": packed.Int8Linear, "w4a8": packed.Int4Linear}
# Of these inductor computes a frozen weight times its scale once, and a GPU makes a copy in the dtype of activations
# in every pass, unless a compiler joins that with the product. Bytes that the operators of a layer read and write per
# weight, by the bytes of a number in that dtype:
UNFUSED = {"int8": {2: 5, 4: 9}, "fp8": {2: 21, 4: 17}}
CODED = frozenset({"w8a8", "w8a8+head"})  # on a GPU, too
KERNELS = 20  # about as many operators code the activations of such a layer; a compiler joins them
SLOWEST = 3.0  # times an unquantised layer, for weights with a kernel of their own on a GPU
WIDE, SERIES, REPLAYS = 4096, 4, 20  # of the layers that are timed
SCALES = {"int8": 5, "fp8": 4}  # bytes per row: a float32 scale; a zero point


KEPT = "head, embedding and norms keep their type"


@dataclass(frozen=True)
class Quantised:
    """The result of quantising a network: the number of its linear layers, and their share of all weights."""

    kind: str
    layers: int
    left: int
    share: float
    by: str = " by torchao"
    on_cpu: bool = True

    @property
    def label(self) -> str:
        """The description of the weights in results."""
        return f"{self.kind}{self.by} ({self.share:.0%} of the weights)"

    @property
    def warnings(self) -> list[str]:
        ends = "embedding and norms keep their type, the head is int8" if self.kind.endswith(HEAD) else KEPT
        kept = f"{self.share:.0%} of the weights are {self.kind}; {ends}"
        narrow = f"; so do {self.left} linear layers whose width is no multiple of {GROUP}" if self.left else ""
        missing = int8_operators.missing() if self.on_cpu and not self.by else ""
        slow = f"; slow here: {missing}" if missing else ""
        return [f"quantised{self.by}: {kept}{narrow}; lossless means: with respect to the quantised weights{slow}"]


def apply(model: Any, kind: str, device: torch.device) -> Quantised:
    """Quantise the linear layers of `model` in place, on `device`. UnusableModelError if it has none."""
    chosen, every = quantisable(model, kind), linear_layers(model, kind.endswith(HEAD))
    if not chosen:
        raise UnusableModelError(f"{type(model).__name__} has no linear layers that can be quantised to {kind}")
    weights = sum(tensor.numel() for tensor in model.parameters())
    weights += sum(every[name].weight.numel() for name in chosen if is_embedding(model, every[name]))
    taken = sum(every[name].weight.numel() for name in chosen)
    put(model, kind, device, chosen)
    by = "" if ours(kind, device) else Quantised.by
    return Quantised(kind, len(chosen), len(every) - len(chosen), taken / weights, by, device.type == "cpu")


def ours(kind: str, device: torch.device) -> bool:
    """Whether our layers do it, not torchao."""
    return kind in CODED or (device.type == "cpu" and not needs_torchao(kind))


def unfused(kind: str | None, dtype: torch.dtype) -> str:
    """What makes such weights slow on a GPU in tiers that do not compile; empty if nothing does."""
    if kind in UNFUSED:
        moved, plain = UNFUSED[kind][dtype.itemsize], dtype.itemsize
        return (
            f"are unpacked in every pass ({moved} bytes per weight are read or written, {plain} without --quantize), "
            "with v near 1"
        )
    return f"take about {KERNELS} kernels per layer, and 1 without --quantize" if kind in CODED else ""


def needs_torchao(kind: str) -> bool:
    """Whether torchao does it on every device."""
    return kind.removesuffix(HEAD) not in OURS


def put(model: Any, kind: str, device: torch.device, chosen: set[str]) -> None:
    """Quantise the layers with these names on `device`; among layers of ours the head is int8."""
    if not ours(kind, device):
        from torchao.quantization import quantize_

        quantize_(model, torchao_settings(kind, device), filter_fn=lambda _, name: name in chosen, device=device)
        return
    head, form = head_of(model), OURS[kind.removesuffix(HEAD)]
    for name in chosen:
        holder, _, last = name.rpartition(".")
        layer = model.get_submodule(name).to(device)  # one by one, as it may hold no more than the quantised ones
        setattr(model.get_submodule(holder), last, packed.Int8Linear(layer) if layer is head else form(layer))


def head_of(model: Any) -> Any:
    """The module that computes logits; None if missing."""
    return model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None


def linear_layers(model: Any, head: bool = False) -> dict[str, nn.Linear]:
    """The linear layers of a network by name; the head is included only on request."""
    found = {name: one for name, one in model.named_modules() if isinstance(one, nn.Linear)}
    return {name: one for name, one in found.items() if head or one is not head_of(model)}


def is_embedding(model: Any, layer: nn.Linear) -> bool:
    """Whether a layer shares its weights with the embedding, which keeps them."""
    embedding = model.get_input_embeddings()
    return layer.weight is getattr(embedding, "weight", None)


def quantisable(model: Any, kind: str) -> set[str]:
    """The names of the layers to quantise."""
    layers = linear_layers(model, kind.endswith(HEAD))
    return {name for name, layer in layers.items() if kind != "int4" or layer.in_features % GROUP == 0}


def torchao_settings(kind: str, device: torch.device) -> Any:
    """torchao's settings. None of them may change the compiler's, which the baseline shares."""
    from torchao import quantization

    if kind not in ("int8", "int4", "fp8"):
        raise UnusableModelError("such layers are for a CPU: use int4 or w8a8")
    if kind == "int8":
        return quantization.Int8WeightOnlyConfig(set_inductor_config=False)
    if kind == "fp8":
        return quantization.Float8WeightOnlyConfig(set_inductor_config=False)
    if device.type == "cpu":  # packed for torch's own kernel; the settings without `Prototype` have none for a CPU
        from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig

        return PrototypeInt4WeightOnlyConfig(group_size=GROUP, set_inductor_config=False)
    return quantization.Int4WeightOnlyConfig(
        group_size=GROUP, int4_packing_format="tile_packed_to_4d", set_inductor_config=False
    )


def refuse_unable(kind: str, dtype: torch.dtype, device: torch.device) -> None:
    """UnusableModelError unless such layers compute on `device` in `dtype`; a small one is tried."""
    if not ours(kind, device):
        require("quant", f"quantising to {kind}")
    tried = nn.Sequential(nn.Linear(4 * GROUP, 4 * GROUP, bias=False, dtype=dtype, device=device))
    try:
        put(tried, kind, device, {"0"})
        tried(torch.ones(2, 4 * GROUP, dtype=dtype, device=device))
        timed = device.type != "cpu" and not unfused(kind, dtype)
        slow, plain = (1e6 * seconds_of(one, dtype, device) if timed else 0.0 for one in (kind, None))
    except Exception as error:  # any error of torchao and its kernels
        where = f"{device.type} in {str(dtype).removeprefix('torch.')}"
        raise UnusableModelError(f"{kind} weights do not compute on {where} here: {first_line(error)}") from error
    if slow > SLOWEST * plain:
        raise UnusableModelError(
            f"{kind} weights are {slow / plain:.1f} times as slow as unquantised ones on this {device.type} device, "
            f"and {SLOWEST:g} times is the limit (a layer of {WIDE} × {WIDE} takes {slow:.0f} µs, not {plain:.0f}): "
            "leave --quantize out"
        )


@cache
def seconds_of(kind: str | None, dtype: torch.dtype, device: torch.device) -> float:
    """Seconds of a wide layer for two tokens on a GPU, replayed as a graph, in the fastest of a few series.

    No CPU is timed: kinds without a kernel are much slower there, and serve to measure acceptance.
    """
    layer = nn.Sequential(nn.Linear(WIDE, WIDE, bias=False, dtype=dtype, device=device))
    if kind is not None:
        put(layer, kind, device, {"0"})
    x, clock = torch.ones(2, WIDE, dtype=dtype, device=device), clock_for(device)
    run, series = graphs.Repeated(layer, graphs.Shared(device)), []
    with torch.no_grad():
        for _ in range(SERIES):
            clock.start()
            for _ in range(REPLAYS):
                run(x)
            series.append(clock.stop()[0] / REPLAYS)
    return min(series[1:])  # the first one captures


def bytes_of(model: Any, kind: str | None = None) -> int:
    """The bytes of a network's weights after quantisation; it may be on the device meta."""
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    total: int = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if kind is None:
        return total
    layers, head = linear_layers(model, kind.endswith(HEAD)), head_of(model)
    for name in quantisable(model, kind):
        layer = layers[name]
        total += _bytes(layer.weight, "w8a8" if layer is head else kind.removesuffix(HEAD))
        total -= 0 if is_embedding(model, layer) else layer.weight.numel() * layer.weight.element_size()
    return total


def _bytes(weight: torch.Tensor, kind: str) -> int:
    """The bytes of a layer's codes and scales."""
    rows, columns = weight.shape
    tall = -(-rows // packed.TALL) * packed.TALL
    if kind == "w8a8":
        return tall * -(-columns // 4) * 4 + 4 * rows
    if kind == "w4a8":  # a group also has a value
        return tall * -(-columns // packed.GROUP) * (packed.GROUP // 2 + 1) + 4 * rows
    scales = 2 * weight.element_size() * weight.numel() // GROUP if kind == "int4" else SCALES[kind] * rows
    return int(BYTES[kind] * weight.numel()) + scales


class UncompiledError(UsageError):
    """Weights that a compiler would change; `why`."""

    def __init__(self, why: str) -> None:
        super().__init__(f"--tier compile: {why}: use --tier eager")
        self.why = why


NEEDS = {  # our extra with the packages that load it; empty if it needs a GPU instead
    "gptq": "gptq",
    "awq": "gptq",
    "bitsandbytes": "bnb",
    "compressed-tensors": "compressed",
    "torchao": "quant",
    "fbgemm_fp8": "",
    "nvfp4": "",
}
DEQUANTISED_ON_CPU = ("fp8", "mxfp8", "mxfp4", "compressed-tensors")


def stored_settings(config: Any) -> Mapping[str, Any]:
    """The quantisation of a checkpoint in its config.json; empty if missing."""
    found = getattr(config, "quantization_config", None)
    found = found or getattr(config.get_text_config(decoder=True), "quantization_config", None)
    return found if isinstance(found, Mapping) else found.to_dict() if found else {}


def method_of(config: Any) -> str:
    """The name of the quantisation method; empty for an unquantised checkpoint."""
    found = stored_settings(config)
    if found.get("load_in_4bit") or found.get("load_in_8bit"):
        return "bitsandbytes"  # written before the method had a name
    return str(found.get("quant_method") or "")


def refuse_unmet(checkpoint: Checkpoint, config: Any, device: torch.device) -> None:
    """UnusableModelError if the loader of this checkpoint is not installed, or does not compute on `device`."""
    method = method_of(config)
    if method and method not in {*NEEDS, *DEQUANTISED_ON_CPU, *AUTO_QUANTIZER_MAPPING}:
        raise UnusableModelError(
            f"{checkpoint.name}: its weights are quantised by {clean(method)!r}, which transformers does not know: it "
            f"reads {', '.join(sorted({*NEEDS, *DEQUANTISED_ON_CPU}))}"
        )
    extra, about = NEEDS.get(method), f"{checkpoint.name}: its weights are quantised by {method}, which"
    if extra == "" and device.type == "cpu":
        raise UnusableModelError(f"{about} needs a GPU")
    if extra:
        require(extra, about)


def refuse_compiled(checkpoint: Checkpoint, config: Any, device: torch.device) -> None:
    """UncompiledError if a compiler that freezes weights might unpack them, so that another network is timed."""
    method = method_of(config)
    if device.type == "cpu" and method and method not in DEQUANTISED_ON_CPU:
        raise UncompiledError(
            f"{checkpoint.name} is quantised by {method}, and a compiler that freezes weights may unpack them"
        )


def stored_label(config: Any, device: torch.device) -> str:
    """The description of such weights in results: the method and its bits; empty if they are not quantised."""
    found, method = stored_settings(config), method_of(config)
    bits = found.get("bits") or (4 if found.get("load_in_4bit") else 8 if found.get("load_in_8bit") else None)
    size = f" {bits} bit" if bits else ""
    unpacked = ", dequantised" if method in DEQUANTISED_ON_CPU and device.type == "cpu" else ""
    return f"{method}{size}{unpacked}" if method else ""
