"""Products of matrices by oneDNN: where they are faster than those of torch, and their layout.

Knows tensors and the processor; must not know networks.
"""

import math
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROWS = (1, 4, 5)  # as how many a single row may be multiplied: with two or three no processor was faster
TURNS = 9  # in which all of them are timed; the least time counts
CLEAR = 0.1  # of the time of a single row: a gain that no noise makes or hides
PROBED = 64 << 20  # bytes of weights that are timed together: more than a processor's caches hold
FASTER_ON = "AuthenticAMD"  # there it was measured; on an Intel Xeon plain float32 is as fast as compiled


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., in] → x · weightᵀ + bias, [..., out], for a weight [out, in] in oneDNN's own layout, or a plain one."""
    found: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, "none", [], "")
    return found


def packed(weight: Tensor) -> Tensor:
    """A weight [out, in] in oneDNN's own layout, which nobody else reads: it can neither be changed nor copied."""
    found: Tensor = torch.ops.mkldnn._reorder_linear_weight.default(weight.detach())
    return found


@dataclass(eq=False)
class Matrix:
    """A packed weight, which a copy of what has it has as well.

    rows: a single row is multiplied as so many equal ones, where the kernel for few rows is faster (`settle`).
    """

    weight: Tensor
    rows: int = 1

    @classmethod
    def of(cls, weight: Tensor) -> "Matrix":
        return cls(packed(weight))

    def __deepcopy__(self, memo: dict[int, Any]) -> "Matrix":
        return self

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        if self.rows > 1 and x.numel() == x.shape[-1]:
            wide = product(x.reshape(1, -1).repeat(self.rows, 1), self.weight, bias)
            return wide[:1].view(*x.shape[:-1], -1)
        return product(x, self.weight, bias)


def settle(matrices: Sequence[Matrix], now: Callable[[], float] = time.perf_counter) -> None:
    """Choose as how many rows some matrices of one shape [out, in] and dtype multiply a single one: with which all of
    them together take the least time.

    A baseline that used a slower kernel for its one row than the verify pass for its few would flatter every draft.
    Where the choice changes a digit, only a clear gain counts, so that it is the same in every run on a machine.
    """
    some = matrices[: max(1, PROBED // (matrices[0].weight.numel() * matrices[0].weight.itemsize))]
    x = torch.ones(1, some[0].weight.shape[1], dtype=some[0].weight.dtype)
    seconds = dict.fromkeys(ROWS, math.inf)
    for turn in range(TURNS):
        for rows in (*ROWS[turn % len(ROWS) :], *ROWS[: turn % len(ROWS)]):  # the first finds the least in a cache
            probes = [Matrix(one.weight, rows) for one in some]
            began = now()
            for probe in probes:
                probe(x)
            seconds[rows] = min(seconds[rows], now() - began)
    best = min(seconds, key=lambda rows: (seconds[rows], rows))
    if not rounded_alike(some[0]) and seconds[best] > (1 - CLEAR) * seconds[1]:
        best = 1
    for one in matrices:
        one.rows = best


def rounded_alike(matrix: Matrix) -> bool:
    """Whether a single row has the same digits alone and among several: oneDNN sums up many float32 numbers of a
    single row in another order."""
    x = torch.randn(1, matrix.weight.shape[1], generator=torch.Generator().manual_seed(0)).to(matrix.weight.dtype)
    return torch.equal(Matrix(matrix.weight, 1)(x), Matrix(matrix.weight, ROWS[-1])(x))


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
