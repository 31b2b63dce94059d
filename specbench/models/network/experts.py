"""Which experts the passes of a network touch: counted by hooks, in a decode that nobody times.

Knows modules that are given the experts chosen for every token; must not know methods.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from specbench.decoding.timing import NullClock
from specbench.metrics import ratio
from specbench.theory.experts import Experts, touched

ENOUGH = 32  # tokens after which passes are known well enough: each has many layers
CHOSEN = "top_k_index"  # what transformers calls the experts [tokens, k] of a layer's tokens


def layers_with_experts(network: nn.Module) -> list[Any]:
    """The modules that hold the experts of a layer, and are told which of them every token chose."""
    return [m for m in network.modules() if CHOSEN in inspect.signature(type(m).forward).parameters]


@dataclass
class Count(NullClock):
    """A clock for which a lap ends a phase: of the verify phases it counts what the passes of their layers touched."""

    network: Any
    layers: list[Any]
    rows: int
    _noted: list[Tensor] = field(default_factory=list, init=False)
    _once: list[int] = field(default_factory=list, init=False)
    _many: list[int] = field(default_factory=list, init=False)
    _independent: list[float] = field(default_factory=list, init=False)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Hooks on the layers, as long as this lasts; the clock must be that of what is decoded."""
        hooks = [layer.register_forward_pre_hook(self._note, with_kwargs=True) for layer in self.layers]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _note(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._noted.append(kwargs[CHOSEN] if CHOSEN in kwargs else args[1])

    def lap(self, phase: str, after: Tensor | None = None) -> None:
        for chosen in self._noted if phase == "verify" else ():
            by_row = chosen.reshape(self.rows, -1, chosen.shape[-1])
            self._once.append(distinct(by_row[:, :1]))
            self._many.append(distinct(by_row))
            self._independent.append(touched(self.layers[0].num_experts, chosen.shape[-1], chosen.shape[0]))
        self._noted.clear()

    def found(self) -> Experts:
        """What was counted; NaN where there was no pass."""
        once, many, independent = (ratio(sum(p), len(p)) for p in (self._once, self._many, self._independent))
        experts, held = self.layers[0].num_experts, sum(map(weights, self.layers))
        dense = weights(self.network) - held - looked_up(self.network)
        return Experts(experts, once, many, independent, dense, held / experts)


def distinct(experts: Tensor) -> int:
    return len(torch.unique(experts))


def weights(module: nn.Module) -> int:
    """Bytes of the parameters of a module."""
    return sum(p.numel() * p.element_size() for p in module.parameters())


def looked_up(network: Any) -> int:
    """Bytes of an embedding of which a pass reads a few rows: one that is not the head as well."""
    embedding, head = network.get_input_embeddings(), network.get_output_embeddings()
    return 0 if head is None or head.weight is embedding.weight else weights(embedding)
