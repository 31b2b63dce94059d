"""An engine in processes of its own as a backend: one process per arm, which stay ready beside each other.

Knows checked pairs and what engines are asked for; must not know any engine, statistics or files of results. What
judges diverging output, the networks of the pair, is loaded in this process when it is asked for, not before.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from transformers import GenerationConfig

from specbench.backends import native
from specbench.backends.apart.engine import Engine, Request, Served
from specbench.backends.apart.rounds import traces_of
from specbench.backends.base import Backend, Decode, Held, Loading, unseen
from specbench.backends.native import Native
from specbench.backends.roles import Role, end_ids
from specbench.metrics import Trace
from specbench.models.checkpoints import description
from specbench.models.checkpoints.tokenizers import TokenizerChat
from specbench.spec import RunSpec
from specbench.theory.memory import Demand, Part

RUNTIME = 1 << 30  # bytes of a process beside weights and caches, its libraries most of all
FEWEST = 1  # tokens of the shortest prompt
NOTES = (
    "the first token comes with the prompt and is a round without a draft",
    "alpha is accepted ÷ tested; drafting and verifying are not told apart",
)
TOGETHER = "seconds of prompts in flight together are those of the whole turn, prompts included, in equal parts"


def opened(engine: Engine, specs: Sequence[RunSpec]) -> "Apart":
    """The pair of some specs, checked without weights. Raises UsageError or UnusableModelError."""
    found = Apart(engine, native.open_pair([spec.with_(backend=None, tier="eager") for spec in specs]), specs)
    for spec in specs:
        engine.start(spec, found.inner.pair, found.places(spec, FEWEST))
    return found


@dataclass(eq=False)
class Apart:
    """An engine with the checkpoints of a pair. inner: the pair in this process, which is loaded only as a judge."""

    engine: Engine
    inner: Native
    specs: Sequence[RunSpec]
    networks: None = None
    _longest: int = 0
    _served: dict[str, Served] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.engine.name

    @property
    def device(self) -> torch.device:
        return self.inner.device

    @property
    def context(self) -> int:
        return self.inner.context

    @property
    def execution(self) -> str:
        return f"{self.name}: {self.engine.about}"

    @property
    def warnings(self) -> Sequence[str]:
        return self.inner.warnings

    @property
    def chat(self) -> TokenizerChat:
        return self.inner.chat

    def encode(self, text: str) -> list[int]:
        return self.inner.encode(text)

    def describe(self) -> dict[str, Any]:
        return {**self.inner.describe(), "tier_resolved": self.engine.tier(self.specs[0])}

    def notes(self, spec: RunSpec) -> Sequence[str]:
        found = [*NOTES, *([TOGETHER] if spec.batch > 1 else [])]
        return [*found, *self.engine.notes(spec, self.inner.pair)]

    def demand(self, held: Sequence[Held]) -> Demand | None:
        """Every process has weights of its own."""
        found = self.inner.demand(held)
        if found is None:
            return None
        most = max((len(one.arms) for one in held), default=1)
        cells = {key: 2 * (size + RUNTIME) for key, size in found.cells.items()}
        return Demand([*copied(found.parts, most), Part(f"{most} processes", "working memory", most * RUNTIME)],
                      found.loading, {}, cells)  # fmt: skip

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
        """Tokens of the longest text of any arm, so that all arms are started alike."""
        return min(longest + spec.max_new_tokens + max(one.k for one in self.specs) + 1, self.context)

    def prepare(self, spec: RunSpec, longest: int) -> Decode:
        self._longest = max(longest, self._longest)
        served = self._ready(spec)
        ends = [] if spec.ignore_eos else ends_of(self.inner.pair.roles["target"])

        def run(prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[Trace]:
            decoded = served.decode(Request(spec, prompts, seeds, ends))
            return traces_of(decoded.found, spec.max_new_tokens, decoded.seconds, spec.batch)

        return run

    def _key(self, spec: RunSpec) -> str:
        """What its process is started with, by which arms share one."""
        return json.dumps(self.engine.start(spec, self.inner.pair, self.places(spec, self._longest)), sort_keys=True)

    def _ready(self, spec: RunSpec) -> Served:
        key = self._key(spec)
        if key not in self._served:
            self._served[key] = self.engine.serve(json.loads(key), self.inner.pair)
        return self._served[key]

    def _close(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._served.pop(key).close()


def copied(parts: Sequence[Part], copies: int) -> list[Part]:
    """The memory of so many processes, of which each has the weights."""
    return [replace(part, size=part.size * copies) if part.kind == "weights" else part for part in parts]


@dataclass(frozen=True)
class Ending:
    """What a network says of the end of a sequence, read without its weights."""

    generation_config: Any


def ends_of(role: Role) -> list[int]:
    """The ids that end a sequence: as of a network that is loaded from the same files."""
    folder = description.description(role.checkpoint)
    if not role.checkpoint.file and (folder / "generation_config.json").is_file():
        found = GenerationConfig.from_pretrained(folder)
    else:
        found = GenerationConfig.from_model_config(role.config)
    return end_ids(Ending(found), role.tokenizer)
