"""Networks whose matrices lie as oneDNN's kernels read them, for eager passes on a CPU.

torch multiplies plain matrices of float32 by MKL, which is slow on processors of another maker, most of all with the
few rows of a verification (`tests/benchmarks/packed.py`). Compiled passes have a layout of their own in any case, but
prompts, of any length, are read by eager ones in every tier. Knows modules; must not know what is computed with them.
"""

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from specbench.models.execution.free_memory import give_back
from specbench.models.execution.onednn import Matrix, dtypes, settle
from specbench.models.network.fused import fuse
from specbench.models.network.layers import shared_tensors
from specbench.models.network.reduced import ReducedHead
from specbench.wording import grouped

Weights = tuple[Tensor, ...]

TOGETHER = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
)  # layers that read the same, as decoders name them
NOTE = "matrices are packed by oneDNN, as they are slow on this processor otherwise; layers take fewer calls, too"
PROMPTS = "prompts are read with matrices packed by oneDNN, as they are slow on this processor otherwise"
TOO_LARGE = "memory is not enough for packed matrices: eager passes read plain ones, which is slower here"


class PackedLinear(nn.Linear):
    """What a linear layer computes, from a packed copy of its weights; they stay where they are, or are `Released`."""

    def __init__(self, layer: nn.Linear, matrix: Matrix) -> None:
        super().__init__(layer.in_features, layer.out_features, layer.bias is not None, device="meta")
        self.weight, self.bias, self.matrix = layer.weight, layer.bias, matrix

    def forward(self, x: Tensor) -> Tensor:
        return self.matrix(x, self.bias)

    def __getattr__(self, name: str) -> Any:
        """Code that reads the weights of its layers by itself gets them, released or not."""
        found: Any = super().__getattr__(name)
        return self.unpacked() if name == "weight" and not found.numel() else found

    def unpacked(self) -> Tensor:
        """The weights [out, in], to the bit."""
        return self.matrix.weight.to_dense()


class PackedPart(PackedLinear):
    """One of some layers that read the same tensor one after the other, as queries, keys and values are made: the first
    that is called computes what all of them give, and the others take their part of it."""

    def __init__(self, layer: nn.Linear, group: "Group", number: int) -> None:
        super().__init__(layer, group.matrix)
        self.group, self.number = group, number

    def forward(self, x: Tensor) -> Tensor:
        return self.group.part(x, self.number)

    def unpacked(self) -> Tensor:
        return torch.split(super().unpacked(), list(self.group.sizes))[self.number]

    def whole(self, x: Tensor) -> Tensor:
        """What all of them make of x, side by side."""
        return self.group.matrix(x, self.group.bias)


@dataclass(eq=False)
class Group:
    """Layers with one packed matrix, their rows one below the other. It keeps what it read and found until every layer
    has had its part; a layer that is given another tensor gets what that gives."""

    matrix: Matrix
    bias: Tensor | None
    sizes: Sequence[int]
    _read: Tensor | None = None
    _found: Tensor | None = None
    _left: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.starts = [sum(self.sizes[:number]) for number in range(len(self.sizes))]

    def part(self, x: Tensor, number: int) -> Tensor:
        """What layer `number` makes of x [..., in], as a part of what all make of it."""
        found = self._found
        if found is None or x is not self._read or number not in self._left:
            found = self.matrix(x, self.bias)
            self._read, self._found, self._left = x, found, set(range(len(self.sizes)))
        self._left.remove(number)
        if not self._left:
            self._read = self._found = None
        return found.narrow(-1, self.starts[number], self.sizes[number])


class PackedHead(ReducedHead):
    """The same of a head that knows some tokens."""

    def __init__(self, head: ReducedHead, matrix: Matrix) -> None:
        super().__init__(head.weight, head.ids, head.width)
        self.weight, self.matrix = head.weight, matrix

    def narrow(self, hidden: Tensor) -> Tensor:
        return self.matrix(hidden)


