"""Checkpoints that are quantised as they are stored: what each way of quantising needs, and on which device.

Knows what transformers' quantisers ask for (transformers 5.23, `quantizers`); must not know how a network is loaded.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

from specbench.errors import UnusableModelError, UsageError
from specbench.models.checkpoints.extras import require
from specbench.models.checkpoints.pairs import Checkpoint
from specbench.wording import clean


class UncompiledError(UsageError):
    """Weights that a compiler would not leave as they are; `why`."""

    def __init__(self, why: str) -> None:
        super().__init__(f"--tier compile: {why}: use --tier eager")
        self.why = why


@dataclass(frozen=True)
class Need:
    """Our extra with the packages that load it (empty: none is needed), and whether a CPU computes with it as well."""

    extra: str
    cpu: bool = True


NEEDS = {
    "gptq": Need("gptq"),
    "awq": Need("gptq"),
    "bitsandbytes": Need("bnb"),
    "compressed-tensors": Need("compressed"),
    "torchao": Need("quant"),
    "fbgemm_fp8": Need("", cpu=False),
    "nvfp4": Need("", cpu=False),
}
DEQUANTISED_ON_CPU = ("fp8", "mxfp8", "mxfp4", "compressed-tensors")


def settings(config: Any) -> Mapping[str, Any]:
    """How the weights of a checkpoint are quantised, as its config.json has it; empty where they are not."""
    found = getattr(config, "quantization_config", None)
    found = found or getattr(config.get_text_config(decoder=True), "quantization_config", None)
    return found if isinstance(found, Mapping) else found.to_dict() if found else {}


def method_of(config: Any) -> str:
    """The name of the way of quantising; empty for a checkpoint that is not quantised."""
    found = settings(config)
    if found.get("load_in_4bit") or found.get("load_in_8bit"):
        return "bitsandbytes"  # written before there was a name for it
    return str(found.get("quant_method") or "")


def refuse_unmet(checkpoint: Checkpoint, config: Any, device: torch.device) -> None:
    """UnusableModelError where what loads this checkpoint is not installed, or does not compute on `device`."""
    method = method_of(config)
    if method and method not in {*NEEDS, *DEQUANTISED_ON_CPU, *AUTO_QUANTIZER_MAPPING}:
        raise UnusableModelError(
            f"{checkpoint.name}: its weights are quantised by {clean(method)!r}, which transformers does not know: it "
            f"reads {', '.join(sorted({*NEEDS, *DEQUANTISED_ON_CPU}))}"
        )
    if (need := NEEDS.get(method)) is None:
        return
    if device.type == "cpu" and not need.cpu:
        raise UnusableModelError(f"{checkpoint.name}: its weights are quantised by {method}, which needs a GPU")
    if need.extra:
        require(need.extra, f"{checkpoint.name}: its weights are quantised by {method}, which")


def refuse_compiled(checkpoint: Checkpoint, config: Any, device: torch.device) -> None:
    """UncompiledError where a compiler that freezes weights might unpack them, and what is timed be another network."""
    method = method_of(config)
    if device.type == "cpu" and method and method not in DEQUANTISED_ON_CPU:
        raise UncompiledError(
            f"{checkpoint.name} is quantised by {method}, and a compiler that freezes weights may unpack them"
        )


def label(config: Any, device: torch.device) -> str:
    """What results say about such weights: the way of quantising and its bits; empty where they are not quantised."""
    found, method = settings(config), method_of(config)
    bits = found.get("bits") or (4 if found.get("load_in_4bit") else 8 if found.get("load_in_8bit") else None)
    size = f" {bits} bit" if bits else ""
    unpacked = ", dequantised" if method in DEQUANTISED_ON_CPU and device.type == "cpu" else ""
    return f"{method}{size}{unpacked}" if method else ""
