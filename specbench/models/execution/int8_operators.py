"""The products of products.cpp as operators of torch, compiled at first use for this processor
by the compiler that compiled rounds need, and cached with their code. And products of one tensor as one."""

import ctypes
import hashlib
import operator
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from itertools import accumulate, count, pairwise
from pathlib import Path

import torch
from torch import Tensor
from torch.fx import Graph, Node

from specbench.files import replacing
from specbench.models.execution.compile_cache import ALONE, open_ours, own_place, tidy
from specbench.models.execution.compiled import COMPILERS, capabilities, missing_compiler
from specbench.models.execution.regions import root, writes
from specbench.wording import first_line

SOURCE = Path(__file__).with_name("products.cpp")
# no flag that changes rounding: rows of numbers become the same codes here and in torch
FLAGS = ("-O3", "-march=native", "-std=c++20", "-shared", "-fPIC", "-fopenmp", "-fwrapv", "-w")
EXACT = ("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off")

_loaded = count(1)
_library = torch.library.Library("specbench", "FRAGMENT")  # type: ignore[no-untyped-call]
for _schema in (
    "linear(Tensor x, Tensor codes, Tensor? groups, Tensor scale, Tensor? bias) -> Tensor",
    "linears(Tensor x, Tensor[] codes, Tensor?[] groups, Tensor[] scales, Tensor?[] biases) -> Tensor[]",
):
    _library.define(_schema)  # type: ignore[no-untyped-call]


@torch.library.register_fake("specbench::linear", lib=_library)  # type: ignore[untyped-decorator]
def shaped(x: Tensor, codes: Tensor, groups: Tensor | None, scale: Tensor, bias: Tensor | None) -> Tensor:
    """x [..., columns] → [..., rows] in the dtype of x; scale has one number per row of weights."""
    return x.new_empty((*x.shape[:-1], scale.shape[0]))


@torch.library.register_fake("specbench::linears", lib=_library)  # type: ignore[untyped-decorator]
def shapes(
    x: Tensor, codes: list[Tensor], groups: list[Tensor | None], scales: list[Tensor], biases: list[Tensor | None]
) -> list[Tensor]:
    """The same for several layers that read the same x."""
    return [x.new_empty((*x.shape[:-1], scale.shape[0])) for scale in scales]


@cache
def missing() -> str:
    """Why the operators are unavailable; empty if they are available, in which case they are loaded."""
    reason = missing_compiler()
    if reason:
        return reason
    try:
        load(built())
    except subprocess.CalledProcessError:
        return "products of codes were not compiled: the C++ compiler ended with an error"
    except OSError as error:
        return f"products of codes were not compiled: {first_line(error)}"
    return ""


def load(file: Path) -> None:
    """Load machine code, from the open file if possible: its name may point to another file by now."""
    with open_ours(file) as code, torch._ops.dl_open_guard():
        opened = f"/proc/self/fd{'/' * next(_loaded)}{code.fileno()}"  # what has the name of a loaded one is not loaded
        ctypes.CDLL(opened if os.path.exists(opened) else str(file))


def built(*more: str) -> Path:
    """The machine code of the products. more: further options of the compiler."""
    return machine_code(SOURCE, [*EXACT, *more])


def machine_code(source: Path, options: Sequence[str]) -> Path:
    """The cached machine code of a C++ file with operators of torch, compiled if missing."""
    from torch.utils.cpp_extension import include_paths, library_paths

    compiler = os.environ.get("CXX") or next(filter(None, map(shutil.which, COMPILERS)))
    command = [compiler, *FLAGS, *options, *(f"-I{path}" for path in include_paths()), str(source)]
    libraries = [*(f"-L{path}" for path in library_paths()), "-lc10", "-ltorch_cpu"]  # torch's own, already loaded
    about = [source.read_text(encoding="utf-8"), command, torch.__version__, platform.machine(), capabilities()]
    folder = own_place()
    file = folder / "products" / f"{hashlib.sha256(repr(about).encode()).hexdigest()}.so"
    with suppress(OSError), open_ours(file):
        return file
    with replacing(file) as made:  # several processes may compile it at once
        subprocess.run([*command, "-o", str(made), *libraries], check=True, capture_output=True, text=True)
        made.chmod(ALONE)  # the linker creates a new file
    tidy(folder)
    return file


