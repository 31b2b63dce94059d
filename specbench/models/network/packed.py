"""Networks with matrices in the layout of oneDNN's kernels, for eager CPU passes, which read prompts in any tier.

torch multiplies plain float32 matrices by MKL, which is slow on processors of other vendors, most of all
with the few rows of a verification (`tests/benchmarks/packed.py`). Compiled passes have their own layout.
"""

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from specbench.models.execution import int8_operators
from specbench.models.execution.few_rows import Matrix, dtypes, settle
from specbench.models.execution.machine import give_back
from specbench.models.network.fused import fuse
from specbench.models.network.sampling import ReducedHead
from specbench.models.network.skipping import shared_tensors
from specbench.wording import grouped

Weights = tuple[Tensor, ...]

TOGETHER = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
)  # layers with the same input, as decoders name them
NOTE = "matrices are packed by oneDNN, as they are slow on this processor otherwise; layers take fewer calls, too"
PROMPTS = "prompts are read with matrices packed by oneDNN, as they are slow on this processor otherwise"
TOO_LARGE = "memory is not enough for packed matrices: eager passes read plain ones, which is slower here"


class PackedLinear(nn.Linear):
    """A linear layer with a packed copy of its weights; the original weights stay, or are `Released`."""

    def __init__(self, layer: nn.Linear, matrix: Matrix) -> None:
        super().__init__(layer.in_features, layer.out_features, layer.bias is not None, device="meta")
        self.weight, self.bias, self.matrix = layer.weight, layer.bias, matrix

    def forward(self, x: Tensor) -> Tensor:
        return self.matrix(x, self.bias)

    def __getattr__(self, name: str) -> Any:
        """The weights, released or not, for code that reads them from its layers."""
        found: Any = super().__getattr__(name)
        return self.unpacked() if name == "weight" and not found.numel() else found

    def unpacked(self) -> Tensor:
        """The weights [out, in], bit for bit."""
        return self.matrix.weight.to_dense()


class PackedPart(PackedLinear):
    """One of several layers with the same input, such as the projections of queries, keys and
    values: the first one called computes the outputs of all."""

    def __init__(self, layer: nn.Linear, group: "Group", number: int) -> None:
        super().__init__(layer, group.matrix)
        self.group, self.number = group, number

    def forward(self, x: Tensor) -> Tensor:
        return self.group.part(x, self.number)

    def unpacked(self) -> Tensor:
        return torch.split(super().unpacked(), list(self.group.sizes))[self.number]

    def whole(self, x: Tensor) -> Tensor:
        """The outputs of all layers for x, concatenated."""
        return self.group.matrix(x, self.group.bias)


@dataclass(eq=False)
class Group:
    """Layers with one packed matrix. It keeps its input and output until every layer has taken its part."""

    matrix: Matrix
    bias: Tensor | None
    sizes: Sequence[int]
    _read: Tensor | None = None
    _found: Tensor | None = None
    _left: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.starts = [sum(self.sizes[:number]) for number in range(len(self.sizes))]

    def part(self, x: Tensor, number: int) -> Tensor:
        """The output of layer `number` for x [..., in], a part of the common output."""
        found = self._found
        if found is None or x is not self._read or number not in self._left:
            found = self.matrix(x, self.bias)
            self._read, self._found, self._left = x, found, set(range(len(self.sizes)))
        self._left.remove(number)
        if not self._left:
            self._read = self._found = None
        return found.narrow(-1, self.starts[number], self.sizes[number])


class PackedHead(ReducedHead):
    """The same for a head with a reduced vocabulary."""

    def __init__(self, head: ReducedHead, matrix: Matrix) -> None:
        super().__init__(head.weight, head.ids, head.width)
        self.weight, self.matrix = head.weight, matrix

    def narrow(self, hidden: Tensor) -> Tensor:
        return self.matrix(hidden)


