"""The engine transformers: a checked pair, loaded as the native backend loads it, and decoded by `generate()`.

Knows how a spec becomes a call; must not know data sets, statistics or files of results.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import transformers

from specbench.backends import native
from specbench.backends.arms import whatever_prompts
from specbench.backends.base import Backend, Decode, Held, Loading, unseen
from specbench.backends.generation import calls
from specbench.backends.generation.calls import Call
from specbench.backends.generation.ways import Way, notes_on, rule_of, way_of
from specbench.backends.native import Native
from specbench.errors import UnusableModelError
from specbench.metrics import Trace
from specbench.models.checkpoints.tokenizers import TokenizerChat
from specbench.models.execution import compiled
from specbench.spec import RunSpec
from specbench.theory.memory import Demand

NAME = "transformers"
EAGER = "generate() as it comes, with a cache that grows; --tier compile gives its best form"
COMPILED = "generate() with a static cache and compiled steps; assisted generation takes neither"


def open_pair(specs: Sequence[RunSpec]) -> "Transformers":
    """The pair of some specs, checked without weights. Raises UsageError or UnusableModelError."""
    found = Transformers(native.open_pair([spec.with_(tier="eager") for spec in specs]), specs)
    for spec in specs:
        found.way(spec)
    return found


@dataclass(eq=False)
class Transformers:
    """The networks of a pair, and calls of `generate()` on twins of them that share their weights."""

    inner: Native
    specs: Sequence[RunSpec]
    name: ClassVar[str] = NAME
    scores: Any = field(init=False)
    networks: None = None
    tier: str = field(init=False)
    _longest: int = 0
    _calls: dict[RunSpec, tuple[int, Call]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tier = "compile" if self.specs[0].tier == "compile" else "eager"
        if self.tier == "compile":
            compiled.choose("compile", self.device)  # a compiler must be there
        self.scores = self.inner.scores

    @property
    def device(self) -> torch.device:
        return self.inner.device

    @property
    def context(self) -> int:
        return self.inner.context

    @property
    def execution(self) -> str:
        about = COMPILED if self.tier == "compile" else EAGER
        return f"tier {self.tier}: transformers {transformers.__version__}, {about}"

    @property
    def warnings(self) -> Sequence[str]:
        return self.inner.warnings

    @property
    def chat(self) -> TokenizerChat:
        return self.inner.chat

    def encode(self, text: str) -> list[int]:
        return self.inner.encode(text)

    def describe(self) -> dict[str, Any]:
        found = {**self.inner.describe(), "tier_resolved": self.tier}
        if self.inner.pair.foreign:
            found["vocabulary_resolved"] = ", ".join(sorted({rule_of(spec) for spec in self.specs}))
        return found

    def notes(self, spec: RunSpec) -> Sequence[str]:
        return notes_on(self.way(spec), self.tier)

    def demand(self, held: Sequence[Held]) -> Demand | None:
        return self.inner.demand(held)

    def frugal(self) -> Backend | None:
        return None

    def judge(self) -> Native:
        return self.inner

    def load(self, longest: int = 0, watch: Loading = unseen) -> None:
        self._longest = longest
        self.inner.load(longest, watch)

    def unload(self) -> None:
        self._calls.clear()
        self.inner.unload()

    def keep(self, specs: Sequence[RunSpec]) -> None:
        wanted = {whatever_prompts(spec) for spec in specs}
        self._calls = {spec: call for spec, call in self._calls.items() if spec in wanted}

    def way(self, spec: RunSpec) -> Way:
        """How a spec is decoded. UsageError where transformers cannot."""
        return way_of(spec, self.inner.pair)

    def prepare(self, spec: RunSpec, longest: int) -> Decode:
        way, longest = self.way(spec), max(longest, self._longest)
        same = whatever_prompts(spec)
        if same not in self._calls or self._calls[same][0] < longest:
            self._calls[same] = longest, self.call(spec, way, longest)
        _, call = self._calls[same]

        def run(prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[Trace]:
            traces = [call(prompt, seed) for prompt, seed in zip(prompts, seeds, strict=True)]
            refuse_more(traces, way)
            return traces

        return run

    def call(self, spec: RunSpec, way: Way, longest: int) -> Call:
        """A call on twins of its own."""
        network, settings = self.inner.network, calls.settings_of(spec, self.inner.eos(spec))
        target = network("target")
        if way.kind == "plain" and self.tier == "compile":
            return calls.compiled(target, settings, longest + spec.max_new_tokens)
        if way.kind == "plain":
            return calls.plain(target, settings)
        if way.kind == "lookup":
            return calls.lookup(target, settings, way)
        if way.kind == "early exit":
            return calls.early_exit(target, settings, way.k, way.layers)
        roles = self.inner.pair.roles
        if (head := roles[way.model].head) is not None:
            return calls.mtp(target, settings, head.head.folder)
        tokenizers = [roles[name].tokenizer for name in ("target", way.model)] if way.kind == "universal" else []
        return calls.assisted(target, network(way.model), settings, way.k, tokenizers)


def refuse_more(traces: Sequence[Trace], way: Way) -> None:
    """UnusableModelError where more was drafted than K tokens: numbers of another K would stand under this one. A draft
    that is written anew in the target's tokens may have more of these."""
    most = max((one.drafted for trace in traces for one in trace.rounds), default=0)
    if most > way.k and way.kind != "universal":
        raise UnusableModelError(
            f"transformers {transformers.__version__} drafted {most} tokens in a round of K = {way.k}: "
            "use --backend native"
        )
