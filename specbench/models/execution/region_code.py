"""The code of a region: compiled by inductor without its weights, so that one code serves all layers and processes.

Weights are constants in the layout of its kernels; the layout is found with random weights, and
applied to the real ones when the code is loaded.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from contextvars import copy_context
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from itertools import combinations, product
from pathlib import Path
from threading import Thread
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from specbench.decoding.timing import lap
from specbench.errors import out_of_memory
from specbench.files import replace_text
from specbench.models.execution.compile_cache import ALONE_FILE, open_ours, own, place, tidy
from specbench.models.execution.compiled import by_few_rows, capabilities, quiet, with_kernels
from specbench.models.execution.int8_operators import joined
from specbench.models.execution.regions import Plan, Region, UncutError, cut, trace
from specbench.wording import first_line

SIDE_BY_SIDE = (1, 2, 4)  # interleaved rows of a block, by dtype and processor

Call = Callable[[list[Tensor]], Sequence[Tensor]]


@dataclass(frozen=True)
class Layout:
    """The layout of a constant made of weights [n, k]: those numbered `weights` stacked, transposed or not.

    block: unless 0, blocks of this many rows are contiguous, [⌈n ÷ block⌉, k, block], `pairs`
    rows interleaved. alone: whether it is the only one of a batch, [1, …].
    """

    weights: tuple[int, ...]
    transposed: bool = False
    block: int = 0
    pairs: int = 1
    alone: bool = False

    def made(self, weights: Sequence[Tensor]) -> Tensor:
        some = [weights[number].detach() for number in self.weights]
        whole = torch.cat(some) if len(some) > 1 else some[0]
        whole = whole.t() if self.transposed else whole
        found = self.blocks(whole) if self.block else whole
        return found.unsqueeze(0) if self.alone else found

    def blocks(self, matrix: Tensor) -> Tensor:
        """The matrix in the layout of the second factor in inductor's matrix templates."""
        n, k = matrix.shape
        count = -(-n // self.block)
        padded = F.pad(matrix.t(), (0, count * self.block - n))
        parts = padded.reshape(k, count, self.block).transpose(0, 1).contiguous()
        woven = parts.view(count, k // self.pairs, self.pairs, self.block).transpose(-1, -2)
        return woven.reshape(count, k, self.block)


@dataclass(frozen=True)
class Code:
    """source: a module with a function `call` of a list of tensors; constants: those made of
    weights, by name; numbers: the others, which are the same for all weights."""

    source: str
    constants: Mapping[str, Layout]
    numbers: Mapping[str, int] = field(default_factory=dict)

    def load(self, constant: Callable[[Layout], Tensor]) -> Call:
        """The function with its own constants."""
        names: dict[str, Any] = {"__name__": "specbench_region"}
        exec(compile(self.source, names["__name__"], "exec"), names)
        names |= {name: constant(layout) for name, layout in self.constants.items()}
        names |= {name: torch.tensor(number) for name, number in self.numbers.items()}
        call: Call = names["call"]
        return call


def compiled(region: Region, settings: Mapping[str, Any]) -> Code:
    """Compile a region. Raises UncutError if its code would serve no other weights."""
    # inductor would cache the constants as well; inputs of a region always have its shapes, or it is another one
    ours = {"fx_graph_cache": False, "size_asserts": False, "alignment_asserts": False}
    # on a GPU Triton's kernels would be loaded late as well, which was not tried
    with torch.no_grad(), quiet(), nullcontext() if gpus() else unloaded():
        return with_kernels({**settings, **ours}, lambda given: compiled_with(given, region))


@cache
def read_headers() -> None:
    """Have the C++ compiler read what all regions include, in the background: the first one would wait for seconds."""
    from torch._inductor.async_compile import AsyncCompile

    def work() -> None:
        with suppress(Exception):  # a region will say what is wrong
            AsyncCompile().cpp_pybinding(
                [], '#include <torch/csrc/inductor/cpp_prefix.h>\nextern "C" void kernel() {}\n'
            )

    Thread(target=copy_context().run, args=(work,), daemon=True).start()  # torch keeps settings in the context


@contextmanager
def unloaded() -> Iterator[None]:
    """Let inductor return while the C++ compiler works: whoever loads the code waits for it, and meanwhile the next
    region is compiled. Half of the time is inductor's own, in Python, on one core."""
    from torch._inductor import async_compile

    owner: Any = async_compile.AsyncCompile
    waiting, owner._wait_futures = owner._wait_futures, lambda self, scope: None
    try:
        yield
    finally:
        owner._wait_futures = waiting


def compiled_with(settings: dict[str, Any], region: Region) -> Code:
    import torch._inductor.config
    from torch._guards import TracingContext
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner
    from torch._subclasses import FakeTensorMode

    random = torch.Generator(region.weights[0].device if region.weights else "cpu").manual_seed(0)
    weights = [made_up(weight, random) for weight in region.weights]
    parameters = {f"w{number}": torch.nn.Parameter(one, requires_grad=False) for number, one in enumerate(weights)}
    with FakeTensorMode(allow_non_fake_inputs=True):
        inputs = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device) for x in region.like]
    graph, found = joined(region.graph, [len(one) for one in weights]), list[Any]()

    def inner(graph: Any, given: Any, **more: Any) -> Any:
        code = compile_fx_inner(graph, given, **more)
        found.append((code, graph, TracingContext.get().fw_metadata))
        return code

    with torch._inductor.config.patch(settings):
        compile_fx(GraphModule(parameters, graph), inputs, inner_compile=inner)
    ((code, frozen, about),) = found
    if about.num_mutated_inp_runtime_indices or about.num_outputs_aliased or about.num_intermediate_bases:
        raise UncutError("its outputs share memory")
    made = [node.meta["val"].dtype for node in frozen.graph.output_node().args[0] if isinstance(node, Node)]
    if made[len(made) - len(region.outputs) :] != [node.meta["val"].dtype for node in region.outputs]:
        raise UncutError("its code gives outputs another type")  # other regions would misread them
    constants = dict(code.constants or {})
    constants |= {name: getattr(frozen, at) for name, at in code.frozen_param_names.items()}
    # whole numbers, as arguments of kernels may be
    whole = {} if weights else {n: one for n, one in constants.items() if one.dtype == torch.int64 and not one.dim()}
    numbers = {name: int(one) for name, one in whole.items()}
    layouts_of = {name: layout(tensor, weights) for name, tensor in constants.items() if name not in numbers}
    return Code(code.source_code, layouts_of, numbers)


