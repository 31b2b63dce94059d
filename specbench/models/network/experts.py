"""The expert reads of a mixture's passes: the distinct experts that their tokens chose, counted by
hooks in an untimed decode. If memory decides the cost of a pass, this is v(K) before any kernel."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from specbench.decoding.timing import NullClock
from specbench.metrics import ratio
from specbench.models.network.skipping import hooked

COLUMNS = ("experts", "experts_per_step", "experts_per_verify", "v_by_experts", "v_by_independence")
ENOUGH = 32  # tokens after which passes are known well enough: each has many layers
CHOSEN = "top_k_index"  # transformers' name for the experts [tokens, k] of a layer's tokens


def touched(experts: int, chosen: int, tokens: float) -> float:
    """Expected distinct experts of a layer, E(1 − (1 − k/E)^w), if each of w tokens chose k of E
    uniformly and independently: neighbouring tokens of real texts choose alike, and use fewer."""
    return float(experts * (1 - (1 - chosen / experts) ** tokens))


def layers_with_experts(network: nn.Module) -> list[Any]:
    """The modules with a layer's experts, which receive the choice of every token."""
    return [m for m in network.modules() if CHOSEN in inspect.signature(type(m).forward).parameters]


@dataclass
class Count(NullClock):
    """A clock that counts the experts used by the passes at every verify lap.

    once: distinct experts of a step, of one token in each row; many: of a verify pass; independent: by `touched`.
    """

    network: Any
    layers: list[Any]
    rows: int
    _noted: list[Tensor] = field(default_factory=list, init=False)
    once: list[int] = field(default_factory=list, init=False)
    many: list[int] = field(default_factory=list, init=False)
    independent: list[float] = field(default_factory=list, init=False)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Hook the layers during the enclosed code; the clock must be that of the decode."""
        with hooked(layer.register_forward_pre_hook(self._note, with_kwargs=True) for layer in self.layers):
            yield

    def _note(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._noted.append(kwargs[CHOSEN] if CHOSEN in kwargs else args[1])

    def lap(self, phase: str, after: Tensor | None = None) -> None:
        for chosen in self._noted if phase == "verify" else ():
            by_row = chosen.reshape(self.rows, -1, chosen.shape[-1])
            self.once.append(len(torch.unique(by_row[:, :1])))
            self.many.append(len(torch.unique(by_row)))
            self.independent.append(touched(self.layers[0].num_experts, chosen.shape[-1], chosen.shape[0]))
        self._noted.clear()

    def row(self) -> dict[str, float]:
        """The means over all passes and layers as columns of results.csv; NaN without a pass."""
        once, many, independent = (ratio(sum(p), len(p)) for p in (self.once, self.many, self.independent))
        v, by_independence = (v_of(*self.bytes(), once, some) for some in (many, independent))
        return dict(zip(COLUMNS, (self.layers[0].num_experts, once, many, v, by_independence), strict=True))

    def bytes(self) -> tuple[float, float]:
        """The bytes of all weights that every pass reads, and of one expert in each of the layers
        with experts. Of an embedding that is not the head as well, a pass reads a few rows."""
        held = sum(map(weights, self.layers))
        embedding, head = self.network.get_input_embeddings(), self.network.get_output_embeddings()
        looked_up = 0 if head is None or head.weight is embedding.weight else weights(embedding)
        return weights(self.network) - held - looked_up, held / self.layers[0].num_experts


def v_of(dense: float, expert: float, once: float, many: float) -> float:
    """Bytes of a pass that uses `many` experts in every layer ÷ those of a step, which uses `once`."""
    return ratio(dense + many * expert, dense + once * expert)


def weights(module: nn.Module) -> int:
    """Bytes of the parameters of a module."""
    return sum(p.numel() * p.element_size() for p in module.parameters())
