"""A backend whose engine runs in subprocesses: one per arm, all kept ready at the same time.

The judge of diverging output, the networks of the pair in this process, is loaded only on
demand. An engine's first token comes with the prompt: it counts as a round without a draft.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from transformers import GenerationConfig

from specbench.backends import native
from specbench.backends.base import Backend, Decode, Held, Loading, unseen
from specbench.backends.checked import CheckedPair
from specbench.backends.native import Native
from specbench.backends.roles import Role, end_ids
from specbench.errors import UsageError
from specbench.metrics import FIRST_PIECE, STEP, RoundCounts, Trace, outcome
from specbench.models.checkpoints import description, reduced, weights
from specbench.models.checkpoints.names import Checkpoint
from specbench.spec import RunSpec
from specbench.theory.memory import Demand, Part

Prompts = Sequence[Sequence[int]]  # as token ids
Start = Mapping[str, Any]  # a process's start arguments, models by their names; specs with equal ones share it
RUNTIME = 1 << 30  # bytes of a process in addition to weights and caches, mostly its libraries
FEWEST = 1  # tokens of the shortest prompt
NOTES = (
    "the first token comes with the prompt and is a round without a draft",
    "alpha is accepted ÷ tested; drafting and verifying are not timed separately",
)
TOGETHER = "prompts in flight together share the seconds of the whole turn, prefill included, in equal parts"


@dataclass(frozen=True)
class Finished:
    """A prompt as an engine decoded it: new tokens, seconds from the request to the first and
    to the last of them, and the drafted and accepted tokens of every round with a draft."""

    tokens: tuple[int, ...]
    first: float
    last: float
    drafted: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()


class Served(Protocol):
    """A process with an engine that is ready to decode."""

    def decode(
        self, spec: RunSpec, prompts: Prompts, seeds: Sequence[int], ends: Sequence[int]
    ) -> tuple[Sequence[Finished], float]:
        """The decoded prompts, with a seed each, and the seconds for all together; `ends` are the ids that end
        a sequence. UnusableModelError, in one line, for any failure."""

    def close(self) -> None:
        """End the process."""


class Engine(Protocol):
    name: ClassVar[str]
    about: ClassVar[str]  # how it is run, in a few words for the user

    def start(self, spec: RunSpec, pair: CheckedPair, places: int) -> Start:
        """The start arguments of its process for sequences of up to `places` tokens, found without weights.
        Raises UsageError or UnusableModelError for a spec that it cannot decode."""

    def serve(self, start: Start, pair: CheckedPair) -> Served:
        """Start a process with the files of the pair. UnusableModelError, in one line, if that fails."""

    def tier(self, spec: RunSpec) -> str:
        """The tier of its rounds, as named in results."""

    def notes(self, spec: RunSpec, pair: CheckedPair) -> Sequence[str]:
        """Properties of the engine that change a cell's numbers."""


def opened(engine: Engine, specs: Sequence[RunSpec]) -> "Apart":
    """The pair of some specs, checked without weights. Raises UsageError or UnusableModelError."""
    found = Apart(engine, native.open_pair([spec.with_(backend=None, tier="eager") for spec in specs]), specs)
    for spec in specs:
        engine.start(spec, found.inner.pair, found.places(spec, FEWEST))
    return found


