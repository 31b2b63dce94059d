"""What a backend is: something that turns a spec into a function from prompts to traces."""

from collections.abc import Callable, Sequence
from typing import Protocol

from specbench.metrics import Trace
from specbench.spec import RunSpec

Decode = Callable[[Sequence[Sequence[int]], Sequence[int]], list[Trace]]  # prompts as token ids, one seed per prompt


class Backend(Protocol):
    """An engine that can decode; the runner times nothing itself, it reads the traces."""

    def prepare(self, spec: RunSpec, longest: int) -> Decode:
        """A function that decodes prompts of up to `longest` tokens as `spec` says; all that is slow is done here."""
        ...
