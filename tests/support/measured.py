"""Measurements made by hand: traces with known phase costs, samples, cells, and a backend that only remembers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from specbench.backends.base import Decode, Scores
from specbench.chat import Chat
from specbench.data.prompts import Prompt, PromptSet
from specbench.measure.group import Job
from specbench.metrics import RoundCounts, Trace
from specbench.results.cells import Cell, Observer
from specbench.results.samples import Sample
from specbench.spec import RunSpec
from tests.support.chats import Spelled

K = 4
STEP, TARGET_PASS = 0.010, 0.008  # seconds of one baseline step, and of the target's pass in it
DRAFT_TOKEN, VERIFY_PASS, REST = 0.001, 0.012, 0.0035  # seconds of a round's phases: c 0.1, v 1.5, overhead 0.05
PREFILL = 0.1
RESOLVED = {"rejected": "", "dtype_resolved": "float32", "draft_dtype_resolved": "float32", "device_name": "abacus"}


def baseline_trace(tokens: Sequence[int], step: float = STEP) -> Trace:
    rounds = tuple(RoundCounts(0, 0, 0, 1, ()) for _ in tokens)
    spans = {"draft": 0.0, "verify": TARGET_PASS * len(tokens), "accept": 0.001 * len(tokens)}
    return Trace(tuple(tokens), rounds, step * len(tokens), PREFILL, spans)


def one_round(accepted: int, overlap: float = 0.5, drafted: int = K) -> RoundCounts:
    tested = min(accepted + 1, drafted)
    return RoundCounts(drafted, tested, accepted, accepted + 1, (overlap,) * tested)


def method_trace(accepted: Sequence[int], tokens: Sequence[int] | None = None) -> Trace:
    """A trace whose rounds accepted so many tokens each and cost what the constants above say."""
    rounds = tuple(one_round(a) for a in accepted)
    ids = range(sum(r.emitted for r in rounds)) if tokens is None else tokens
    n, drafted = len(rounds), sum(r.drafted for r in rounds)
    spans = {"draft": DRAFT_TOKEN * drafted, "draft/verify": 99.0, "verify": VERIFY_PASS * n, "accept": 0.002 * n}
    return Trace(tuple(ids), rounds, DRAFT_TOKEN * drafted + (VERIFY_PASS + REST) * n, 2 * PREFILL, spans)


def sample(prompt: str = "p1", accepted: Sequence[int] = (4, 2, 0, 2), repeat: int = 0, **changes: Any) -> Sample:
    method = method_trace(accepted)
    name = prompt.encode("utf-8", "surrogatepass")[:4]
    turn = int.from_bytes(name) + (repeat << 32)  # none is decoded together with another
    fields = {"category": "all", "prompt_tokens": 7, "turn": turn, "order": (0, 1), "load": 0.5}
    fields |= {"baseline": baseline_trace(method.tokens), "method": method}
    return Sample(prompt=prompt, repeat=repeat, **{**fields, **changes})


def cell(*samples: Sample, resolved: dict[str, Any] | None = None, **changes: Any) -> Cell:
    spec = {"dataset": "code", "target": "big", "draft": "small"}
    spec |= {k: changes.pop(k) for k in tuple(changes) if k in RunSpec.model_fields}
    return Cell(RunSpec(**spec), {**RESOLVED, **(resolved or {})}, samples, **changes)


def prompt_set(*names: str) -> PromptSet:
    prompts = tuple(Prompt(name, "all", name, (number, 1)) for number, name in enumerate(names, start=10))
    return PromptSet("code", prompts, len(prompts), {}, "0" * 64, None)


def job(*names: str, **changes: Any) -> Job:
    return Job(RunSpec(target="big", draft="small", **{"warmup": 0, **changes}), prompt_set(*names), dict(RESOLVED))


@dataclass(frozen=True)
class Call:
    """One decode asked of the fake backend."""

    arm: str
    prompt: tuple[int, ...]
    seed: int


def no_scores(ids: Sequence[int], start: int, block: int) -> Any:
    raise AssertionError("equal outputs are not scored")


@dataclass
class FakeBackend:
    """Remembers what it is asked; `answer` may raise, or return the tokens to be decoded."""

    answer: Callable[[Call], Sequence[int]] = lambda call: (1, 2, 3)
    scores: Scores | None = no_scores
    calls: list[Call] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)  # prompts of every decode
    chat: Chat | None = field(default_factory=Spelled)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    kept: list[set[str]] = field(default_factory=list)  # the methods that are still to come, after every group

    execution: str = "what it is asked, it answers"
    networks: Any = None

    def describe(self) -> dict[str, Any]:
        return {}

    def keep(self, specs: Sequence[RunSpec]) -> None:
        self.kept.append({spec.method for spec in specs})

    def prepare(self, spec: RunSpec, longest: int) -> Decode:
        def run(prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[Trace]:
            self.batches.append(len(prompts))
            return [self.trace(spec, *one) for one in zip(prompts, seeds, strict=True)]

        return run

    def trace(self, spec: RunSpec, prompt: Sequence[int], seed: int) -> Trace:
        arm = spec.method if spec.k == 0 else f"{spec.method} K={spec.k}"
        call = Call(arm, tuple(prompt), seed)
        self.calls.append(call)
        tokens = self.answer(call)
        return baseline_trace(tokens) if spec.k == 0 else method_trace([len(tokens) - 1], tokens)


@dataclass
class Witness(Observer):
    """An observer that keeps what it saw."""

    begun: list[tuple[list[str], int]] = field(default_factory=list)
    turns: list[dict[RunSpec, Sequence[Sample]]] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    prepared: list[RunSpec | None] = field(default_factory=list)
    estimates: list[tuple[RunSpec, float, int]] = field(default_factory=list)

    def begin(self, cells: Sequence[Cell], prompts: int) -> None:
        self.begun.append(([c.spec.dataset for c in cells], prompts))

    def preparing(self, spec: RunSpec | None) -> None:
        self.prepared.append(spec)

    def estimated(self, spec: RunSpec, speedup: float, prompts: int) -> None:
        self.estimates.append((spec, speedup, prompts))

    def turn(self, samples: Mapping[RunSpec, Sequence[Sample]]) -> None:
        self.turns.append(dict(samples))

    def end(self, cell: Cell) -> None:
        self.cells.append(cell)
