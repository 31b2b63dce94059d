"""Tiers: how a function of tensors at fixed addresses runs, as Python, as one compiled graph,
or as a CUDA graph. Its results and in-place changes are the same in every tier."""

import shutil
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, takewhile
from typing import Any, Generic, Literal, ParamSpec, TypeVar

import torch
from torch import Tensor

from specbench.errors import UsageError

P = ParamSpec("P")
R = TypeVar("R")
Name = Literal["eager", "graph", "compile"]

# inductor 2.11 makes `zeros(...).scatter(1)` of floats whole numbers, which other regions would read as floats
EXACT = {"optimize_scatter_upon_const_tensor": False}
# inductor on a CPU: weights as constants, packed for its own matrix kernels. oneDNN's kernels are excluded: autotuning
# uses a few short calls, so that noise decides, and a wrong choice costs a small model three times its pass.
ON_CPU: dict[str, Any] = {
    **EXACT,
    "freezing": True,
    "max_autotune": True,
    "max_autotune_gemm_backends": "CPP",
    "max_autotune_report_choices_stats": False,
}
# on a GPU inside our own capture: a mode with its own graphs would overwrite results between replays; only
# coordinate_descent_tuning makes the product of one row a reduction that is tuned to the memory's bandwidth
ON_CUDA: dict[str, Any] = {
    **EXACT,
    "max_autotune": True,
    "max_autotune_gemm_backends": "ATEN",  # to try Triton's for every shape takes minutes
    "max_autotune_report_choices_stats": False,
    "coordinate_descent_tuning": True,
    "triton.cudagraphs": False,
}
FINE, STEP, GROWTH = 2048, 256, 1.25  # captured rounds: end of the even spacing, its step, and the growth factor beyond

EAGER = "Python and its calls are part of every number; --tier auto leaves them out"
COMPILING = "machine code; a new method takes half a minute to compile"
GRAPHS = "rounds are replayed as CUDA graphs; capturing takes seconds"
WHY: dict[Name, str] = {"eager": EAGER, "compile": COMPILING, "graph": GRAPHS}

COMPILERS = ("g++", "clang++", "c++")

_numbers = count()


def choose(wanted: str, device: torch.device) -> tuple[Name, str]:
    """(tier, remark on it) for the requested tier; auto is the best on this machine. UsageError
    if a tier is not available."""
    reason = missing_compiler()
    if wanted == "auto" and device.type == "cuda":
        return "graph", GRAPHS
    if wanted == "auto":
        return ("eager", f"{reason}: Python is part of every number") if reason else ("compile", COMPILING)
    if wanted == "graph" and device.type != "cuda":
        raise UsageError(f"--tier graph needs a CUDA device, not {device}: use --tier compile, eager or auto")
    if wanted == "compile" and reason:
        raise UsageError(f"--tier compile: {reason}; install one, or use --tier eager")
    name: Name = wanted  # type: ignore[assignment]
    return name, WHY[name]


def fast_bfloat16(device: torch.device) -> bool:
    """Whether compiled CPU passes are faster in bfloat16 than in float32, and as cheap over several
    rows as over one: with AMX, or with `few_rows`, which reads half as many bytes."""
    return device.type == "cpu" and (bool(capabilities().get("amx_bf16")) or by_few_rows())


def by_few_rows() -> bool:
    """Whether compiled products use `few_rows`: with AVX-512 (VNNI). Faster on an AMD EPYC and an Intel Xeon."""
    wide = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    return wide and bool(capabilities().get("avx512_vnni"))


def capabilities() -> dict[str, Any]:
    """The processor's features as reported by torch; empty if it reports none."""
    found: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return found


def reaches(length: int, tier: Name) -> tuple[int, ...]:
    """The numbers of slots that passes read, up to `length`, each compiled or captured
    separately: few if compiling takes half a minute, dense if capturing takes a second."""
    return (*takewhile(lambda step: step < length, fine() if tier == "graph" else (2**n for n in count(9))), length)