def made_up(weight: Tensor, random: torch.Generator) -> Tensor:
    """Random numbers in the shape of a weight: a constant equal to a function of them is made of them."""
    found = torch.empty_like(weight)
    return found.normal_(generator=random) if weight.is_floating_point() else found.random_(generator=random)


def layout(constant: Tensor, weights: Sequence[Tensor]) -> Layout:
    """The layout of a constant made of weights. UncutError if it is unknown."""
    for one in layouts(constant, weights):
        made = one.made(weights)
        if made.shape == constant.shape and made.stride() == constant.stride() and torch.equal(made, constant):
            return one
    raise UncutError(f"a constant {tuple(constant.shape)} of its code is not known to be made of its weights")


def layouts(constant: Tensor, weights: Sequence[Tensor]) -> Iterator[Layout]:
    if constant.is_mkldnn or constant.dim() not in (2, 3, 4):
        return
    if constant.dim() > 2 and constant.shape[0] == 1:
        yield from (replace(one, alone=True) for one in layouts(constant[0], weights))
    if constant.dim() == 4:
        return
    runs = [tuple(range(*ends)) for ends in combinations(range(len(weights) + 1), 2)]
    for run, transposed in product(runs, (False, True)):
        columns = {weights[number].shape[1] for number in run}
        if len(columns) > 1 or constant.dtype != weights[run[0]].dtype:
            continue
        if sum(weights[number].numel() for number in run) > constant.numel():
            continue
        if constant.dim() == 2:
            yield Layout(run, transposed)
            continue
        inner = sum(weights[number].shape[0] for number in run) if transposed else columns.pop()
        if constant.shape[1] == inner:
            yield from (Layout(run, transposed, constant.shape[2], n) for n in SIDE_BY_SIDE if inner % n == 0)


