"""A recorded list of operators, cut into regions that are compiled separately: equal ones once. The tensors
that enter and leave a region share no memory with each other; views are recreated where they are used."""

import hashlib
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils import _pytree as pytree
from transformers.modeling_layers import GradientCheckpointingLayer

from specbench.decoding.timing import LAP, marking

# --- trace ------------------------------------------------------------------------------------------------------------
# The operators of a function of tensors, as a flat list: recorded once, while it runs.

READ = "_local_scalar_dense"  # the operator that reads the value of a tensor


@dataclass(frozen=True)
class Trace:
    """graph: operators in order; tensors that are not arguments are its attributes, each once.

    result: of this call; the graph returns its leaves in the order of `spec`.
    """

    graph: GraphModule
    result: Any
    spec: pytree.TreeSpec


def trace(function: Callable[..., Any], *args: Tensor) -> Trace:
    """Call a function and record its operators; its in-place changes take effect. UncutError if
    it reads the value of a tensor, which cannot be recorded."""
    found: list[Any] = []

    def call(*inputs: Tensor) -> list[Tensor]:
        found.append(function(*inputs))
        leaves: list[Tensor] = pytree.tree_leaves(found[0])
        return leaves

    # with its own context the tracer makes shapes in one mode; otherwise it makes a mode for each, which takes as long
    shapes = tracing(TracingContext(FakeTensorMode(allow_non_fake_inputs=True)))
    try:
        with torch.no_grad(), layers_marked(), marking(), shapes:
            graph = make_fx(call)(*args)
    except RuntimeError as error:
        if READ not in str(error):
            raise
        raise UncutError("it reads the value of a tensor") from error
    return Trace(graph, found[0], pytree.tree_structure(found[0]))


@contextmanager
def layers_marked() -> Iterator[None]:
    """Record a mark before and after every decoder layer: the code between is much the same for all of them."""

    def before(module: Any, inputs: Any) -> None:
        if isinstance(module, GradientCheckpointingLayer):
            mark(inputs)

    def after(module: Any, inputs: Any, output: Any) -> None:
        if isinstance(module, GradientCheckpointingLayer):
            mark(output)

    hooks = (register_module_forward_pre_hook(before), register_module_forward_hook(after))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def mark(near: Any) -> None:
    tensors = [one for one in pytree.tree_leaves(near) if isinstance(one, Tensor)]
    if tensors and get_proxy_mode() is not None:
        LAP(tensors[0], "")


class UncutError(Exception):
    """A function that cannot be run region by region, and the reason."""


def storage(tensor: Tensor) -> int:
    """A number that is equal for tensors that share memory."""
    return int(tensor.untyped_storage()._cdata)


def alive(nodes: Sequence[Node]) -> set[Node]:
    """The nodes that write, and those on which they or an output depend."""
    found: set[Node] = set()
    for node in reversed(nodes):
        if node.op == "output" or node in found or writes(node):
            found.update((node, *node.all_input_nodes))
    return found


def writes(node: Node) -> bool:
    """Whether an operator changes one of its arguments."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and node.target is not LAP and any(map(is_written, schema.arguments))


def is_written(one: Any) -> bool:
    """Whether an argument or a result of a schema is one that is written to."""
    return one.alias_info is not None and one.alias_info.is_write


def written(node: Node) -> Node | None:
    """The node that an operator writes to and returns; None for other operators."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not any(map(is_written, schema.returns)):
        return None
    places = [number for number, argument in enumerate(schema.arguments) if is_written(argument)]
    at = places[0]
    base = node.args[at] if at < len(node.args) else node.kwargs[schema.arguments[at].name]
    if len(places) > 1 or not isinstance(base, Node):
        raise UncutError(f"{node.target} writes to several tensors")
    return base


def is_view(node: Node) -> bool:
    """Whether an operator returns memory of one of its arguments."""
    if node.target is operator.getitem:
        return is_view(node.all_input_nodes[0])
    schema = getattr(node.target, "_schema", None)
    shared = [one.alias_info for one in schema.returns if one.alias_info is not None] if schema is not None else []
    return any(not one.is_write for one in shared)