def fine() -> Iterator[int]:
    """Even steps, then geometric ones."""
    step = STEP
    while True:
        yield step
        step += STEP if step < FINE else max(int(step * (GROWTH - 1)) // STEP, 1) * STEP


def settings(device: torch.device, frozen: bool = True) -> dict[str, Any]:
    """inductor's settings. frozen: weights become constants, if that is faster."""
    return dict(ON_CUDA if device.type == "cuda" else ON_CPU) | ({} if frozen else {"freezing": False})


def with_kernels(given: Mapping[str, Any], compiling: Callable[[dict[str, Any]], R]) -> R:
    """Compile with inductor's matrix kernels and ours; dtypes without kernels, such as float64, use the library."""
    if by_few_rows():
        from specbench.models.execution import few_rows

        few_rows.offer()
    try:
        return compiling(dict(given))
    except RuntimeError as error:
        if "NoValidChoices" not in f"{type(error).__name__} {error}":
            raise
        return compiling({**given, "max_autotune": False})


def missing_compiler() -> str:
    """Why nothing can be compiled here; empty if compilation works."""
    found = any(shutil.which(name) for name in COMPILERS)
    return "" if found else "torch needs a C++ compiler (g++ or clang++) and none was found on the PATH"


@dataclass
class Compiled(Generic[P, R]):
    """A function as one compiled graph with the shapes of its first call, which compiles it.

    Guards are omitted: they cost 0.5 ms per call on a network of 16 layers, as much as the network itself. So it
    must be called with tensors of the same shapes, and with unchanged objects; otherwise the result is undefined.
    frozen: weights become constants, if that is faster; otherwise they may change in place from call to call.
    """

    function: Callable[P, R]
    device: torch.device
    backend: str = "inductor"
    frozen: bool = True
    _call: Any = field(default=None, init=False, repr=False)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._call is not None:
            result: R = self._call(*args, **kwargs)
            return result
        return with_kernels(settings(self.device, self.frozen), lambda given: self._compile(given, *args, **kwargs))

    def _compile(self, given: dict[str, Any], *args: P.args, **kwargs: P.kwargs) -> R:
        options = given if self.backend == "inductor" else {}
        call: Any = torch.compile(
            unshared(self.function),
            fullgraph=True,
            dynamic=False,
            backend=self.backend,
            options={**options, "guard_filter_fn": torch.compiler.skip_all_guards_unsafe},
        )
        # dynamo reads whether weights will be frozen before inductor sees its options
        with torch.no_grad(), torch._inductor.config.patch(given), quiet():
            result: R = call(*args, **kwargs)
        self._call = call
        return result


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress inductor's kernel tables on stderr and the tracer's advice: the caller reports relevant problems."""
    from torch._inductor import select_algorithm

    shown, select_algorithm.PRINT_AUTOTUNE = select_algorithm.PRINT_AUTOTUNE, False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        select_algorithm.PRINT_AUTOTUNE = shown


@dataclass
class Gate:
    """Whether passes of new shapes may be compiled, which takes long; `made`: the number compiled."""

    open: bool = True
    made: int = 0


@dataclass
class Passes:
    """The passes of one network, each compiled when its shapes first occur; there must be few. Once the
    gate is closed, passes of new shapes run uncompiled. frozen: the network's weights never change."""

    ready: Callable[[Callable[..., Tensor], bool], Callable[..., Tensor]]
    gate: Gate = field(default_factory=Gate)
    frozen: bool = True
    _ready: dict[tuple[torch.Size, ...], Callable[..., Tensor]] = field(default_factory=dict, init=False, repr=False)

    def __call__(self, run: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        shapes = tuple(tensor.shape for tensor in inputs)
        if shapes not in self._ready:
            if not self.gate.open:
                return run(*inputs)
            self._ready[shapes] = self.ready(run, self.frozen)
            self.gate.made += 1
        return self._ready[shapes](*(tensor.contiguous() for tensor in inputs))

    def fresh(self, frozen: bool = True) -> "Passes":
        """The same for a network with another cache: compiled passes belong to their cache."""
        return Passes(self.ready, self.gate, frozen)


def unshared(function: Callable[P, R]) -> Callable[P, R]:
    """The same function with its own code object: dynamo keeps compiled code by code object,
    eight entries for each, and without guards it would confuse closures of one `def`."""

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **kwargs)

    code = call.__code__.replace(co_name=f"round_{next(_numbers)}")
    return types.FunctionType(code, call.__globals__, code.co_name, call.__defaults__, call.__closure__)
