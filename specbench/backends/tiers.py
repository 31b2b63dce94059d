"""What a tier makes of a method: its rounds as whole calls where they are static, its passes one by one where not.

Knows rounds, and how functions are compiled or captured; must not know specs, pairs or prompts.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch

from specbench.decoding.decode import begin
from specbench.decoding.draft import ModelDrafter
from specbench.decoding.loop import Speculate
from specbench.decoding.randomness import FromUniforms
from specbench.decoding.replay import Replayed
from specbench.decoding.rounds import Play, Rounds, Stepwise, Whole
from specbench.decoding.types import Context, Drafter
from specbench.models.causal import Causal
from specbench.models.forward import Compiled, Name, Passes, reaches
from specbench.models.graphs import Captured, Repeated
from specbench.timing import CudaClock
from specbench.tokens import TokenTree


@dataclass
class Tier:
    """One way of execution on one device. Its graphs share one pool of memory."""

    name: Name
    device: torch.device
    _pool: Any = field(default=None, init=False, repr=False)

    def gradless(self) -> AbstractContextManager[None]:
        """Without gradients; in eager calls also without the versions of tensors, which only a compiler asks for, and
        which cost a small model a tenth of its time."""
        return torch.inference_mode() if self.name == "eager" else torch.no_grad()

    def passes(self, static: bool) -> Passes | None:
        """How the passes of a network are run by a method that is static or is not; None: as they are."""
        return None if static or self.name == "eager" else Passes(self._repeated)

    def rounds(self, method: Speculate, length: int, rows: int, eos: list[int], source: FromUniforms) -> Rounds:
        """The rounds of a method on contexts of up to `length` places and exactly `rows` rows, ready to run.

        `source`: how draws become decisions; what is drawn from it while things are made ready is forgotten.
        """
        if self.name == "eager":
            return Stepwise(method)
        # a text of two tokens and one to come: it is decoded, and forgotten, while things are made ready
        context = begin([[0, 0]] * rows, 1, method.drafter.room, eos, self.device, length)
        if not method.drafter.static:
            return self._stepwise(method, context, source)
        steps = reaches(length, self.device)
        whole = Whole(method, length, steps, self._called)
        rounds = Replayed(method, length, steps, self._captured(method)) if self._graphs else whole
        rounds.prime(context, source)
        return rounds

    @property
    def _graphs(self) -> bool:
        return self.device.type == "cuda"  # compiled functions are captured as well: their launches cost as much

    def _called(self, play: Play) -> Play:
        return Compiled(play, self.device) if self.name == "compile" else play

    def _captured(self, method: Speculate) -> Any:
        clock = method.clock
        assert isinstance(clock, CudaClock), "a device with graphs is timed by its own events"
        return lambda play: Captured(self._called(play), self.device, self._shared(), clock)

    def _repeated(self, run: Any) -> Any:
        function = Compiled(run, self.device) if self.name == "compile" else run
        return Repeated(function, self.device, self._shared()) if self._graphs else function

    def _shared(self) -> Any:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        return self._pool

    def _stepwise(self, method: Speculate, context: Context, source: FromUniforms) -> Stepwise:
        """Rounds step by step whose passes are ready: verification of every width, and the two widths of a draft."""
        method.start(context)
        for width in range(method.drafter.room + 1):
            ids = context.seq.new_zeros((context.rows, width))
            method.model.probs(context, TokenTree.chain(ids))
        for model in drafts_of(method.drafter):
            model.sample(context, 2, source)
        return Stepwise(method, context.seq.shape[1])


def drafts_of(drafter: Drafter) -> list[Causal]:
    """The networks that draft chains, at every level."""
    if isinstance(drafter, Speculate):
        return drafts_of(drafter.drafter)
    return [drafter.model] if isinstance(drafter, ModelDrafter) and isinstance(drafter.model, Causal) else []
