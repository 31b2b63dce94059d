"""Where caches lie: in memory of their own, or in memory that methods have in common which never run at once.

Whichever of these methods starts next writes over what the others have left there. Knows tensors and bytes; must not
know networks, or what lies in a cache.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol
from weakref import WeakValueDictionary

import torch
from torch import Tensor

Place = tuple[torch.device, int, int, str]  # the number of a cache within its method, that of a layer, keys or values


class Memory(Protocol):
    """The memory of one cache at a time."""

    def zeros(self, layer: int, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """Zeros of this shape [B, H, L, D], of the dtype and on the device of `like`, for the keys or the values of a
        layer. The memory is that of the last call about this layer: whoever had that has it no more."""
        ...

    def beside(self) -> "Memory":
        """The memory of another cache of the same method."""
        ...


@dataclass(frozen=True)
class Own:
    """Memory that is nobody else's."""

    def zeros(self, layer: int, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        return torch.zeros(tuple(shape), dtype=like.dtype, device=like.device)

    def beside(self) -> "Own":
        return self


OWN = Own()


@dataclass(eq=False)
class Buffer:
    """Bytes that last as long as anyone has them."""

    storage: torch.UntypedStorage

    def grow(self, size: int) -> None:
        """Have so many bytes, in another place; what they held is lost. At no time are both places taken."""
        self.storage.resize_(0)
        self.storage.resize_(size)


@dataclass
class Pool:
    """The memory of methods that never run at once: the n-th cache of each lies where the n-th of the others does.

    So they take together what the largest of them takes. Where a method needs more than there is, the memory becomes
    larger in its place; but in a pool that is `fixed`, caches stay where they are, because compiled code and captured
    graphs know the address: there, who has the smaller one keeps it. Memory is given back with the last method.
    """

    fixed: bool = False
    _buffers: WeakValueDictionary[Place, Buffer] = field(default_factory=WeakValueDictionary, init=False, repr=False)

    def share(self, length: int = 0, most: int = 0) -> "Shared":
        """The memory of the first cache of another method, whose texts have `length` places; those of the methods that
        come after it have up to `most`, for which a fixed pool takes memory at once."""
        return Shared(self, Numbers(), length, most if self.fixed else 0)

    def buffer(self, place: Place, size: int) -> Buffer:
        """The memory of a place, of at least so many bytes."""
        found = self._buffers.get(place)
        if found is None or (self.fixed and found.storage.nbytes() < size):
            fresh = torch.empty(size, dtype=torch.uint8, device=place[0])
            found = self._buffers[place] = Buffer(fresh.untyped_storage())
        elif found.storage.nbytes() < size:
            found.grow(size)
        return found

    @property
    def size(self) -> int:
        """Bytes that can be had again, without those that outgrown caches keep."""
        return sum(buffer.storage.nbytes() for buffer in self._buffers.values())


@dataclass
class Numbers:
    """Numbers one after the other: of the caches of one method, in the order in which they are first filled."""

    given: int = 0

    def next(self) -> int:
        self.given += 1
        return self.given - 1


@dataclass(eq=False)
class Shared:
    """Memory in a pool for one cache of a method."""

    pool: Pool
    numbers: Numbers
    length: int
    most: int
    _number: int | None = field(default=None, init=False)
    _held: dict[Place, Buffer] = field(default_factory=dict, init=False, repr=False)

    def zeros(self, layer: int, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        if self._number is None:
            self._number = self.numbers.next()
        place, size = (like.device, self._number, layer, name), math.prod(shape) * like.dtype.itemsize
        if shape[2] == self.length < self.most:  # else it is no cache of a whole text
            size = size // self.length * self.most
        self._held[place] = buffer = self.pool.buffer(place, size)
        strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        found = torch.empty(0, dtype=like.dtype, device=like.device)
        return found.set_(buffer.storage, 0, shape, strides).zero_()

    def beside(self) -> "Shared":
        return Shared(self.pool, self.numbers, self.length, self.most)