class PlainWhereRecorded(PackedLinear):
    """A packed layer that is recorded for a compiler as the plain one: that lays weights out in its own way."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias) if recorded() else super().forward(x)


class PlainHeadWhereRecorded(PackedHead):
    """The same of a head that knows some tokens."""

    def narrow(self, hidden: Tensor) -> Tensor:
        return ReducedHead.narrow(self, hidden) if recorded() else super().narrow(hidden)


def recorded() -> bool:
    """Whether what is called now is recorded for a compiler, by its own tracer or operator by operator."""
    return torch.compiler.is_compiling() or get_proxy_mode() is not None


@dataclass
class Twins:
    """The twins of some networks, made when they are first asked for, and anew where the networks are others."""

    _of: tuple[dict[str, Any], bool] = field(default_factory=lambda: ({}, False))
    _found: dict[str, Any] = field(default_factory=dict)
    _released: "Released" = field(default_factory=lambda: Released())

    def of(self, networks: Mapping[str, Any], compiled: bool = False, release: bool = False) -> dict[str, Any]:
        """See `twins`. release: the networks lose the weights of which their twins have packed copies."""
        if self._of != (networks, compiled):
            self.restore()
            self._released = Released(read_once(networks) if release else frozenset())
            self._of, self._found = (dict(networks), compiled), twins(networks, compiled, self._released)
        return self._found

    def restore(self) -> None:
        """Give the networks back what was released."""
        self._released.restore()


@dataclass(eq=False)
class Released:
    """Weights without their numbers, which are in packed copies alone. once: the ids of those that may be released."""

    once: frozenset[int] = frozenset()
    _gone: list[tuple[Weights, list[int], Matrix]] = field(default_factory=list)

    def add(self, weights: Weights, matrix: Matrix) -> None:
        """Release the weights that a matrix is made of, where nothing else reads them."""
        if all(id(weight) in self.once for weight in weights):
            self._gone.append((weights, [len(weight) for weight in weights], matrix))
            for weight in weights:
                weight.data = weight.new_empty(0)

    def restore(self) -> None:
        """Unpack all of them, to the bit."""
        while self._gone:
            weights, sizes, matrix = self._gone.pop()
            for weight, plain in zip(weights, torch.split(matrix.weight.to_dense(), sizes), strict=True):
                weight.data = plain


def read_once(networks: Mapping[str, Any]) -> frozenset[int]:
    """The ids of the weights that are those of a single linear layer, and neither shared nor an embedding's."""
    modules = [module for network in networks.values() for module in network.modules()]
    read = Counter(id(weight) for module in modules for weight in module.parameters(recurse=False))
    return frozenset(id(m.weight) for m in modules if type(m) is nn.Linear and read[id(m.weight)] == 1)


def twins(networks: Mapping[str, Any], compiled: bool = False, released: Released | None = None) -> dict[str, Any]:
    """The same networks, with the same tensors and packed copies of their matrices, one of each that they share.

    What borrows from a network before it borrows from its twin. Its layers are computed in fewer calls, see `fused`.
    compiled: they are compiled as well, layer by layer; then only their calls outside of what was compiled differ.
    """
    matrices: dict[Weights, Matrix] = {}
    found: dict[str, Any] = {}
    for name, network in networks.items():
        before = {id(networks[other]): twin for other, twin in found.items()}
        found[name] = copy.deepcopy(network, shared_tensors(network) | before)
        pack(found[name], matrices, compiled, released or Released())
        if not compiled:
            fuse(found[name])
        give_back()  # what was released, before the next network takes more
    if not compiled:  # else eager passes read prompts alone, which have many rows
        for same in grouped(matrices.values(), lambda matrix: (matrix.weight.shape, matrix.weight.dtype)):
            settle(same)
    return found


def pack(network: nn.Module, matrices: dict[Weights, Matrix], compiled: bool, released: Released) -> None:
    """Put packed layers in the place of plain ones, by the `matrices` that there are, to which new ones are added."""
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
    """Whether one matrix can stand for some layers: plain ones of the same width and type, each with a bias or none."""
    if not all(isinstance(layer, nn.Linear) and packable(layer) for layer in layers):
        return False
    return len({(layer.in_features, layer.weight.dtype, layer.bias is None) for layer in layers}) == 1


def packable(layer: Any) -> bool:
    """A plain linear layer or reduced head on the CPU: not a quantised one, one of several devices, or one that is
    listened to."""
    if type(layer) not in (nn.Linear, ReducedHead) or layer._forward_hooks or layer._forward_pre_hooks:
        return False
    weight = layer.weight
    return type(weight) is nn.Parameter and type(weight.data) is Tensor and weight.is_cpu and weight.dtype in dtypes()