# --- store ------------------------------------------------------------------------------------------------------------
# Code of regions on disk, by its operations and machine, with inductor's machine code.

FORMAT = 7  # of the files; increase it when `few_rows` or code outside the settings changes
MACHINE_CODE = "TORCHINDUCTOR_CACHE_DIR"


@dataclass
class Store:
    """Code of regions compiled with the same settings; kept in `folder`, to which only this user writes."""

    settings: Mapping[str, Any]
    folder: Path = field(default_factory=place)
    compiled: int = field(default=0, init=False)
    _known: dict[str, Code] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        import torch._inductor.config
        from torch._inductor.runtime.cache_dir_utils import default_cache_dir

        # without this every process compiles, or at least loads, a file for each set of vector instructions
        torch._inductor.config.cpp.vec_isa_ok = True
        # torch's default is a temporary folder, and torch writes its name here on first use
        usual = (default_cache_dir(), str(self.folder / "machine"))
        self.folder = own(self.folder)
        if os.environ.get(MACHINE_CODE, usual[0]) in usual:
            os.environ[MACHINE_CODE] = str(self.folder / "machine")

    def code(self, region: Region) -> Code:
        """The code of a region, compiled here if missing. Raises UncutError."""
        key = hashlib.sha256(f"{self._where} {region.key}".encode()).hexdigest()
        if key not in self._known:
            file = self.folder / "regions" / f"{key}.json"
            self._known[key] = read(file) or self._compiled(region, file)
        return self._known[key]

    @property
    def _where(self) -> str:
        """The dependencies of code besides its operations."""
        machine = [torch.backends.cpu.get_cpu_capability(), torch.get_num_threads(), capabilities(), gpus()]
        about = [FORMAT, torch.__version__, machine, dict(self.settings), by_few_rows()]
        return json.dumps(about, default=str)

    def _compiled(self, region: Region, file: Path) -> Code:
        code = compiled(region, self.settings)
        self.compiled += 1
        with suppress(OSError):  # a full disk costs only the next process time
            replace_text(file, json.dumps(asdict(code)), ALONE_FILE)
            tidy(self.folder)
        return code


def gpus() -> list[str]:
    """Their names, for which kernels are tuned."""
    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]