def root(node: Node) -> Node:
    """The node that owns a node's memory."""
    while node.op == "call_function":
        base = written(node)
        if base is None and (writes(node) or is_view(node)):
            base = node.all_input_nodes[0]
        if base is None:
            return node
        node = base
    return node


# --- cut --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Region:
    """A part of a function. graph: the part as a separate graph, with placeholders for `inputs` and attributes w0,
    w1, … for `weights`. inputs, outputs: nodes of the whole function; like: for every input a tensor of its shape."""

    graph: Graph
    inputs: tuple[Node, ...]
    weights: tuple[Tensor, ...]
    outputs: tuple[Node, ...]
    like: tuple[Tensor, ...]

    @cached_property
    def key(self) -> str:
        """A key that is equal exactly for regions with the same operators and tensors of the same shapes."""
        numbers = {node: f"%{number}" for number, node in enumerate(self.graph.nodes)}

        def said(one: Any) -> str:
            if isinstance(one, Node):
                return numbers[one]
            if isinstance(one, (list, tuple)):
                return f"[{','.join(map(said, one))}]"
            if isinstance(one, Mapping):
                return f"{{{','.join(f'{key}:{said(value)}' for key, value in one.items())}}}"
            return repr(one)

        lines = [f"{node.op} {node.target} {said(node.args)} {said(node.kwargs)}" for node in self.graph.nodes]
        lines += [f"{x.dtype} {tuple(x.shape)} {x.stride()} {x.device}" for x in (*self.like, *self.weights)]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@dataclass(frozen=True)
class Plan:
    """The parts of a function. steps: regions, and the names of the laps between them. captured: the tensors
    that it found and that keep their addresses. last: computes its outputs from the values `ends`."""

    steps: tuple[Region | str, ...]
    arguments: tuple[Node, ...]
    captured: Mapping[Node, Tensor]
    last: GraphModule
    ends: tuple[Node, ...]


@dataclass(eq=False)
class Part:
    """A region under construction: its operators, those repeated before them, and its input and output nodes."""

    nodes: list[Node] = field(default_factory=list)
    again: dict[Node, None] = field(default_factory=dict)
    inputs: dict[Node, None] = field(default_factory=dict)
    weights: dict[Node, None] = field(default_factory=dict)
    outputs: dict[Node, None] = field(default_factory=dict)


def cut(found: Trace, frozen: bool = True) -> Plan:
    """Cut at the beginning and end of laps and layers. frozen: matrices among parameters never change.

    Raises UncutError if two names of one tensor would be taken for two tensors.
    """
    return Cutter(found.graph, frozen).plan()


