"""What a backend is: an engine with one pair of checkpoints, as jobs use it, and what only some engines can give.

What an engine lacks it declares as None; nothing is ever asked for with getattr or isinstance.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from specbench.chat import Chat
from specbench.decoding.loop import Speculate
from specbench.decoding.protocols import Model
from specbench.decoding.randomness import Source
from specbench.errors import UsageError
from specbench.metrics import Trace
from specbench.models.network.law import Law
from specbench.spec import BASELINE, RunSpec
from specbench.theory.costs import Costs
from specbench.theory.memory import Demand

Decode = Callable[[Sequence[Sequence[int]], Sequence[int]], list[Trace]]  # prompts as token ids, one seed per prompt
Loading = Callable[[str, int, int], None]  # (what is done with which model, bytes done, bytes in all)
Scores = Callable[[Sequence[int], int, int], torch.Tensor]  # see `Backend.scores`


def unseen(what: str, done: int, total: int) -> None:
    """A `Loading` that shows nothing."""


class Networks(Protocol):
    """The networks of a pair in this process, for what looks inside a round: calibration, searches and traces."""

    device: torch.device
    context: int
    costs: Costs | None  # of a round on this machine, for `--k auto`; set by the job that has measured them

    @property
    def width(self) -> int:
        """The length of a row of logits."""
        ...

    @property
    def depth(self) -> int:
        """The number of layers of the target."""
        ...

    @property
    def tokenizer(self) -> Any:
        """The target's, which is the draft's as well."""
        ...

    def network(self, name: str) -> Any:
        """The module of a model that has been loaded."""
        ...

    def hold(self, name: str, network: Any) -> None:
        """Take in a network that was made in this process, by the name that methods have for it: one without recurrent
        state, of the target's vocabulary, in its dtype and on its device. It replaces one of that name."""
        ...

    def law(self, spec: RunSpec) -> Law:
        """How logits become the distributions of every model of a spec."""
        ...

    def eos(self, spec: RunSpec) -> list[int]:
        """The ids that end a sequence; none under --ignore-eos."""
        ...

    @property
    def plain(self) -> Collection[str]:
        """The names of those models that were loaded and are networks over the target's tokens."""
        ...

    def models(self, spec: RunSpec) -> Mapping[str, Model]:
        """Fresh models by name: own caches, shared weights. UsageError where one of those that the method names has no
        rows over the target's tokens."""
        ...

    def method(self, spec: RunSpec) -> Speculate:
        """The method of a spec over fresh models."""
        ...

    def source(self, spec: RunSpec, seeds: Sequence[int]) -> Source:
        """Where the draws of a spec come from: one seed per row."""
        ...

    def experts(self, spec: RunSpec, prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> dict[str, float] | None:
        """The experts that the target's passes touch as columns, None of a target without any: counted while prompts
        are decoded in the rows of one batch with the method of a spec, step by step and untimed."""
        ...

    def gradless(self) -> AbstractContextManager[None]:
        """Without gradients; `prepare` takes care of it by itself."""
        ...

    def prepare(self, spec: RunSpec, longest: int) -> Decode:
        """See `Backend.prepare`."""
        ...


@dataclass(frozen=True)
class Held:
    """Cells with one baseline, whose arms are all held ready at once, and the tokens of their longest prompt."""

    specs: Sequence[RunSpec]
    prompt: int

    @property
    def arms(self) -> list[RunSpec]:
        """The baseline and every other cell."""
        return [self.specs[0].baseline, *(spec for spec in self.specs if spec.method != BASELINE)]


class Backend(Protocol):
    """An engine and the pair of some specs, checked as far as that is possible without weights.

    The runner times nothing itself: it reads the traces. Between `load` and `unload` any number of specs of the pair
    may be prepared, and all that are decode on the same weights.
    """

    @property
    def name(self) -> str:
        """What a user calls the engine."""
        ...

    @property
    def device(self) -> torch.device:
        """Where it computes, as far as this process knows; it is part of the environment that a run records."""
        ...

    @property
    def context(self) -> int:
        """The most tokens of a sequence, new ones and drafts included."""
        ...

    @property
    def execution(self) -> str:
        """How decodes are executed, in a few words for the user. `prepare` may change it, for all that was prepared."""
        ...

    @property
    def warnings(self) -> Sequence[str]:
        """What a user should know about the pair, one line each; `load` may add some."""
        ...

    @property
    def scores(self) -> Scores | None:
        """How diverging greedy output is judged; None where the engine gives no logits.

        (ids, start, block) → [len(ids) − start, V] logits of the target along known ids from token start − 1 on, fed
        `block` at a time. A baseline computes block 1, verification block K + 1; their difference is numerical.
        """
        ...

    @property
    def networks(self) -> Networks | None:
        """What calibration, searches and traces look into; None where the engine keeps it to itself."""
        ...

    @property
    def chat(self) -> Chat | None:
        """How the target's tokenizer writes chats; None where the engine takes plain text alone."""
        ...

    def encode(self, text: str) -> list[int]:
        """Token ids of a plain prompt, special tokens as the target's tokenizer adds them."""
        ...

    def describe(self) -> dict[str, Any]:
        """What the names of the pair stood for, as columns: target_source, target_commit, dtype_resolved …"""
        ...

    def notes(self, spec: RunSpec) -> Sequence[str]:
        """What of this engine a reader of a cell's numbers must know, because it changes them; for its row."""
        ...

    def demand(self, held: Sequence[Held]) -> Demand | None:
        """The memory that measuring these cells takes, group after group, weights included; None where nobody knows."""
        ...

    def frugal(self) -> "Backend | None":
        """The same pair in the way of execution that takes the least memory; None where that is the present one, or
        another was asked for."""
        ...

    def judge(self) -> "Backend | None":
        """What scores its text again: a backend with networks of the same checkpoints in this process, loaded; None
        where there is none."""
        ...

    def load(self, longest: int = 0, watch: Loading = unseen) -> None:
        """Read the weights; no prompt will have more than `longest` tokens. Raises UnusableModelError.

        `watch` hears what is being fetched or read, how many bytes of it are done, and how many there are.
        """
        ...

    def unload(self) -> None:
        """Forget the weights and everything that was made of them."""
        ...

    def prepare(self, spec: RunSpec, longest: int) -> Decode:
        """A function that decodes prompts of up to `longest` tokens as `spec` says; all that is slow is done here.

        It returns one trace per prompt, decoded with a seed each: equal seeds give equal tokens.
        """
        ...

    def keep(self, specs: Sequence[RunSpec]) -> None:
        """Forget what was prepared for other specs than these: their caches, and what was compiled or captured."""
        ...


def networks_of(backend: Backend, purpose: str) -> Networks:
    """The networks of a backend; UsageError, saying what needs them, where it gives none."""
    if backend.networks is None:
        raise UsageError(
            f"{purpose} looks into the networks of a pair, and the backend {backend.name} gives no access to them: "
            "use the native backend"
        )
    return backend.networks
