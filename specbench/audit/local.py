"""The probe of an engine that decodes a pair from its files: ours, `generate()` of transformers, vLLM, llama.cpp.

Scores are those of the target's network in this process, so that the same network judges every engine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import Any

import torch

from specbench.audit.probes import NEUTRAL, Ask, Probe, Reply
from specbench.audit.statistics import Scored
from specbench.backends.base import Backend, networks_of
from specbench.backends.choose import backend_for
from specbench.errors import UsageError
from specbench.measure.lossless import PlainPass
from specbench.spec import BASELINE, RunSpec

KEPT = 64  # best tokens per position: they are free here
SETTINGS = ("temperature", "top_k", "top_p", "min_p", "ignore_eos")


@dataclass(eq=False)
class LocalProbe(Probe):
    """A method of a pair on a loaded backend; `places`: tokens of the longest sequence. It decodes one request at a
    time."""

    backend: Backend
    spec: RunSpec
    places: int
    scores: bool = True
    lock: Lock = field(default_factory=Lock)

    @property
    def name(self) -> str:
        method = "without a draft" if self.spec.method == BASELINE else f"{self.spec.method}, K = {self.spec.k}"
        return f"{self.backend.name}, {method}"

    def render(self, messages: Sequence[Mapping[str, Any]], text: str) -> tuple[int, ...]:
        return tuple(self.backend.encode(text))

    def complete(self, ask: Ask) -> Reply:
        fields = {**NEUTRAL, **ask.fields}
        if others := sorted(set(fields) - {*SETTINGS, "seed"}):
            return Reply(refused=f"that it has no setting {others[0]}")
        seed = fields.pop("seed", 0)
        try:
            with self.lock:
                spec = self.spec.with_(**fields, max_new_tokens=ask.new)
                decode = self.backend.prepare(spec, self.places - ask.new)
                (trace,) = decode([list(ask.prompt)], [seed])
        except UsageError as error:
            return Reply(refused=str(error))
        drafted, accepted = (sum(getattr(one, name) for one in trace.rounds) for name in ("drafted", "accepted"))
        rounds = sum(one.drafted > 0 for one in trace.rounds)
        finish = "length" if len(trace.tokens) == ask.new else "stop"
        made = (None, None, None) if self.spec.method == BASELINE else (drafted, accepted, rounds)
        return Reply(tuple(trace.tokens), "", finish, len(trace.tokens), len(ask.prompt), *made)

    def score(self, prompt: Sequence[int], output: Sequence[int]) -> list[Scored]:
        judge = self.backend.judge() or self.backend
        networks = networks_of(judge, "an audit")
        with self.lock:
            return best(PlainPass(networks.network("target"), networks.device)(prompt, output), output)

    def decoded(self, prompt: Sequence[int], new: int) -> list[Scored]:
        output = self.complete(Ask(tuple(prompt), new)).ids
        judge = self.backend.judge() or self.backend
        if judge.scores is None:
            raise UsageError(f"the backend {self.backend.name} gives no logits, which are what output is judged by")
        with self.lock:
            return best(judge.scores([*prompt, *output], len(prompt), 1)[: len(output)], output)

    def curl(self, ask: Ask) -> str:
        return f"{self.name}: prompt {list(ask.prompt)}, {ask.new} new tokens, {dict(ask.fields)}"


@dataclass(eq=False)
class Agreement:
    """Whether the best token of a draft model is that of a text, at every place of it. It is read when it is needed."""

    spec: RunSpec  # the draft model as a target

    @cached_property
    def plain(self) -> PlainPass:
        backend = backend_for([self.spec])
        backend.load()
        networks = networks_of(backend, "an audit")
        return PlainPass(networks.network("target"), networks.device)

    def __call__(self, prompt: Sequence[int], output: Sequence[int]) -> list[bool]:
        best = self.plain(prompt, output).argmax(-1).tolist()
        return [one == token for one, token in zip(best, output, strict=True)]


def best(logits: torch.Tensor, output: Sequence[int]) -> list[Scored]:
    """The best log-probabilities of every position [n, V]."""
    found = logits.double().log_softmax(-1).topk(min(KEPT, logits.shape[-1]))
    pairs = zip(found.indices.tolist(), found.values.tolist(), strict=True)
    return [
        Scored(token, tuple(zip(ids, values, strict=True))) for token, (ids, values) in zip(output, pairs, strict=True)
    ]
