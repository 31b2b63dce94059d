"""What a tier makes of a method: its rounds as whole calls where they are static, its passes one by one where not.

Knows rounds, and how functions are compiled or captured; must not know specs, pairs or prompts.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from specbench.decoding.decode import begin, decode
from specbench.decoding.loop import Speculate
from specbench.decoding.randomness import FromUniforms
from specbench.decoding.replay import Replayed
from specbench.decoding.rounds import Play, Rounds, Stepwise, Whole
from specbench.decoding.timing import CudaClock
from specbench.decoding.tokens import TokenTree
from specbench.decoding.types import Context
from specbench.models.execution.compiled import Compiled, Gate, Name, Passes, reaches, settings
from specbench.models.execution.graphs import Captured, Repeated, Shared
from specbench.models.execution.onednn import pays
from specbench.models.execution.regions.operators import UncutError
from specbench.models.execution.regions.program import Regional, Regions
from specbench.models.execution.regions.store import Store

TEXTS = 3  # made-up ones, decoded while passes are made ready: a short one, a long one, and one between
AGAIN = 5  # how many more are decoded at most, until one brings no pass of new shapes
NEW = 128  # tokens of each


@dataclass
class Tier:
    """One way of execution on one device. Its graphs share one pool of memory.

    not_whole: unless empty, why what cannot be compiled region by region is not compiled as a whole: an UncutError.
    packed: whether eager passes, which read prompts in every tier, have matrices in a layout of their own.
    """

    name: Name
    device: torch.device
    not_whole: str = ""
    packed: bool = False
    remarks: dict[str, None] = field(default_factory=dict, init=False)  # what to know of what was made ready
    _regions: dict[bool, Regions] | None = field(default=None, init=False, repr=False)  # by whether weights are frozen
    _captures: Shared | None = field(default=None, init=False, repr=False)
    _gate: Gate = field(default_factory=Gate, init=False, repr=False)  # of all passes: open while they are made ready

    @property
    def lays_out(self) -> bool:
        """Whether compiled passes have matrices in a layout of their own, which is held besides."""
        return self.name == "compile" and self.device.type == "cpu"

    def eager(self) -> "Tier":
        """Without anything compiled or captured, in no more memory."""
        return Tier("eager", self.device, packed=(self.packed or self.lays_out) and pays())

    def gradless(self) -> AbstractContextManager[None]:
        """Without gradients; in eager calls also without the versions of tensors, which only a compiler asks for, and
        which cost a small model a tenth of its time."""
        return torch.inference_mode() if self.name == "eager" else torch.no_grad()

    def passes(self, static: bool) -> Passes | None:
        """How the passes of a network are run by a method that is static or is not; None: as they are."""
        if static or self.name == "eager":
            return None
        self._gate.open = True  # until the rounds of a method are ready
        return Passes(self._repeated, self._gate)

    def rounds(self, method: Speculate, length: int, rows: int, eos: list[int], source: FromUniforms) -> Rounds:
        """The rounds of a method on contexts of up to `length` places and exactly `rows` rows, ready to run.

        `source`: how draws become decisions; what is drawn from it while things are made ready is forgotten.
        """
        if self.name == "eager":
            return Stepwise(method)
        # a text of two tokens and one to come: it is decoded, and forgotten, while things are made ready
        context = begin([[0, 0]] * rows, 1, method.drafter.room, eos, self.device, length)
        if not method.drafter.static:
            return self._stepwise(Stepwise(method, length), context, source)
        steps = reaches(length, self.name)
        whole = Whole(method, length, steps, self._called)
        rounds = Replayed(method, length, steps, self._called, self._captured(method)) if self._graphs else whole
        rounds.prime(context, source)
        return rounds

    @property
    def _graphs(self) -> bool:
        return self.device.type == "cuda"  # compiled functions are captured as well: their launches cost as much

    def _called(self, play: Play) -> Play:
        return self._compiled(play) if self.name == "compile" else play

    def _compiled(self, function: Any, frozen: bool = True) -> Any:
        """On a CPU region by region: there, compiling what is repeated takes longest, and calls cost little."""

        def whole(function: Any) -> Any:
            return Compiled(function, self.device, frozen=frozen)

        if self._graphs:
            return whole(function)
        if self._regions is None:
            self._regions = {froze: Regions(Store(settings(self.device, froze))) for froze in (True, False)}
        return Regional(function, self._regions[frozen], whole, frozen, self._uncut)

    def _uncut(self, reason: str) -> None:
        if self.not_whole:
            raise UncutError(f"only as a whole, {self.not_whole}; {reason}")
        self.remarks |= {f"compiled as a whole, which takes longer ({reason})": None}

    def _captured(self, method: Speculate) -> Any:
        clock = method.clock
        assert isinstance(clock, CudaClock), "a device with graphs is timed by its own events"
        return lambda play: Captured(play, self._shared(), clock)

    def _repeated(self, run: Any, frozen: bool) -> Any:
        function = self._compiled(run, frozen) if self.name == "compile" else run
        return Repeated(function, self._shared()) if self._graphs else function

    def _shared(self) -> Shared:
        if self._captures is None:
            self._captures = Shared(self.device)
        return self._captures

    def _stepwise(self, rounds: Stepwise, context: Context, source: FromUniforms) -> Stepwise:
        """Rounds step by step whose passes are ready, as far as their shapes were met in decodes of made-up texts.

        A pass of another shape runs as it is later on: compiling it would be part of a measured time.
        """
        method = rounds.method
        if method.drafter.drawn and not method.drafter.branches:
            self._widths(method, context, source)
        places = context.seq.shape[1] - method.drafter.room - 2
        for number in range(TEXTS + AGAIN):
            made, prompt = self._gate.made, made_up(number, places)
            new = min(NEW, places - len(prompt))
            decode(method, [prompt] * context.rows, new=new, eos=(), rng=source, device=self.device, rounds=rounds)
            if number >= TEXTS and self._gate.made == made:
                break
        self._gate.open = False
        return rounds

    def _widths(self, method: Speculate, context: Context, source: FromUniforms) -> None:
        """Verification of every width, which no text can be relied on to bring, and the widths of a draft of two."""
        method.start(context)
        for width in range(method.drafter.depth + 1):
            method.model.probs(context, TokenTree.chain(context.seq.new_zeros((context.rows, width))))
        method.drafter.propose(replace(context, last=context.last + 2), 2, source)


def made_up(number: int, places: int) -> list[int]:
    """The prompt of a text that has so many places: short, long, or of half the length, in turn."""
    length = (2, places // 2, places - NEW)[number % TEXTS]
    random = torch.Generator().manual_seed(number)
    ids: list[int] = torch.randint(2, (max(2, min(length, places - 1)),), generator=random).tolist()
    return ids
