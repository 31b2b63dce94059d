"""What operators do to memory, by their schemas: which write, which give views, and what a recorded one is of.

Knows single operators; must not know what is made of them.
"""

import operator
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.fx import Node

from specbench.decoding.timing import LAP


class UncutError(Exception):
    """A function that is not run region by region, and why."""


def storage(tensor: Tensor) -> int:
    """What tensors have in common that share memory."""
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
    """The node that an operator writes to and gives back; None of one that does not."""
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
    """Whether an operator gives memory of one of its arguments."""
    if node.target is operator.getitem:
        return is_view(node.all_input_nodes[0])
    schema = getattr(node.target, "_schema", None)
    shared = [one.alias_info for one in schema.returns if one.alias_info is not None] if schema is not None else []
    return any(not one.is_write for one in shared)


def root(node: Node) -> Node:
    """Whose memory a node has."""
    while node.op == "call_function":
        base = written(node)
        if base is None and (writes(node) or is_view(node)):
            base = node.all_input_nodes[0]
        if base is None:
            return node
        node = base
    return node