class PlainWhereRecorded(PackedLinear):
    """A packed layer that is recorded for a compiler as the plain one: the compiler has its own layout."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias) if recorded() else super().forward(x)


class PlainHeadWhereRecorded(PackedHead):
    """The same for a head with a reduced vocabulary."""

    def narrow(self, hidden: Tensor) -> Tensor:
        return ReducedHead.narrow(self, hidden) if recorded() else super().narrow(hidden)


def recorded() -> bool:
    """Whether calls are being recorded for a compiler, by its own tracer or operator by operator."""
    return torch.compiler.is_compiling() or get_proxy_mode() is not None


@dataclass
class Twins:
    """The twins of some networks, made at first use, and again if the networks change."""

    _of: tuple[dict[str, Any], bool] = field(default_factory=lambda: ({}, False))
    _found: dict[str, Any] = field(default_factory=dict)
    _released: "Released" = field(default_factory=lambda: Released())

    def of(self, networks: Mapping[str, Any], compiled: bool = False, release: bool = False) -> dict[str, Any]:
        """See `twins`. release: the networks drop the weights that their twins hold as packed copies."""
        if self._of != (networks, compiled):
            self.restore()
            self._released = Released(read_once(networks) if release else frozenset())
            self._of, self._found = (dict(networks), compiled), twins(networks, compiled, self._released)
        return self._found

    def restore(self) -> None:
        self._released.restore()


@dataclass(eq=False)
class Released:
    """Weights without data, which only the packed copies hold. once: the ids of those that may be released."""

    once: frozenset[int] = frozenset()
    _gone: list[tuple[Weights, list[int], Matrix]] = field(default_factory=list)

    def add(self, weights: Weights, matrix: Matrix) -> None:
        """Release the weights of a matrix unless other code reads them."""
        if all(id(weight) in self.once for weight in weights):
            self._gone.append((weights, [len(weight) for weight in weights], matrix))
            for weight in weights:
                weight.data = weight.new_empty(0)

    def restore(self) -> None:
        """Unpack all of them, bit for bit."""
        while self._gone:
            weights, sizes, matrix = self._gone.pop()
            for weight, plain in zip(weights, torch.split(matrix.weight.to_dense(), sizes), strict=True):
                weight.data = plain


def read_once(networks: Mapping[str, Any]) -> frozenset[int]:
    """The ids of weights used by a single linear layer, neither shared nor an embedding's."""
    modules = [module for network in networks.values() for module in network.modules()]
    read = Counter(id(weight) for module in modules for weight in module.parameters(recurse=False))
    return frozenset(id(m.weight) for m in modules if type(m) is nn.Linear and read[id(m.weight)] == 1)


def twins(networks: Mapping[str, Any], compiled: bool = False, released: Released | None = None) -> dict[str, Any]:
    """The same networks, with the same tensors and one packed copy of each matrix.

    A module that borrows from a network borrows from its twin. Layers are computed in fewer calls, see `fused`.
    compiled: they are compiled as well, layer by layer; then only calls outside of compiled code differ.
    """
    matrices: dict[Weights, Matrix] = {}
    found: dict[str, Any] = {}
    for name, network in networks.items():
        before = {id(networks[other]): twin for other, twin in found.items()}
        found[name] = copy.deepcopy(network, shared_tensors(network) | before)
        pack(found[name], matrices, compiled, released or Released())
        if not compiled:
            fuse(found[name])
        give_back()  # free released memory before the next network
    if not compiled:  # otherwise eager passes only read prompts, which have many rows
        for same in grouped(matrices.values(), lambda matrix: (matrix.weight.shape, matrix.weight.dtype)):
            settle(same)
    return found


def pack(network: nn.Module, matrices: dict[Weights, Matrix], compiled: bool, released: Released) -> None:
    """Replace plain layers by packed ones, reusing `matrices`, to which new ones are added."""
    kinds: tuple[Any, Any] = (PackedLinear, PackedHead)
    if compiled:
        kinds = (PlainWhereRecorded, PlainHeadWhereRecorded)

    def packed(*layers: Any) -> Matrix:
        weights = tuple(layer.weight for layer in layers)
        if weights not in matrices:
            matrices[weights] = Matrix.of(torch.cat(weights) if len(weights) > 1 else weights[0])
            released.add(weights, matrices[weights])
        return matrices[weights]

    for holder in list(network.modules()):
        for names in () if compiled else TOGETHER:
            layers: list[Any] = [getattr(holder, name, None) for name in names]
            if together(layers):
                bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
                group = Group(packed(*layers), bias, [layer.out_features for layer in layers])
                for number, (name, layer) in enumerate(zip(names, layers, strict=True)):
                    setattr(holder, name, PackedPart(layer, group, number))
        for name, layer in list(holder.named_children()):
            if packable(layer):
                setattr(holder, name, kinds[isinstance(layer, ReducedHead)](layer, packed(layer)))


def together(layers: Sequence[Any]) -> bool:
    """Whether layers can share one matrix: plain ones of the same width and type, all with a bias or all without."""
    if not all(isinstance(layer, nn.Linear) and packable(layer) for layer in layers):
        return False
    return len({(layer.in_features, layer.weight.dtype, layer.bias is None) for layer in layers}) == 1


def packable(layer: Any) -> bool:
    """Whether it is a plain linear layer or reduced head on the CPU, neither quantised nor divided nor hooked."""
    if type(layer) not in (nn.Linear, ReducedHead) or layer._forward_hooks or layer._forward_pre_hooks:
        return False
    weight = layer.weight
    return type(weight) is nn.Parameter and type(weight.data) is Tensor and weight.is_cpu and weight.dtype in dtypes()


