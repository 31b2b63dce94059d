"""What a function of tensors does, as a flat list of operators: recorded once, while it runs.

Knows torch's tracer and where decoder layers begin and end; must not know what is made of the list.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils import _pytree as pytree
from transformers.modeling_layers import GradientCheckpointingLayer

from specbench.decoding.timing import LAP, marking
from specbench.models.execution.regions.operators import UncutError

READ = "_local_scalar_dense"  # what reads the one value of a tensor


@dataclass(frozen=True)
class Trace:
    """graph: operators in order; tensors that are no arguments are its attributes, each once.

    result: of this call; the graph gives its leaves in the order of `spec`.
    """

    graph: GraphModule
    result: Any
    spec: pytree.TreeSpec


def trace(function: Callable[..., Any], *args: Tensor) -> Trace:
    """Call a function and record what it does. What it changes in place, it has changed.

    UncutError where it reads the value of a tensor, which a record cannot hold.
    """
    found: list[Any] = []

    def call(*inputs: Tensor) -> list[Tensor]:
        found.append(function(*inputs))
        leaves: list[Tensor] = pytree.tree_leaves(found[0])
        return leaves

    # with a context of its own the tracer makes shapes of one mode; else it makes a mode for each, which takes as long
    shapes = tracing(TracingContext(FakeTensorMode(allow_non_fake_inputs=True)))
    with torch.no_grad(), layers_marked(), marking(), shapes:
        graph = recorded(call, args)
    return Trace(graph, found[0], pytree.tree_structure(found[0]))


def recorded(call: Callable[..., list[Tensor]], args: Sequence[Tensor]) -> GraphModule:
    """torch's record, or its long words for a value that is read in short ones."""
    try:
        return make_fx(call)(*args)
    except RuntimeError as error:
        if READ not in str(error):
            raise
        raise UncutError("it reads the value of a tensor") from error


@contextmanager
def layers_marked() -> Iterator[None]:
    """Before and after every decoder layer a mark is recorded: what lies between is much the same for all of them."""

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
    """Record a lap without a name."""
    tensors = [one for one in pytree.tree_leaves(near) if isinstance(one, Tensor)]
    if tensors and get_proxy_mode() is not None:
        LAP(tensors[0], "")
