"""The row-static cache: keys and values in fixed buffers, every row with its own write positions. A rollback is a
write at a smaller position: a slot is read only by queries at or after it, which come when it is overwritten."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from transformers.cache_utils import Cache, StaticLayer

# --- pool -------------------------------------------------------------------------------------------------------------
# Memory of one cache, or memory shared by methods that never run at once: the next one overwrites it.

Place = tuple[torch.device, int, int, str]  # the number of a cache within its method, that of a layer, keys or values


@dataclass(eq=False)
class Buffer:
    """Bytes that live as long as they are referenced."""

    storage: torch.UntypedStorage


@dataclass
class Pool:
    """The memory of methods that never run at once: the n-th cache of each uses the same memory.

    The memory grows in place if a method needs more. Not if `fixed`, because compiled code and captured
    graphs know the address: there, users of the smaller one keep it. Memory is freed with the last method.
    """

    fixed: bool = False
    _buffers: WeakValueDictionary[Place, Buffer] = field(default_factory=WeakValueDictionary, init=False, repr=False)

    def share(self, length: int = 0, most: int = 0) -> "Memory":
        """The memory of the first cache of another method, of `length` slots; later methods
        have up to `most`, which a fixed pool allocates at once."""
        return Memory(self, count(), length, most if self.fixed else 0)

    def buffer(self, place: Place, size: int) -> Buffer:
        """The memory of a place, of at least `size` bytes."""
        found = self._buffers.get(place)
        if found is None or (self.fixed and found.storage.nbytes() < size):
            fresh = torch.empty(size, dtype=torch.uint8, device=place[0])
            found = self._buffers[place] = Buffer(fresh.untyped_storage())
        elif found.storage.nbytes() < size:
            found.storage.resize_(0)  # the contents are lost, and freed before the larger allocation
            found.storage.resize_(size)
        return found


@dataclass(eq=False)
class Memory:
    """Memory for one cache of a method: unshared, or in a pool, numbered as caches are first filled."""

    pool: Pool | None = None
    numbers: Iterator[int] = field(default_factory=count)
    length: int = 0
    most: int = 0
    _number: int | None = field(default=None, init=False)
    _held: dict[Place, Buffer] = field(default_factory=dict, init=False, repr=False)

    def zeros(self, layer: int, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """Zeros [B, H, L, D] for the keys or values of a layer, of the dtype and on the device
        of `like`, in the memory of the last call for this layer."""
        if self.pool is None:
            return torch.zeros(tuple(shape), dtype=like.dtype, device=like.device)
        if self._number is None:
            self._number = next(self.numbers)
        place, size = (like.device, self._number, layer, name), math.prod(shape) * like.dtype.itemsize
        if shape[2] == self.length < self.most:  # otherwise it is not the cache of a whole sequence
            size = size // self.length * self.most
        self._held[place] = buffer = self.pool.buffer(place, size)
        strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        found = torch.empty(0, dtype=like.dtype, device=like.device)
        return found.set_(buffer.storage, 0, shape, strides).zero_()

    def beside(self) -> "Memory":
        """The memory of another cache of the same method."""
        return Memory(self.pool, self.numbers, self.length, self.most)


OWN = Memory()


# --- caches -----------------------------------------------------------------------------------------------------------


@dataclass
class Slots:
    """The slots [B, q] that the next pass writes, and the number that it reads; set once per pass for all layers."""

    index: Tensor = field(default_factory=lambda: torch.empty((0, 0), dtype=torch.long))
    reach: int = 0
    rows: Tensor = field(default_factory=lambda: torch.empty((0, 1), dtype=torch.long))
    _copies: dict[torch.device, tuple[Tensor, "Slots"]] = field(default_factory=dict, init=False, repr=False)

    def place(self, index: Tensor, reach: int) -> None:
        """The next pass writes at index [B, q], or [1, q] in every row, and reads the first `reach` slots."""
        self.index, self.reach = index, reach
        if len(index) > 1:  # otherwise row numbers are not needed
            self.rows = numbers(index)

    def on(self, device: torch.device) -> "Slots":
        """The same on the device of a layer, copied once per pass."""
        if self.index.device == device:
            return self
        of, copy = self._copies.get(device, (None, self))
        if of is not self.index:
            copy = Slots(self.index.to(device), self.reach, self.rows.to(device))
            self._copies[device] = self.index, copy
        return copy


class RowStaticLayer(StaticLayer):  # type: ignore[no-untyped-call]
    """A static layer that writes at the given slots of every row instead of one position for all rows."""

    def __init__(self, length: int, slots: Slots, number: int = 0, memory: Memory = OWN) -> None:
        super().__init__(length)
        self.slots, self.number, self.memory = slots, number, memory

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate memory for keys and values, in the network's dtype for them."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = self._zeros("keys", key_states), self._zeros("values", value_states)
        for store in (self.keys, self.values):
            torch._dynamo.mark_static_address(store)
        self.is_initialized = True

    def _zeros(self, name: str, states: Tensor) -> Tensor:
        rows, heads, _, size = states.shape
        return self.memory.zeros(self.number, name, (rows, heads, self.max_cache_len, size), states)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        self._write(self.keys, key_states)
        self._write(self.values, value_states)
        return self.keys[:, :, : self.slots.reach], self.values[:, :, : self.slots.reach]

    @property
    def stores(self) -> list[Tensor]:
        """Keys and values; empty if nothing was ever written: prompts of one token."""
        return [store for store in (self.keys, self.values) if store is not None]

    def _write(self, store: Tensor, states: Tensor) -> None:
        slots = self.slots.on(store.device)
        index = slots.index
        if index.shape[0] == 1:  # the same, and ten times as fast on a CPU in 16 bits
            store.index_copy_(2, index[0], states)
        else:
            store[slots.rows, :, index] = states.transpose(1, 2)  # scatter_ walks the whole store on a CPU

    def at(self, slots: Tensor, rows: slice = slice(None)) -> Tensor:
        """[B, q, D] the states at slots [B, q] of these rows, in a layer that keeps states [B, 1, slots, D] as keys."""
        assert self.keys is not None, "states are written before they are read"
        return self.keys[rows, 0][numbers(slots), slots]

    def get_seq_length(self) -> int:
        return 0  # positions and masks must not be derived from the cache: both are given to every pass


class RowStaticCache(Cache):
    """One row-static layer per layer of the model, `length` slots each, in memory allocated at the first pass."""

    def __init__(self, layers: int, length: int, memory: Memory = OWN) -> None:
        self.slots = Slots()
        self.rows = [RowStaticLayer(length, self.slots, number, memory) for number in range(layers)]
        super().__init__(layers=list(self.rows))
        self.length = length

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy slots source [B, m] to slots target [B, m] in all layers, all reads before all writes."""
        rows = numbers(source)
        for store in self.stores:
            row, to, of = (part.to(store.device) for part in (rows, target, source))
            store[row, :, to] = store[row, :, of]

    @property
    def stores(self) -> list[Tensor]:
        """Keys and values of all layers."""
        return [store for layer in self.rows for store in layer.stores]

    def copy(self, slots: Tensor) -> list[Tensor]:
        """The contents [B, m, heads, D] of slots [B, m]; a row may name one several times."""
        return [store[numbers(slots), :, slots] for store in self.stores]

    def put_back(self, slots: Tensor, states: Sequence[Tensor]) -> None:
        """Write the result of `copy` back to its slots."""
        for store, kept in zip(self.stores, states, strict=True):
            store[numbers(slots), :, slots] = kept

    @property
    def empty(self) -> bool:
        """Whether nothing was ever written, so that there are no buffers yet."""
        return any(layer.keys is None for layer in self.rows)

    def put(self, row: int, other: "RowStaticCache") -> None:
        """Replace `row` by the only row of `other`, in place; by zeros where `other` was never written to."""
        for layer, one in zip(self.rows, other.rows, strict=True):
            for store, source in ((layer.keys, one.keys), (layer.values, one.values)):
                if store is not None:
                    store[row] = source[0] if source is not None else 0

    def clear(self) -> None:
        """Clear all layers in place: stale slots are masked, but NaN would pass the mask."""
        for store in self.stores:
            store.zero_()


def numbers(index: Tensor) -> Tensor:
    """[B, 1] the row numbers for an index [B, q]."""
    return torch.arange(len(index), device=index.device).unsqueeze(1)