@dataclass(eq=False)
class Apart:
    """An engine with the checkpoints of a pair. inner: the pair in this process, loaded only as a judge."""

    engine: Engine
    inner: Native
    specs: Sequence[RunSpec]
    networks: None = None
    _longest: int = 0
    _served: dict[str, Served] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.name, self.execution = self.engine.name, f"{self.engine.name}: {self.engine.about}"
        self.device, self.context = self.inner.device, self.inner.context
        self.chat, self.encode = self.inner.chat, self.inner.encode

    @property
    def warnings(self) -> Sequence[str]:
        return self.inner.warnings

    def describe(self) -> dict[str, Any]:
        return {**self.inner.describe(), "tier_resolved": self.engine.tier(self.specs[0])}

    def notes(self, spec: RunSpec) -> Sequence[str]:
        found = [*NOTES, *([TOGETHER] if spec.batch > 1 else [])]
        return [*found, *self.engine.notes(spec, self.inner.pair)]

    def demand(self, held: Sequence[Held]) -> Demand | None:
        """The memory demand; every process has its own copy of the weights."""
        found = self.inner.demand(held)
        if found is None:
            return None
        most = max((len(one.arms) for one in held), default=1)
        cells = {key: 2 * (size + RUNTIME) for key, size in found.cells.items()}
        parts = [replace(part, size=part.size * most) if part.kind == "weights" else part for part in found.parts]
        processes = Part(f"{most} processes", "working memory", most * RUNTIME)
        return Demand([*parts, processes], found.loading, cells=cells)

    def frugal(self) -> Backend | None:
        return None

    def scores(self, ids: Sequence[int], start: int, block: int) -> torch.Tensor:
        return self.judge().scores(ids, start, block)

    def judge(self) -> Native:
        """The networks of the pair in this process, loaded."""
        if not self.inner.modules:
            self.inner.load(self._longest)
        return self.inner

    def load(self, longest: int = 0, watch: Loading = unseen) -> None:
        self._longest = longest

    def unload(self) -> None:
        self._close(list(self._served))
        self.inner.unload()

    def keep(self, specs: Sequence[RunSpec]) -> None:
        wanted = {self._key(spec) for spec in specs}
        self._close([key for key in self._served if key not in wanted])

    def places(self, spec: RunSpec, longest: int) -> int:
        """Tokens of the longest sequence of any arm, so that all arms are started alike."""
        return min(longest + spec.max_new_tokens + max(one.k for one in self.specs) + 1, self.context)

    def prepare(self, spec: RunSpec, longest: int) -> Decode:
        self._longest = max(longest, self._longest)
        if (key := self._key(spec)) not in self._served:
            self._served[key] = self.engine.serve(json.loads(key), self.inner.pair)
        served = self._served[key]
        ends = [] if spec.ignore_eos else ends_of(self.inner.pair.roles["target"])

        def run(prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[Trace]:
            found, seconds = served.decode(spec, prompts, seeds, ends)
            return traces_of(found, spec.max_new_tokens, seconds, spec.batch)

        return run

    def _key(self, spec: RunSpec) -> str:
        """The start arguments as a key; arms with equal keys share a process."""
        return json.dumps(self.engine.start(spec, self.inner.pair, self.places(spec, self._longest)), sort_keys=True)

    def _close(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._served.pop(key).close()


def ends_of(role: Role) -> list[int]:
    """The ids that end a sequence: the same as those of a network loaded from the same files."""
    folder = description.description(role.checkpoint)
    if not role.checkpoint.file and (folder / "generation_config.json").is_file():
        return end_ids(GenerationConfig.from_pretrained(folder), role.tokenizer)
    return end_ids(GenerationConfig.from_model_config(role.config), role.tokenizer)


def trace_of(found: Finished, new: int, share: float | None) -> Trace:
    """A trace of at most `new` tokens; `share` is its share of the seconds if several were in flight, else None.

    Of the seconds to the first token, the time of one later round counts as decoding, the rest as prefill.
    """
    rounds = rounds_of(found, new)
    step = (found.last - found.first) / (len(rounds) - 1) if len(rounds) > 1 else 0.0
    prefill = max(found.first - step, 0.0) if share is None else 0.0
    seconds = found.last - prefill if share is None else share
    return Trace(found.tokens, rounds, seconds, prefill, {FIRST_PIECE: found.first})


def rounds_of(found: Finished, new: int) -> tuple[RoundCounts, ...]:
    """The first token, the rounds with a draft, and those without one, whose positions are unknown."""
    rounds, at = [STEP], 1
    for drafted, accepted in zip(found.drafted, found.accepted, strict=True):
        if at < len(found.tokens):
            usable = min(drafted, new - at - 1)  # the last token is the target's own
            accepted = min(accepted, usable)
            emitted = min(accepted + 1, len(found.tokens) - at)  # the sequence may end within the round
            rounds.append(outcome(drafted, min(accepted, emitted), emitted, usable))
            at += emitted
    return (*rounds, *[STEP] * (len(found.tokens) - at))[: len(found.tokens)]


def traces_of(found: Sequence[Finished], new: int, wall: float, at_once: int) -> list[Trace]:
    """The traces of prompts that took `wall` seconds together, `at_once` of them in flight."""
    share = wall / len(found) if at_once > 1 else None
    return [trace_of(one, new, share) for one in found]


def refuse_grown(engine: str, checkpoint: Checkpoint) -> None:
    """UsageError for a scale model, which has no weights of its own."""
    if checkpoint.shape is not None:
        raise UsageError(
            f"--backend {engine}: {checkpoint.name} is grown when it is loaded: write it once with `specbench models "
            "grow`, and name that folder"
        )


def refuse_ours(engine: str, role: Role) -> None:
    """UsageError for a checkpoint format that only the native backend reads."""
    checkpoint = role.checkpoint
    refuse_grown(engine, checkpoint)
    if known := reduced.label(role.config):
        raise UsageError(
            f"--backend {engine}: the head of {checkpoint.name} knows {known}, which that engine cannot read: train a "
            "draft with a whole head, or use --backend native"
        )


def files_of(role: Role) -> tuple[Path, list[Path]]:
    """The folder and the weight files of a role, fetched if missing."""
    folder, found = weights.find(role.checkpoint)
    return folder.resolve(), found  # files of a hub are links to others without endings
