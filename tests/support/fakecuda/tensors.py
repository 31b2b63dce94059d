"""Tensors of the simulated device, and the rules of CUDA that an operator on them must keep."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.fakecuda.machine import Machine, SimulatedError, specbench_line

CPU = torch.device("cpu")
# operators without a kernel: they make a view, or memory that nothing is written to
VIEWS = {
    "view", "_unsafe_view", "expand", "slice", "select", "unsqueeze", "squeeze", "transpose", "permute", "detach",
    "alias", "t", "as_strided", "split", "unbind", "split_with_sizes", "movedim", "unfold", "lift_fresh", "narrow",
    "_reshape_alias", "diagonal",
}  # fmt: skip
NO_KERNEL = VIEWS | {"empty", "empty_strided", "new_empty", "empty_like", "new_empty_strided", "set_", "resize_"}
# operators whose result has a size, or is a number, that only the device knows
HOST_READS = {
    "_local_scalar_dense", "nonzero", "masked_select", "unique", "_unique2", "unique_dim", "unique_consecutive",
    "equal", "is_nonzero", "bincount", "histc",
}  # fmt: skip
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
COPIES = {"copy_", "_to_copy"}

_machine: list[Machine] = []  # the one that is installed


def efficient_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *_: Any, **named: Any) -> Any:
    """CUDA's kernel of attention by a CPU's: logarithms are padded to 32 queries, and 0 where all keys are hidden by
    numbers that are infinite in powers of two (seen on an H100 with torch 2.11)."""
    assert mask is None or (mask.stride(-1) == 1 and not any(step % 8 for step in mask.stride()[:-1])), "misaligned"
    found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, total = found(query, key, value, attn_mask=mask, scale=named.get("scale"))
    if mask is not None:
        total = total.masked_fill((mask.float() / math.log(2)).isneginf().all(-1), 0)
    padded = torch.nn.functional.pad(total, (0, -total.shape[-1] % 32), value=torch.inf)
    return out, padded, torch.zeros(()), torch.zeros(())


CUDA_ONLY = {"_scaled_dot_product_efficient_attention": efficient_attention}  # operators that no CPU has


def machine() -> Machine:
    return _machine[-1]


class Fake(Tensor):
    """A tensor of a simulated GPU: `cpu` holds its numbers."""

    cpu_: Tensor

    @staticmethod
    def __new__(cls, cpu: Tensor, index: int) -> "Fake":
        found = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, cpu.size(), strides=cpu.stride(), storage_offset=cpu.storage_offset(), dtype=cpu.dtype,
            layout=cpu.layout, device=torch.device("cuda", index), requires_grad=False,
        )  # fmt: skip
        found.cpu_ = cpu
        return found  # type: ignore[no-any-return]

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatch(func, args, kwargs or {})

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        machine().wait("repr")
        return f"Fake({self.cpu_!r})"

    def __deepcopy__(self, memo: Any) -> "Fake":
        return Fake(self.cpu_.clone(), machine().index(self.device))

    def tolist(self) -> Any:
        machine().wait("tolist")
        return self.cpu_.tolist()

    def numpy(self, **_: Any) -> Any:
        raise TypeError("can't convert cuda device type tensor to numpy: use Tensor.cpu() first")

    def data_ptr(self) -> int:
        return self.cpu_.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.cpu_.untyped_storage()

    def set_(self, storage: Any, offset: int, shape: Sequence[int], strides: Sequence[int]) -> "Fake":  # type: ignore[override]
        cpu = torch.empty(0, dtype=self.dtype).set_(storage, offset, shape, strides)
        return Fake(cpu, machine().index(self.device))


class Mode(TorchDispatchMode):
    """Sends every operator of this thread through `dispatch`, those that make a tensor of nothing as well."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatch(func, args, kwargs or {})


def dispatch(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """An operator on the simulated device, on the CPU, or on both. Raises SimulatedError where CUDA refuses it."""
    name = func._schema.name.partition("::")[2]
    flat = [*flattened(args), *flattened(kwargs.values())]
    fakes = [one for one in flat if isinstance(one, Fake)]
    to = kwargs.get("device")
    to = None if to is None else torch.device(to)
    on_gpu = to is not None and to.type == "cuda"
    if not fakes and not on_gpu:
        return on_host(func, name, args, kwargs)
    if name in COPIES:
        if copied := copying(name, args, kwargs, to):
            return copied[0]
    else:
        refuse(func, name, args, kwargs, [one for one in flat if type(one) is Tensor], fakes)
    index = machine().index(to if on_gpu else fakes[0].device)
    given, named = both_mapped(unwrapped, args, kwargs)
    found = CUDA_ONLY.get(name, func)(*given, **named)
    count(func, name, given, named, found)
    return found if leaves(name, args, to) else mapped(wrapping(fakes, index), found)


def on_host(func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """An operator without a tensor of the device; page-locked memory is ordinary memory whose address is known."""
    known = machine().pinned
    if name == "is_pinned":
        return args[0].data_ptr() in known
    if name == "_pin_memory" or kwargs.get("pin_memory"):
        found = args[0].clone() if name == "_pin_memory" else func(*args, **{**kwargs, "pin_memory": False})
        known.add(found.data_ptr())
        return found
    return func(*args, **kwargs)


def copying(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], to: torch.device | None) -> tuple[Any, ...]:
    """Count a copy between host and device. Its result in a tuple if it is done later, else an empty one."""
    source = args[1] if name == "copy_" else args[0]
    late = bool(kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2]))
    from_gpu = isinstance(source, Fake)
    to_gpu = isinstance(args[0], Fake) if name == "copy_" else (from_gpu if to is None else to.type == "cuda")
    if from_gpu == to_gpu:
        return ()
    host = args[0] if from_gpu else source
    locked = late and isinstance(host, Tensor) and host.data_ptr() in machine().pinned
    if machine().capturing is not None or not locked:  # a graph would read the memory again at every replay
        machine().wait("copy to the host" if from_gpu else "copy to the device")
    elif from_gpu and name == "copy_":
        machine().copy_late(host, source.cpu_)
        return (host,)
    return ()


