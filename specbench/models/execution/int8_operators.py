"""The products of products.cpp as operators of torch, compiled at first use for this processor
by the compiler that compiled rounds need, and cached with their code."""

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
from itertools import count
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
# Quantised layers that read the same tensor (query, key and value; gate and up) are one call:
# one quantisation and one start of the threads.

ONE, MANY = torch.ops.specbench.linear.default, torch.ops.specbench.linears.default


def joined(recorded: Graph) -> Graph:
    """The graph with such calls joined."""
    graph = Graph()
    graph.output(graph.graph_copy(recorded, {}))
    found: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        # weights exist before any computation
        if node.target is ONE and all(one.op in ("get_attr", "placeholder") for one in node.all_input_nodes[1:]):
            found.setdefault(node.args[0], []).append(node)
        elif writes(node):  # later reads see another tensor
            for x in [x for x in found if x in node.all_input_nodes or root(x) in map(root, node.all_input_nodes)]:
                replace(graph, found.pop(x))
    for calls in found.values():
        replace(graph, calls)
    return graph


def replace(graph: Graph, calls: Sequence[Node]) -> None:
    if len(calls) < 2:
        return
    _, *rest = zip(*(call.args for call in calls), strict=True)
    with graph.inserting_before(calls[0]):
        whole = graph.call_function(MANY, (calls[0].args[0], *map(list, rest)))
    for number, call in enumerate(calls):
        with graph.inserting_before(call):
            call.replace_all_uses_with(graph.call_function(operator.getitem, (whole, number)))
        graph.erase_node(call)