# --- int4 -------------------------------------------------------------------------------------------------------------
# Linear layers with 4-bit weights and int8 activations (W4A8), for processors that multiply bytes. 32
# weights of a row have a common scale, as in GGUF's Q4_0: a whole number of −127 … 127 times a scale of the
# row, as in its K-quants, so that the sums of a row are whole numbers, the same bit for bit in any order.

GROUP = 32
LEAST, LARGEST, INT4_RAISE = -8, 7, 8
# candidates for the code of the largest magnitude: beyond the range it is clipped, and the others are rounded less
ENDS = (-8.0, -8.6, -9.3)


class Int4Linear(nn.Module):
    """The result of `layer`, with codes of −8 … 7 in place of its weights [out, in].

    tiled: by our own operator; else by torch's, with the same results, from weights unpacked in every pass.
    """

    scale: Tensor
    groups: Tensor

    def __init__(self, layer: nn.Linear, tiled: bool | None = None) -> None:
        super().__init__()
        self.in_features, self.out_features, self.bias = layer.in_features, layer.out_features, layer.bias
        self.tiled = not int8_operators.missing() if tiled is None else tiled
        codes, groups, scale = rounded(layer.weight.detach().float())
        self.weight = nn.Parameter(int4_tiles(codes), requires_grad=False)
        self.register_buffer("groups", group_tiles(groups))
        self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] → [..., out] in the dtype of x."""
        if self.tiled:
            found: Tensor = torch.ops.specbench.linear(x, self.weight, self.groups, self.scale, self.bias)
            return found
        codes, scale = coded(x.reshape(-1, self.in_features))
        parts = self.weight.view(len(self.weight), -1, TALL, 4)
        rows = torch.stack([parts & 15, parts >> 4], 2).permute(0, 3, 1, 2, 4).reshape(len(self.weight) * TALL, -1)
        values = self.groups.view(len(self.weight), -1, TALL).transpose(1, 2).reshape(len(self.weight) * TALL, -1)
        whole = (
            F.pad(codes, (0, -self.in_features % GROUP)).double()
            @ ((rows.double() - INT4_RAISE) * values.double().repeat_interleave(GROUP, 1)).t()
        )
        return finished(whole[:, : self.out_features].float(), scale * self.scale, self.bias, x)


def rounded(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(codes [out, columns], groups [out, columns ÷ 32], scale [out]) of a weight, its columns padded to groups.

    weight ≈ codes · groups · scale. The value of a group is the one with the smallest squared error.
    """
    parts = F.pad(weight, (0, -weight.shape[1] % GROUP)).view(len(weight), -1, GROUP)
    extreme = parts.gather(-1, parts.abs().argmax(-1, keepdim=True))
    most = most_of(weight.shape[1])
    scale = (extreme.abs().amax((1, 2), keepdim=True) / -LEAST / most).clamp_min(torch.finfo(torch.float32).tiny)
    best, groups = torch.full_like(extreme, torch.inf), torch.ones_like(extreme)
    for end in ENDS:
        tried = (extreme / end / scale).round().clamp(-most, most)
        tried = torch.where(tried == 0, 1, tried)
        error = (parts - codes_of(parts, tried * scale) * tried * scale).square().sum(-1, keepdim=True)
        best, groups = torch.minimum(best, error), torch.where(error < best, tried, groups)
    codes = codes_of(parts, groups * scale).flatten(1)
    return codes.to(torch.int8), groups.squeeze(-1).to(torch.int8), scale.flatten()


def codes_of(parts: Tensor, worth: Tensor) -> Tensor:
    return (parts / worth).round().clamp(LEAST, LARGEST)