class Cutter:
    def __init__(self, graph: GraphModule, frozen: bool) -> None:
        self.graph, self.frozen = graph, frozen
        self.nodes = list(graph.graph.nodes)
        self.steps: list[Part | str] = []
        self.where: dict[Node, Part] = {}
        self.named: dict[Tensor, Node] = {}  # the first node of every captured tensor

    def plan(self) -> Plan:
        self.divide()
        output, ends = self.nodes[-1], Part()
        for part in self.parts:
            for node in part.nodes:
                for one in node.all_input_nodes:
                    self.reach(part, one)
        for one in output.all_input_nodes:
            self.reach(ends, one)
        self.check(ends)
        captured = {node: tensor for tensor, node in self.named.items()}
        arguments = tuple(node for node in self.nodes if node.op == "placeholder")
        useful = [step for step in self.steps if isinstance(step, str) or step.outputs or any(map(writes, step.nodes))]
        steps = tuple(step if isinstance(step, str) else self.region(step) for step in useful)
        return Plan(steps, arguments, captured, self.last(ends, output), tuple(ends.inputs))

    @property
    def parts(self) -> list[Part]:
        return [step for step in self.steps if isinstance(step, Part)]

    def divide(self) -> None:
        """Assign every operator that has an effect to its part."""
        live, part = alive(self.nodes), Part()
        for node in self.nodes:
            if node.target is LAP:
                name = str(node.args[1])
                self.steps += [*([part] if part.nodes else []), *([name] if name else [])]
                part = Part()
            elif node.op == "call_function" and node in live:
                part.nodes.append(node)
                self.where[node] = part
        self.steps += [part] if part.nodes else []

    def reach(self, part: Part, node: Node) -> None:
        """Make a node that a part uses available in it."""
        if self.where.get(node) is part:
            return
        base = written(node)
        if node.op == "get_attr":
            (part.weights if self.is_weight(node) else part.inputs).setdefault(self.first(node))
        elif node.op == "placeholder":
            part.inputs.setdefault(node)
        elif base is not None:
            self.reach(part, base)
        elif is_view(node):
            for one in node.all_input_nodes:
                self.reach(part, one)
            part.again.setdefault(node)
        else:
            part.inputs.setdefault(node)
            self.where[node].outputs.setdefault(node)

    def region(self, part: Part) -> Region:
        graph, known = Graph(), dict[Node, Node]()
        known |= {node: graph.placeholder(f"x{number}") for number, node in enumerate(part.inputs)}
        known |= {node: graph.get_attr(f"w{number}") for number, node in enumerate(part.weights)}
        self.copy(graph, known, part, [*part.again, *part.nodes])
        outputs = tuple(node for node in part.nodes if node in part.outputs)
        graph.output(tuple(known[node] for node in outputs))
        like = tuple(self.tensor(node) if node.op == "get_attr" else node.meta["val"] for node in part.inputs)
        return Region(graph, tuple(part.inputs), tuple(map(self.tensor, part.weights)), outputs, like)

    def last(self, ends: Part, output: Node) -> GraphModule:
        """The remaining views of the outputs."""
        graph, known = Graph(), dict[Node, Node]()
        known |= {node: graph.placeholder(f"x{number}") for number, node in enumerate(ends.inputs)}
        self.copy(graph, known, ends, list(ends.again))
        (outputs,) = output.args
        assert isinstance(outputs, (list, tuple))
        graph.output(tuple(self.known(known, ends, node) for node in outputs if isinstance(node, Node)))
        return GraphModule({}, graph)

    def copy(self, graph: Graph, known: dict[Node, Node], part: Part, nodes: Sequence[Node]) -> None:
        for node in nodes:
            known[node] = graph.node_copy(node, lambda one: self.known(known, part, one))
            known[node].meta = {}

    def known(self, known: Mapping[Node, Node], part: Part, node: Node) -> Node:
        """The node in a part for a node of the function: the first node of its tensor, which may have been written."""
        if node in known:
            return known[node]
        base = written(node)
        if base is not None and self.where.get(node) is not part:
            return self.known(known, part, base)
        return known[self.first(node)]

    def tensor(self, node: Node) -> Tensor:
        found: Tensor = getattr(self.graph, str(node.target))
        return found

    def first(self, node: Node) -> Node:
        """The first node of a node's tensor."""
        return self.named.setdefault(self.tensor(node), node)

    def is_weight(self, node: Node) -> bool:
        """Whether it is a constant of the code. Only matrices are: their layouts are known, and
        other weights are small."""
        tensor = self.tensor(node)
        return self.frozen and isinstance(tensor, torch.nn.Parameter) and tensor.dim() == 2

    def check(self, ends: Part) -> None:
        """Check that no written tensor has two names or is a constant."""
        names: dict[int, int] = {}
        for tensor in self.named:
            names[storage(tensor)] = names.get(storage(tensor), 0) + 1
        for node in filter(writes, self.where):
            base = root(node)
            if base.op == "get_attr" and (names[storage(self.tensor(base))] > 1 or self.is_weight(base)):
                raise UncutError("it writes to a tensor that has two names")
        if ends.weights:
            raise UncutError("it gives a weight")