def read(file: Path) -> Code | None:
    """The code in a file; None if it is missing, incomplete, or may have been written by others."""
    try:
        with open_ours(file) as opened:
            found = json.load(opened)
        constants = {name: Layout(tuple(one.pop("weights")), **one) for name, one in found["constants"].items()}
        return Code(found["source"], constants, found["numbers"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


# --- programs ---------------------------------------------------------------------------------------------------------
# A function run region by region: its first call records and compiles it, all others have laps between regions.


@dataclass(frozen=True)
class Step:
    """A region between two laps: the numbers of its input and output values, and of inputs read for the last time."""

    call: Call
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    over: tuple[int, ...]


@dataclass
class Regions:
    """The shared data of one tier's programs: code, and laid-out weights, as long as any program needs them."""

    codes: Store
    _constants: WeakValueDictionary[Any, Tensor] = field(default_factory=WeakValueDictionary, init=False, repr=False)
    _loaded: dict[str, Call] = field(default_factory=dict, init=False, repr=False)  # code without weights, by key

    def call(self, region: Region, code: Code) -> Call:
        """A region with its weights."""
        if region.weights:
            return code.load(lambda layout: self._constant(layout, region.weights))
        if region.key not in self._loaded:
            self._loaded[region.key] = code.load(lambda layout: layout.made(()))
        return self._loaded[region.key]

    def _constant(self, layout: Layout, weights: Sequence[Tensor]) -> Tensor:
        # as long as the constant exists, so does a program with the weights: no other tensor has their ids
        key = (*(id(weights[number]) for number in layout.weights), replace(layout, weights=()))
        found = self._constants.get(key)
        if found is None:
            self._constants[key] = found = layout.made(weights)
        return found


class Program:
    """A plan with code: its values by number, its regions as steps."""

    def __init__(self, plan: Plan, spec: pytree.TreeSpec, regions: Regions) -> None:
        numbers: dict[Node, int] = {}

        def at(nodes: Sequence[Node]) -> tuple[int, ...]:
            return tuple(numbers.setdefault(node, len(numbers)) for node in nodes)

        # all before any is loaded, which waits for the C++ compiler
        codes = [step if isinstance(step, str) else (step, regions.codes.code(step)) for step in plan.steps]
        steps: list[Step | str] = [
            one if isinstance(one, str) else Step(regions.call(*one), at(one[0].inputs), at(one[0].outputs), ())
            for one in codes
        ]
        self.arguments, self.ends, captured = at(plan.arguments), at(plan.ends), at(list(plan.captured))
        self.values: list[Any] = [None] * len(numbers)
        for number, tensor in zip(captured, plan.captured.values(), strict=True):
            self.values[number] = tensor
        self.steps = freeing(steps, {*self.ends, *captured})
        self.last, self.spec = plan.last, spec
        # kept as long as the constants made of them, which are found by their ids
        self.weights = [step.weights for step in plan.steps if isinstance(step, Region)]

    def __call__(self, *args: Tensor) -> Any:
        values = self.values
        for number, given in zip(self.arguments, args, strict=True):
            values[number] = given
        for step in self.steps:
            if isinstance(step, str):
                lap(step)
                continue
            for number, made in zip(step.outputs, step.call([values[n] for n in step.inputs]), strict=True):
                values[number] = made
            for number in step.over:
                values[number] = None
        return pytree.tree_unflatten(self.last(*[values[number] for number in self.ends]), self.spec)


def freeing(steps: Sequence[Step | str], kept: set[int]) -> list[Step | str]:
    """The same steps, each with the values that no later one reads."""
    found: list[Step | str] = []
    for step in reversed(steps):
        if isinstance(step, str):
            found.append(step)
            continue
        over = {*step.inputs, *step.outputs} - kept
        kept = kept | over
        found.append(Step(step.call, step.inputs, step.outputs, tuple(over)))
    return found[::-1]


@dataclass
class Regional:
    """A function with the shapes of its first call, which records and compiles it; later ones run its program.

    It must be called with tensors of the same shapes, and captured tensors must keep their
    addresses. otherwise: the fallback if it cannot be cut; `on_failure` receives the reason.
    """

    function: Callable[..., Any]
    regions: Regions
    otherwise: Callable[[Callable[..., Any]], Callable[..., Any]]
    frozen: bool = True
    on_failure: Callable[[str], None] = field(default=lambda reason: None, repr=False)
    _call: Callable[..., Any] | None = field(default=None, init=False, repr=False)

    def __call__(self, *args: Tensor) -> Any:
        if self._call is not None:
            return self._call(*args)
        try:
            found = trace(self.function, *args)
            self._call = Program(cut(found, self.frozen), found.spec, self.regions)
        except (UncutError, RuntimeError) as error:  # the fallback reports its own errors again
            if out_of_memory(error):
                raise
            self.on_failure(first_line(error))
            self._call = self.otherwise(self.function)
            return self._call(*args)
        return found.result