def most_of(columns: int) -> int:
    """The largest value of a group for which no sum over these columns exceeds 32 bits."""
    whole = -(-columns // GROUP) * GROUP
    return max(1, min(MOST, (2**31 - 1) // (-LEAST * MOST * whole)))


def int4_tiles(codes: Tensor) -> Tensor:
    """Codes [out, whole groups] in the operator's layout: [⌈out ÷ 16⌉, 64 per eight columns], two per byte."""
    raised = F.pad(codes + INT4_RAISE, (0, 0, 0, -codes.shape[0] % TALL), value=INT4_RAISE).to(torch.uint8)
    first, second = raised.view(-1, TALL, raised.shape[1] // 8, 2, 4).permute(3, 0, 2, 1, 4)
    found: Tensor = first | second << 4
    return found.reshape(len(raised) // TALL, -1)


def group_tiles(groups: Tensor) -> Tensor:
    """The values of groups [out, n] likewise: [⌈out ÷ 16⌉, 16 n]."""
    padded = F.pad(groups, (0, 0, 0, -groups.shape[0] % TALL))
    return padded.view(-1, TALL, groups.shape[1]).transpose(1, 2).reshape(padded.shape[0] // TALL, -1)


# --- int8 -------------------------------------------------------------------------------------------------------------
# Linear layers with int8 weights and activations (W8A8). Every row of weights has a scale, and so has
# every token, computed in every pass (Dettmers et al. 2022, arXiv 2208.07339, §2.1, without its
# outliers). The sums are whole numbers: a row of results depends bit for bit on its own token alone.

MOST = 127  # a code is one of −127 … 127
INT8_RAISE = 128  # one factor of the processor's instruction is unsigned
TALL = 16  # rows of a tile
EIGHT, ROWS = 8, 32  # a GPU's product of bytes takes codes of multiples of these widths and rows


class Int8Linear(nn.Module):
    """y = codes(x) · codes(W)ᵀ · scale(x) · scale(W) for the weights W [out, in] of `layer`.

    tiled: by our own operator, which has its own order of codes; else by torch's, with the same results.
    """

    scale: Tensor

    def __init__(self, layer: nn.Linear, tiled: bool | None = None) -> None:
        super().__init__()
        self.in_features, self.out_features, self.bias = layer.in_features, layer.out_features, layer.bias
        weight = layer.weight.detach().float()
        self.tiled = weight.is_cpu and not int8_operators.missing() if tiled is None else tiled
        scale = step(weight)
        codes = (weight / scale).round().to(torch.int8)
        codes = codes if weight.is_cpu else F.pad(codes, (0, -codes.shape[1] % EIGHT, 0, -codes.shape[0] % EIGHT))
        self.weight = nn.Parameter(int8_tiles(codes) if self.tiled else codes, requires_grad=False)
        self.register_buffer("scale", scale.squeeze(-1))

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] → [..., out] in the dtype of x."""
        if self.tiled:
            found: Tensor = torch.ops.specbench.linear(x, self.weight, None, self.scale, self.bias)
            return found
        codes, scale = coded(x.reshape(-1, self.in_features))
        whole = sums(codes, self.weight) if x.is_cpu else gpu_sums(codes, self.weight)
        return finished(whole[:, : self.out_features], scale * self.scale, self.bias, x)


def step(rows: Tensor) -> Tensor:
    """[n, 1] the value of code 1 of a row, for rows [n, m] that are not all zeros."""
    return (rows.abs().amax(-1, keepdim=True) / MOST).clamp_min(torch.finfo(torch.float32).tiny)


def coded(rows: Tensor) -> tuple[Tensor, Tensor]:
    """(codes [n, m], scales [n, 1]) of rows; a row with a non-finite value has a non-finite scale."""
    rows = rows.float()
    scale = step(rows)
    known = scale.isfinite()
    return torch.where(known, (rows / scale).round(), 0).to(torch.int8), torch.where(known, scale, torch.nan)


def finished(whole: Tensor, scale: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    """Sums of products of codes [rows, out] as numbers, in the output shape and dtype for x [..., in]."""
    found = whole * scale
    found = found if bias is None else found + bias.float()
    return found.to(x.dtype).view(*x.shape[:-1], whole.shape[-1])


def sums(codes: Tensor, weight: Tensor) -> Tensor:
    """codes [n, in] · weight [out, in]ᵀ, both int8: whole numbers, rounded to float32 at the end."""
    if weight.shape[1] > 1 and adds_bytes():  # with one column, torch's product reads outside the weight
        return torch._int_mm(codes, weight.t()).float()
    return (codes.double() @ weight.t().double()).float()


def gpu_sums(codes: Tensor, weight: Tensor) -> Tensor:
    """The same by the product of bytes of a GPU, which takes 17 rows or more; weight has zeros after its own."""
    padded = F.pad(codes, (0, weight.shape[1] - codes.shape[1], 0, -len(codes) % ROWS))
    return torch._int_mm(padded, weight.t())[: len(codes)].float()


@cache
def adds_bytes() -> bool:
    """Whether torch's product of bytes is right. Processors without VNNI add products in 16 bits, which saturate."""
    most = torch.full((TALL, TALL), MOST, dtype=torch.int8)
    return bool((torch._int_mm(most, most.t()) == TALL * MOST * MOST).all())


def int8_tiles(codes: Tensor) -> Tensor:
    """int8 codes [out, in] in the operator's layout: [⌈out ÷ 16⌉, 64 ⌈in ÷ 4⌉], four columns of 16 rows at a time."""
    rows, columns = codes.shape
    raised = F.pad(codes.to(torch.int16) + INT8_RAISE, (0, -columns % 4, 0, -rows % TALL), value=INT8_RAISE).to(
        torch.uint8
    )
    return raised.view(-1, TALL, raised.shape[1] // 4, 4).transpose(1, 2).reshape(raised.shape[0] // TALL, -1)
