"""The shapes that a design compares: for every budget and depth the widest within it, and why there may be none.

Knows budgets and configurations; must not know weights, clocks or folders.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from specbench.errors import UsageError
from specbench.models.scale import shapes
from specbench.training.start.starting import Shape, sized
from specbench.wording import counted

Count = Literal["all", "layers"]


@dataclass(frozen=True)
class Candidate:
    """One shape, and what it is for: so many parameters at most, for a target with so many tokens; counted: which."""

    budget: int
    shape: Shape
    vocabulary: int
    counted: Count

    @property
    def name(self) -> str:
        """Budget, layers and width, as in 1M-4x128."""
        return f"{short(self.budget)}-{self.shape.layers}x{self.shape.hidden}"

    @property
    def model(self) -> str:
        """What method files call its network."""
        return f"draft-{self.name.replace('.', '-')}"

    @property
    def parameters(self) -> int:
        return self.shape.parameters(self.vocabulary)

    def row(self) -> dict[str, Any]:
        """As columns."""
        return {
            "name": self.name,
            "budget": self.budget,
            "budget_counts": self.counted,
            "layers": self.shape.layers,
            "hidden": self.shape.hidden,
            "intermediate": self.shape.intermediate,
            "heads": self.shape.heads,
            "kv_heads": self.shape.kv_heads,
            "parameters": self.parameters,
            "parameters_in_layers": in_layers(self.shape),
        }


def in_layers(shape: Shape) -> int:
    """The parameters of a shape without embedding and head."""
    return shape.parameters(0)


def short(number: int) -> str:
    """A number of parameters as people write it: 1M, 1.5M, 500k."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.4g}{unit}"
    return str(number)


def candidates(
    budgets: Sequence[int], depths: Sequence[int], target: Any, count: Count
) -> tuple[list[Candidate], list[str]]:
    """The shapes for a target's configuration, by budget and depth, and a line for each that there is none of.

    UsageError where there is none at all.
    """
    vocabulary = int(target.get_text_config(decoder=True).vocab_size)
    within = widest_in_layers if count == "layers" else sized
    found: list[Candidate] = []
    impossible: list[str] = []
    for budget in budgets:
        for layers in depths:
            try:
                found.append(Candidate(budget, within(budget, layers, target), vocabulary, count))
            except UsageError as error:
                impossible.append(f"--budget {short(budget)}: {error}")
    if not found:
        raise UsageError(impossible[0])
    return found, impossible


def widest_in_layers(budget: int, layers: int, target: Any) -> Shape:
    """The widest shape whose layers alone have at most so many parameters."""
    vocabulary = int(target.get_text_config(decoder=True).vocab_size)
    narrowest = Shape.of(layers, 32)
    if (least := in_layers(narrowest)) > budget:
        raise UsageError(f"{counted(layers, 'layer')} of the least width: at least {least:,} parameters; allow more")
    low = narrowest.parameters(vocabulary)

    def fits(parameters: int) -> bool:
        return in_layers(sized(parameters, layers, target)) <= budget

    return sized(last(fits, low, low + 2), layers, target)


def last(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The largest number for which something holds that holds at `low` and at nothing after the first that it fails."""
    while holds(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def scaled(shape: Shape, target: Any, like: str) -> shapes.Shape:
    """The shape of a draft's scale model beside a target that is grown to the shape `like`.

    As much wider as the target becomes; as many layers; vocabulary, rope and norms of `like`. See `models.scale`.
    """
    large = shapes.find(like)
    times = large.hidden_size / target.get_text_config(decoder=True).hidden_size
    per_head = max(large.head_dim, shape.head_dim)
    hidden, intermediate = (max(32, round(n * times / 32) * 32) for n in (shape.hidden, shape.intermediate))
    wide = Shape.of(shape.layers, hidden, intermediate, head_dim=per_head)
    return large.model_copy(
        update={
            "name": f"{like}, {shape.layers} layers of width {wide.hidden}",
            "hidden_size": wide.hidden,
            "intermediate_size": wide.intermediate,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": wide.heads,
            "num_key_value_heads": wide.heads,
            "head_dim": per_head,
            "draft": None,
            "note": "",
        }
    )
