"""Products of many rows by oneDNN: inductor's own kernels for a CPU are as good for few rows, and slow for more.

On two cores of an AMD EPYC a round of nine rows of SmolLM2 takes 44 ms with the one and 23 with the other in bfloat16,
as long in float32, and five rows through its head 4.5 and 3.6 ms. Knows recorded operators; must not know networks.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from specbench.models.execution import onednn

WIDE = {torch.bfloat16: 7, torch.float32: 12}  # rows from which it is faster
LARGE, WIDE_LARGE = 2**23, 5  # elements of a matrix that outgrows caches, as those of heads do, and rows there

MM, ADDMM, TURNED = torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.t.default
PRODUCT = torch.ops.specbench.product.default


def by_library(graph: Graph, weights: Sequence[Tensor], inputs: Sequence[Tensor]) -> frozenset[int]:
    """Let oneDNN do the products of many rows by a weight that nothing else reads, in place: the numbers of these
    weights, which it wants packed. inputs: tensors in the shapes of what comes in."""
    fitting = [node for node in graph.nodes if node.target in (MM, ADDMM) and number_of(node, weights) is not None]
    if not fitting:
        return frozenset()
    measure(graph, weights, inputs)
    found = set()
    for node in fitting:
        *bias, x, turned = node.args
        number = number_of(node, weights)
        if number is None or x.meta["val"].shape[0] < rows_for(weights[number]):
            continue
        with graph.inserting_before(node):
            instead = graph.call_function(PRODUCT, (x, turned.args[0], bias[0] if bias else None))
        node.replace_all_uses_with(instead)
        graph.erase_node(node)
        graph.erase_node(turned)
        found.add(number)
    return frozenset(found)


def rows_for(weight: Tensor) -> int:
    """From how many rows on oneDNN is the faster one."""
    return WIDE_LARGE if weight.numel() >= LARGE else WIDE[weight.dtype]


def number_of(node: Node, weights: Sequence[Tensor]) -> int | None:
    """The number of the weight of a plain product that oneDNN can do; None where there is none."""
    turned = node.args[-1]
    if node.kwargs or not isinstance(turned, Node) or turned.target is not TURNED or len(turned.users) > 1:
        return None
    weight = turned.all_input_nodes[0]
    if weight.op != "get_attr" or len(weight.users) > 1:
        return None
    number = int(str(weight.target)[1:])
    return number if weights[number].dtype in onednn.dtypes() else None


def measure(graph: Graph, weights: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
    """Note the shape of every node at it."""
    module = GraphModule({f"w{number}": torch.nn.Parameter(one, False) for number, one in enumerate(weights)}, graph)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        given = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device) for x in inputs]
    nodes = dict(zip(module.graph.nodes, graph.nodes, strict=True))
    FakeTensorProp(module, mode=mode).propagate_dont_convert_inputs(*given)
    for node, own in nodes.items():
        own.meta = {"val": node.meta.get("val")}
