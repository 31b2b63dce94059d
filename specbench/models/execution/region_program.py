"""A function run region by region: its first call records and compiles it, all others have laps between regions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from weakref import WeakValueDictionary

from torch import Tensor
from torch.fx import Node
from torch.utils import _pytree as pytree

from specbench.decoding.timing import lap
from specbench.errors import out_of_memory
from specbench.models.execution.region_code import Call, Code, Layout
from specbench.models.execution.regions import Plan, Region, UncutError, cut, trace
from specbench.wording import first_line


class Codes(Protocol):
    """The source of a region's code."""

    def code(self, region: Region) -> Code: ...


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

    codes: Codes
    _constants: WeakValueDictionary[Any, Tensor] = field(default_factory=WeakValueDictionary, init=False, repr=False)

    def call(self, region: Region) -> Call:
        """A region with its weights. Raises UncutError."""
        return self.codes.code(region).load(lambda layout: self._constant(layout, region.weights))

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

        steps: list[Step | str] = [
            step if isinstance(step, str) else Step(regions.call(step), at(step.inputs), at(step.outputs), ())
            for step in plan.steps
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
    addresses. otherwise: the fallback if it cannot be cut; `told` receives the reason.
    """

    function: Callable[..., Any]
    regions: Regions
    otherwise: Callable[[Callable[..., Any]], Callable[..., Any]]
    frozen: bool = True
    told: Callable[[str], None] = field(default=lambda reason: None, repr=False)
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
            self.told(first_line(error))
            self._call = self.otherwise(self.function)
            return self._call(*args)
        return found.result
