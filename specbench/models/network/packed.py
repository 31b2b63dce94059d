"""Networks whose matrices lie as oneDNN's kernels read them, for eager passes on a CPU.

torch multiplies plain matrices of float32 by MKL, which is slow on processors of another maker, most of all with the
few rows of a verification (`tests/benchmarks/packed.py`). Compiled passes have a layout of their own in any case. Knows
modules; must not know what is computed with them.
"""

import copy
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from specbench.models.network.layers import shared_tensors
from specbench.models.network.reduced import ReducedHead

DTYPES = (torch.float32, torch.bfloat16)
FASTER_ON = "AuthenticAMD"  # there it was measured; on an Intel Xeon plain float32 is as fast as compiled

TOO_LARGE = "memory is not enough for packed matrices: eager passes read plain ones, which is slower here"


@cache
def pays() -> bool:
    """Whether packed matrices are faster on this processor than plain ones, as far as that was ever measured."""
    return bool(torch._C._has_mkldnn) and FASTER_ON in maker()


def maker() -> str:
    """Whoever made the processor, as the system has it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith("vendor_id")), "")


@dataclass(frozen=True, eq=False)
class Matrix:
    """A matrix [out, in] in oneDNN's own layout, which nobody else reads: it can neither be changed nor copied."""

    weight: Tensor

    @classmethod
    def of(cls, weight: Tensor) -> "Matrix":
        return cls(torch.ops.mkldnn._reorder_linear_weight.default(weight.detach()))

    def __deepcopy__(self, memo: dict[int, Any]) -> "Matrix":
        return self

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [..., in] → x · weightᵀ + bias, [..., out]."""
        found: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, self.weight, bias, "none", [], "")
        return found


class PackedLinear(nn.Linear):
    """What a linear layer computes, from a packed copy of its weights; they themselves stay where they are."""

    def __init__(self, layer: nn.Linear, matrix: Matrix) -> None:
        super().__init__(layer.in_features, layer.out_features, layer.bias is not None, device="meta")
        self.weight, self.bias, self.matrix = layer.weight, layer.bias, matrix

    def forward(self, x: Tensor) -> Tensor:
        return self.matrix(x, self.bias)


class PackedHead(ReducedHead):
    """The same of a head that knows some tokens."""

    def __init__(self, head: ReducedHead, matrix: Matrix) -> None:
        super().__init__(head.weight, head.ids, head.width)
        self.weight, self.matrix = head.weight, matrix

    def narrow(self, hidden: Tensor) -> Tensor:
        return self.matrix(hidden)


@dataclass
class Twins:
    """The twins of some networks, made when they are first asked for, and anew where the networks are others."""

    _networks: Mapping[str, Any] = field(default_factory=dict)
    _found: dict[str, Any] = field(default_factory=dict)

    def of(self, networks: Mapping[str, Any]) -> dict[str, Any]:
        """See `twins`."""
        if self._networks != networks:
            self._networks, self._found = dict(networks), twins(networks)
        return self._found


def twins(networks: Mapping[str, Any]) -> dict[str, Any]:
    """The same networks, with the same tensors and packed copies of their matrices, one of each that they share.

    What borrows from a network before it borrows from its twin.
    """
    matrices: dict[Tensor, Matrix] = {}
    found: dict[str, Any] = {}
    for name, network in networks.items():
        before = {id(networks[other]): twin for other, twin in found.items()}
        found[name] = copy.deepcopy(network, shared_tensors(network) | before)
        pack(found[name], matrices)
    return found


def pack(network: nn.Module, matrices: dict[Tensor, Matrix]) -> None:
    """Put packed layers in the place of plain ones, by the `matrices` that there are, to which new ones are added."""
    for name, layer in list(network.named_modules()):
        if not packable(layer):
            continue
        matrix = matrices.get(layer.weight) or matrices.setdefault(layer.weight, Matrix.of(layer.weight))
        holder, _, last = name.rpartition(".")
        packed = PackedHead(layer, matrix) if isinstance(layer, ReducedHead) else PackedLinear(layer, matrix)
        setattr(network.get_submodule(holder), last, packed)


def packable(layer: Any) -> bool:
    """A plain linear layer or reduced head on the CPU: not a quantised one, one of several devices, or one that is
    listened to."""
    if type(layer) not in (nn.Linear, ReducedHead) or layer._forward_hooks or layer._forward_pre_hooks:
        return False
    weight = layer.weight
    return type(weight) is nn.Parameter and type(weight.data) is Tensor and weight.is_cpu and weight.dtype in DTYPES
