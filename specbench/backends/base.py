"""What a backend is: an engine that decodes the prompts of a pair, and what jobs need to know of it. Nothing else."""

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from specbench.metrics import Trace
from specbench.spec import RunSpec

Decode = Callable[[Sequence[Sequence[int]], Sequence[int]], list[Trace]]  # prompts as token ids, one seed per prompt
Scores = Callable[[Sequence[int], int, int], Tensor]  # (ids, start, block) → logits of the tokens from start on


class Backend(Protocol):
    """An engine that can decode; the runner times nothing itself, it reads the traces."""

    @property
    def scores(self) -> Scores | None:
        """What the losslessness of greedy output is judged with; None where the engine gives no logits."""
        ...

    def prepare(self, spec: RunSpec, longest: int) -> Decode:
        """A function that decodes prompts of up to `longest` tokens as `spec` says; all that is slow is done here."""
        ...
