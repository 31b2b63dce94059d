"""Sources for tests: one that plays back a tape, one that audits reuse; the one that enumerates ships."""

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from specbench.decoding.proofs.exact import Branch, OutcomeSource, Scripted, enumerate_outcomes, replay_outcomes, spread
from specbench.decoding.randomness import FromUniforms, Source, Stream

__all__ = ["Audit", "Branch", "OutcomeSource", "Scripted", "Tape", "enumerate_outcomes", "replay_outcomes", "spread"]


@dataclass
class Tape:
    """Uniforms that play back what was recorded; fails when more is asked than the tape holds."""

    values: list[Tensor]

    def __call__(self, shape: tuple[int, ...], stream: Stream) -> Tensor:
        value = self.values.pop(0)
        assert tuple(value.shape) == shape, f"the tape holds {tuple(value.shape)}, asked was {shape}"
        return value


@dataclass
class Audit:
    """Passes uniforms on and remembers every value with its stream: float64 draws repeat only if they are reused."""

    inner: Callable[[tuple[int, ...], Stream], Tensor]
    drawn: list[tuple[Stream, Tensor]] = field(default_factory=list)

    def __call__(self, shape: tuple[int, ...], stream: Stream) -> Tensor:
        value = self.inner(shape, stream)
        self.drawn.append((stream, value.clone()))
        return value

    def source(self) -> Source:
        return FromUniforms(self)