# --- joining ----------------------------------------------------------------------------------------------------------
# Layers that read the same tensor (query, key and value; gate and up) are one call: the threads start once. Quantised
# ones quantise it once. The weights of others are stacked when the code is made.

ONE, MANY = torch.ops.specbench.linear.default, torch.ops.specbench.linears.default
PRODUCT, TRANSPOSED, VIEW = torch.ops.aten.mm.default, torch.ops.aten.t.default, torch.ops.aten.view.default


def joined(recorded: Graph, rows: Sequence[int]) -> Graph:
    """The graph with such calls joined. rows: of the constant matrices w0, w1, … [rows, columns]."""
    graph = Graph()
    graph.output(graph.graph_copy(recorded, {}))
    found: dict[tuple[Node, str], list[Node]] = {}
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if (read := what_is_read(node)) is not None:
            calls = found.setdefault(read, [])
            # a layout stacks weights that follow each other: not gate and up with query, key and value
            if calls and node.target is PRODUCT and number_of(node) != number_of(calls[-1]) + 1:
                replace(graph, calls, rows)
                calls.clear()
            calls.append(node)
        elif writes(node):  # later reads see another tensor
            given = node.all_input_nodes
            for read in [read for read in found if read[0] in given or root(read[0]) in map(root, given)]:
                replace(graph, found.pop(read), rows)
    for calls in found.values():
        replace(graph, calls, rows)
    return graph


def number_of(call: Node) -> int:
    """The number of the constant matrix of a product."""
    return int(str(call.all_input_nodes[1].all_input_nodes[0].target)[1:])


def what_is_read(node: Node) -> tuple[Node, str] | None:
    """The tensor that a layer multiplies by constants, and in which form; None for other operators."""
    if node.target not in (ONE, PRODUCT):
        return None
    x, *weights = node.all_input_nodes
    if node.target is ONE:  # weights exist before any computation
        return (x, "codes") if all(one.op in ("get_attr", "placeholder") for one in weights) else None
    if [one.target for one in weights] != [TRANSPOSED] or weights[0].all_input_nodes[0].op != "get_attr":
        return None
    return (x.all_input_nodes[0], str(x.args[1])) if x.target is VIEW else (x, "")


def replace(graph: Graph, calls: Sequence[Node], rows: Sequence[int]) -> None:
    if len(calls) < 2:
        return
    with graph.inserting_before(calls[0]):
        parts = products(graph, calls, rows) if calls[0].target is PRODUCT else quantised(graph, calls)
    for call, part in zip(calls, parts, strict=True):
        call.replace_all_uses_with(part)
        graph.erase_node(call)


def quantised(graph: Graph, calls: Sequence[Node]) -> list[Node]:
    _, *rest = zip(*(call.args for call in calls), strict=True)
    whole = graph.call_function(MANY, (calls[0].args[0], *map(list, rest)))
    return [graph.call_function(operator.getitem, (whole, number)) for number in range(len(calls))]


def products(graph: Graph, calls: Sequence[Node], rows: Sequence[int]) -> list[Node]:
    weights = [call.all_input_nodes[1].all_input_nodes[0] for call in calls]
    stacked = graph.call_function(torch.ops.aten.cat.default, (weights,))
    whole = graph.call_function(PRODUCT, (calls[0].args[0], graph.call_function(TRANSPOSED, (stacked,))))
    ends = [0, *accumulate(rows[number_of(call)] for call in calls)]
    return [graph.call_function(torch.ops.aten.slice.Tensor, (whole, 1, *some)) for some in pairwise(ends)]
