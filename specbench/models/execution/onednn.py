"""Products of matrices by oneDNN: where they are faster than those of torch, and their layout.

Knows tensors and the processor; must not know networks.
"""

import platform
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

FASTER_ON = "AuthenticAMD"  # there it was measured; on an Intel Xeon plain float32 is as fast as compiled


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., in] → x · weightᵀ + bias, [..., out], for a weight [out, in] in oneDNN's own layout, or a plain one."""
    found: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, "none", [], "")
    return found


def packed(weight: Tensor) -> Tensor:
    """A weight [out, in] in oneDNN's own layout, which nobody else reads: it can neither be changed nor copied."""
    found: Tensor = torch.ops.mkldnn._reorder_linear_weight.default(weight.detach())
    return found


@dataclass(frozen=True, eq=False)
class Matrix:
    """A packed weight, which a copy of what has it has as well."""

    weight: Tensor

    @classmethod
    def of(cls, weight: Tensor) -> "Matrix":
        return cls(packed(weight))

    def __deepcopy__(self, memo: dict[int, Any]) -> "Matrix":
        return self

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return product(x, self.weight, bias)


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


@cache
def dtypes() -> frozenset[torch.dtype]:
    """Of float32 and bfloat16 those in which this processor can do it: before AVX-512 it is float32 alone."""
    found = set()
    for dtype in (torch.float32, torch.bfloat16):
        with suppress(RuntimeError):
            product(torch.ones(1, 2, dtype=dtype), packed(torch.ones(2, 2, dtype=dtype)))
            found.add(dtype)
    return frozenset(found)
