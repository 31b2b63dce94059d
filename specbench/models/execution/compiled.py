"""Tiers: how a function of tensors at fixed addresses runs, as Python, as one compiled graph,
or as a CUDA graph. What it gives, and what it changes in place, is the same in every tier.
"""

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
from specbench.models.execution.few_rows import FASTER_ON, maker

P = ParamSpec("P")
R = TypeVar("R")
Name = Literal["eager", "graph", "compile"]

# inductor on a CPU: weights as constants, packed for its own matrix kernels. Those of oneDNN are not in the choice: it
# is made from a few short calls, so that noise decides it, and a wrong one costs three times the pass of a small model.
ON_CPU: dict[str, Any] = {
    "freezing": True,
    "max_autotune": True,
    "max_autotune_gemm_backends": "CPP",
    "max_autotune_report_choices_stats": False,
}
# on a GPU inside our own capture: a mode that captures graphs of its own would overwrite results between replays
# only with coordinate_descent_tuning is the product of one row a reduction, which is tuned to the memory's bandwidth
ON_CUDA: dict[str, Any] = {"max_autotune": True, "coordinate_descent_tuning": True, "triton.cudagraphs": False}
FINE, STEP, GROWTH = 2048, 256, 1.25  # captured rounds: up to where, how evenly, and how much further each beyond

EAGER = "Python and its calls are part of every number; --tier auto leaves them out"
COMPILING = "machine code; a new method takes half a minute to compile"
GRAPHS = "rounds are replayed as CUDA graphs; capturing takes seconds"
WHY: dict[Name, str] = {"eager": EAGER, "compile": COMPILING, "graph": GRAPHS}

COMPILERS = ("g++", "clang++", "c++")

_numbers = count()


def choose(asked: str, device: torch.device) -> tuple[Name, str]:
    """(tier, what to know about it) for the tier that is asked for; auto is
    the best that this machine has. UsageError where a tier is not to be had."""
    reason = missing_compiler()
    if asked == "auto" and device.type == "cuda":
        return "graph", GRAPHS
    if asked == "auto":
        return ("eager", f"{reason}: Python is part of every number") if reason else ("compile", COMPILING)
    if asked == "graph" and device.type != "cuda":
        raise UsageError(f"--tier graph needs a CUDA device, not {device}: use --tier compile, eager or auto")
    if asked == "compile" and reason:
        raise UsageError(f"--tier compile: {reason}; install one, or use --tier eager")
    name: Name = asked  # type: ignore[assignment]
    return name, WHY[name]


def fast_bfloat16(device: torch.device) -> bool:
    """Whether compiled passes of a CPU are faster in bfloat16 than in float32, and over several rows
    as cheap as one: with AMX, or where the processor adds products of bfloat16 and `few_rows` is used."""
    found = capabilities()
    return device.type == "cpu" and bool(found.get("amx_bf16") or (found.get("avx512_bf16") and by_few_rows()))


def by_few_rows() -> bool:
    """Whether compiled products are those of `few_rows`: on the processors on which that was measured to be faster."""
    wide = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    return wide and bool(capabilities().get("avx512_vnni")) and FASTER_ON in maker()


def capabilities() -> dict[str, Any]:
    """What the processor can do, as torch has it; empty where it does not say."""
    found: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return found


def reaches(length: int, tier: Name) -> tuple[int, ...]:
    """The numbers of slots that passes read, up to `length`, each compiled or captured by
    itself: few where compiling takes half a minute, dense where capturing takes a second."""
    return (*takewhile(lambda step: step < length, fine() if tier == "graph" else (2**n for n in count(9))), length)


def fine() -> Iterator[int]:
    """Evenly, then geometrically."""
    step = STEP
    while True:
        yield step
        step += STEP if step < FINE else max(int(step * (GROWTH - 1)) // STEP, 1) * STEP


def settings(device: torch.device, frozen: bool = True) -> dict[str, Any]:
    """What inductor is told. frozen: weights become constants, where that is faster."""
    return dict(ON_CUDA if device.type == "cuda" else ON_CPU) | ({} if frozen else {"freezing": False})


def with_kernels(given: Mapping[str, Any], compiling: Callable[[dict[str, Any]], R]) -> R:
    """Compile with inductor's matrix kernels and ours; not every dtype has any: float64 is left to the library."""
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
    """Why nothing can be compiled here; empty where it can."""
    found = any(shutil.which(name) for name in COMPILERS)
    return "" if found else "torch needs a C++ compiler (g++ or clang++) and there is none on the PATH"


@dataclass
class Compiled(Generic[P, R]):
    """A function as one compiled graph with the shapes of its first call, which compiles it.

    Guards are left out: they cost 0.5 ms per call on a network of 16 layers, as much as the network itself. So it must
    be called with tensors of the same shapes, and with objects that have not changed; else the result is undefined.
    frozen: weights become constants, where that is faster; else they may change in place from call to call.
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
        # dynamo asks whether weights will be frozen before inductor sees its options
        with torch.no_grad(), torch._inductor.config.patch(given), quiet():
            result: R = call(*args, **kwargs)
        self._call = call
        return result


@contextmanager
def quiet() -> Iterator[None]:
    """No tables of measured kernels on stderr and no advice of the tracer: what matters is said by the caller."""
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
    """Whether passes of new shapes may be made ready, which takes long; `made`: how many were."""

    open: bool = True
    made: int = 0


@dataclass
class Passes:
    """The passes of one network, each made ready by itself when its shapes are first met; there must be few of
    them. Once the gate is closed, passes of new shapes run as they are. frozen: the network's weights never change."""

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
        """The same for a network with another cache: what is made ready belongs to its cache."""
        return Passes(self.ready, self.gate, frozen)


def unshared(function: Callable[P, R]) -> Callable[P, R]:
    """The same function with a code object of its own: dynamo keeps what it compiled by code object,
    eight entries for each, and without guards closures of one `def` would be taken for each other."""

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **kwargs)

    code = call.__code__.replace(co_name=f"round_{next(_numbers)}")
    return types.FunctionType(code, call.__globals__, code.co_name, call.__defaults__, call.__closure__)