def refuse(
    func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], plain: list[Tensor], fakes: list[Fake]
) -> None:
    """Apply the rules of CUDA to an operator on tensors of GPUs `fakes` and of the CPU `plain`."""
    now = machine()
    if len({one.device for one in fakes}) > 1 or (fakes and not allowed(name, args, plain)):
        found = ", ".join(sorted({str(one.device) for one in [*fakes, *plain]}))
        raise SimulatedError(
            f"Expected all tensors to be on the same device, but found {found} ({func}, {specbench_line()})"
        )
    if name in INDEXING and fakes and any(isinstance(one, Tensor) and not isinstance(one, Fake) for one in args[1]):
        now.wait("index of the CPU")
    elif fakes and name not in {"fill_", "set_", "lift_fresh"}:
        now.scalars.update((name, specbench_line()) for _ in plain)
    if kwargs.get("generator") is not None and now.capturing is not None:
        raise SimulatedError(f"the generator is not registered with the graph ({name}, {specbench_line()})")
    if name in HOST_READS or reads_sizes(func, name, args, kwargs):
        now.wait(name)


def allowed(name: str, args: Sequence[Any], plain: list[Tensor]) -> bool:
    """Whether CUDA takes these CPU tensors: numbers anywhere, and indices of any size."""
    if name in INDEXING:
        plain = [one for one in (args[0], *args[2:3]) if isinstance(one, Tensor) and not isinstance(one, Fake)]
    return all(one.dim() == 0 for one in plain) or name in {"set_", "lift_fresh"}


def reads_sizes(func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the operator reads its own arguments to know the size of its result."""
    if name in INDEXING:
        return any(isinstance(one, Tensor) and one.dtype in (torch.bool, torch.uint8) for one in args[1])
    if name == "repeat_interleave":
        return func._overloadname.startswith("Tensor") and kwargs.get("output_size") is None
    if name == "isin" and isinstance(args[0], Fake) and isinstance(args[1], Fake):
        return bool(args[1].numel() >= int(10.0 * args[0].numel() ** 0.145))  # from there on it sorts, with `unique`
    return False


def unwrapped(one: Any) -> Any:
    if isinstance(one, Fake):
        return one.cpu_
    return CPU if isinstance(one, torch.device) and one.type == "cuda" else one


def leaves(name: str, args: Sequence[Any], to: torch.device | None) -> bool:
    """Whether a result is a tensor of the CPU."""
    if name == "copy_":
        return not isinstance(args[0], Fake)
    return name == "_to_copy" and to is not None and to.type != "cuda"


def wrapping(fakes: list[Fake], index: int) -> Callable[[Any], Any]:
    """Wraps results; an argument that comes back, changed in place, stays the same object."""
    known = {id(one.cpu_): one for one in fakes}

    def wrap(one: Any) -> Any:
        if not isinstance(one, Tensor):
            return one
        same = known.get(id(one))
        return same if same is not None and same.shape == one.shape else Fake(one, index)

    return wrap


def count(func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], found: Any) -> None:
    """Count the kernel, and record it if a stream is capturing."""
    now = machine()
    if now.capturing is not None:
        now.capturing.record(func, name, args, kwargs, found)
    elif name not in NO_KERNEL:
        now.launches[name] += 1


# --- arguments --------------------------------------------------------------------------------------------------------
# Those of operators are values and lists of values; torch's own trees of any depth take ten times as long.


def mapped(change: Callable[[Any], Any], some: Any) -> Any:
    kind = type(some)
    return kind([mapped(change, one) for one in some]) if kind is list or kind is tuple else change(some)


def both_mapped(change: Callable[[Any], Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    return [mapped(change, one) for one in args], {name: mapped(change, one) for name, one in kwargs.items()}


def flattened(some: Iterable[Any]) -> Iterator[Any]:
    for one in some:
        if type(one) is list or type(one) is tuple:
            yield from flattened(one)
        else:
            yield one


def tensors_in(*some: Any) -> list[Tensor]:
    return [one for one in flattened(some) if isinstance(one, Tensor)]
