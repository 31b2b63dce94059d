"""The arms of a group: preparation, warm-up, notes during decoding, and the check of their output."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import cycle

import torch

from specbench.backends.base import Backend, Decode
from specbench.backends.engines.arms import SERVED
from specbench.backends.engines.dialects import unlike
from specbench.backends.roles import carries
from specbench.data.prompts import PromptSet
from specbench.decoding.drafters.strings import looks_up, rounds_over
from specbench.errors import UsageError
from specbench.measure.group import Failure, Group, attempt, seed_of, side
from specbench.measure.lossless import Rescored, forks_of, greedy_outputs, losslessness_of
from specbench.measure.sensors import Sensors
from specbench.metrics import Trace, ratio
from specbench.models.execution import machine
from specbench.results.machine import Peak, Peaks
from specbench.spec import BASELINE, CHOOSING, RunSpec, choices, parsed
from specbench.theory.bandit import Arm, Bandit, Decoded

Ids = Sequence[int]  # prompt token ids
GLANCED = 3  # prompts of the first estimate


@dataclass
class Arms:
    """Decoders of a group's arms, with their preparation seconds, peak memory, state across prompts, and choices.

    sensors: of the machine they run on.
    """

    device: torch.device
    sensors: Sensors
    decodes: dict[str, Decode] = field(default_factory=dict)
    ready: dict[str, float] = field(default_factory=dict)
    carrying: set[str] = field(default_factory=set)
    choosing: dict[str, "Choosing"] = field(default_factory=dict)
    memory: dict[str, Peak] = field(default_factory=dict)

    @contextmanager
    def watched(self, arm: str) -> Iterator[None]:
        """Record the peak memory while an arm decodes."""
        with machine.watched(self.device) as peak:
            yield
        self.memory[arm] = self.memory.get(arm, Peak()).higher(Peak(*peak()))

    def peaks(self, spec: RunSpec) -> Peaks:
        """The peak memory of a cell; unknown if all its samples come from an earlier run."""
        return Peaks(self.memory.get(BASELINE, Peak()), self.memory.get(spec.key, Peak()))


def prepare(group: Group, backend: Backend, arms: Arms) -> None:
    """Build every arm and decode the first prompts, uncounted: first calls allocate memory and choose kernels.

    If one of them changed how all are executed, the others are rebuilt.
    """
    execution = ""
    while execution != backend.execution:
        execution = backend.execution
        for arm, spec in group.arms.items():
            if not group.needing(arm):
                continue  # the baseline has failed
            group.preparing(spec)
            failure = attempt(partial(warm_up, arm, spec, group.prompts, backend, arms))
            if failure is not None:
                group.lose(arm, failure)
    group.resolve(backend.describe())
    group.preparing(None)


def first_estimate(group: Group, backend: Backend) -> None:
    """Report a first speedup to the observers before arms are compiled for a minute or more.

    One cell and its baseline decode a few prompts without compiled code; the first one is decoded twice, as a warm-up.
    """
    spec = next((one for one in group.live if one.method not in (BASELINE, CHOOSING) and not carries(one)), None)
    if spec is None or backend.describe().get("tier_resolved", "eager") == "eager" or machine.joined() > 1:
        return
    networks = backend.networks
    if networks is None:
        return
    some = [prompt.ids for prompt in group.prompts.prompts[:GLANCED]]

    def rate(one: RunSpec) -> float:
        traces = networks.glance(one, [*some[:1], *some], one.seed)[1:]
        return ratio(sum(len(trace.tokens) for trace in traces), sum(trace.seconds for trace in traces))

    found = attempt(lambda: ratio(rate(spec), rate(group.baseline)))
    if not isinstance(found, Failure) and found > 0:
        for observer in group.observers:
            observer.estimated(spec, found, len(some))


def warm_up(arm: str, spec: RunSpec, prompts: PromptSet, backend: Backend, arms: Arms) -> None:
    """Build one arm, record the preparation time, and decode its warm-up."""
    if spec.method == CHOOSING:
        # once more than usual: first decodes are slow
        began = time.perf_counter()
        choosing = Choosing.over(spec, backend, prompts.longest)
        arms.ready[arm] = time.perf_counter() - began
        for number, (some, seeds) in enumerate(warm_ups(arm, spec, prompts, spec.warmup + (spec.warmup > 0))):
            choosing.look(some, seeds, first=number == 0)
        arms.choosing[arm], arms.decodes[arm] = choosing, choosing.decode
        return
    began = time.perf_counter()
    decode = backend.prepare(spec, prompts.longest)
    arms.ready[arm] = time.perf_counter() - began
    for some, seeds in warm_ups(arm, spec, prompts, spec.warmup):
        decode(some, seeds)
    if carries(spec):
        arms.carrying.add(arm)
        decode = backend.prepare(spec, prompts.longest)  # forget what was learned in the warm-up
    arms.decodes[arm] = decode


def warm_ups(arm: str, spec: RunSpec, prompts: PromptSet, count: int) -> Iterator[tuple[list[Ids], list[int]]]:
    """Prompts and seeds of every warm-up: one batch, or one request if requests have arrival times.

    Servers keep prompts, and some of them answers: they are sent other words, in batches that hold `count` prompts.
    """
    every, served = cycle(prompts.prompts), spec.backend in SERVED
    rows = 1 if spec.arrivals else spec.batch
    for number in range(-(-count // rows) if served else count):
        some = [next(every) for _ in range(rows)]
        sent: list[Ids] = [unlike(p.ids) if served else p.ids for p in some]
        yield sent, [seed_of(spec, p.id, number, f"warm-up {side(arm)}") for p in some]


def compare_with_baseline(group: Group, backend: Backend, arms: Arms) -> None:
    """End the cells whose prompts are all decoded, comparing their output with the baseline's."""
    rescored = None if backend.scores is None else Rescored(backend.scores, group.comparing)
    for spec, samples in group.live.items():
        if rescored and (outputs := greedy_outputs(spec, group.ids, samples)):
            rescored.expect(forks_of(*outputs))
    for spec in list(group.live):
        found = attempt(partial(losslessness_of, spec, group.ids, group.live[spec], rescored))
        if isinstance(found, Failure):
            group.lose(spec.key, found)
        else:
            group.finish(spec, found, (arms.ready[BASELINE], arms.ready[spec.key]), arms.peaks(spec))


@dataclass(frozen=True)
class Choosing:
    """The arm that chooses: decoders of its choices by name, and a bandit that selects one for each turn.

    The choice depends only on earlier turns and precedes all random draws of the turn, so the tokens follow
    the sampling distribution of the chosen method.
    """

    decodes: dict[str, Decode]
    bandit: Bandit = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bandit", Bandit([arm_of(name) for name in self.decodes]))

    @cached_property
    def lookups(self) -> list[Arm]:
        """The longest of every lookup method: it also gives the results of the shorter ones."""
        longest = {arm.method: arm for arm in sorted(self.bandit.arms, key=lambda arm: arm.k)}
        return [arm for arm in longest.values() if arm.k and looks_up(arm.method)]

    @staticmethod
    def over(spec: RunSpec, backend: Backend, longest: int) -> "Choosing":
        """Prepare all choices of a spec, one after the other."""
        return Choosing({name: backend.prepare(one, longest) for name, one in choices(spec).items()})

    def decode(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[Trace]:
        """Decode a turn's prompts with the selected choice."""
        arm = machine.agreed(self.bandit.choose())
        name = next(name for name in self.decodes if arm_of(name) == arm)
        found = [replace(trace, choice=name) for trace in self.decodes[name](prompts, seeds)]
        self.learn(prompts, found)
        return found

    def learn(self, prompts: Sequence[Sequence[int]], traces: Sequence[Trace]) -> None:
        """Learn from the results of a turn, also from one of a continued run."""
        self.count(traces)
        self.overhear(prompts, traces)

    def count(self, traces: Sequence[Trace]) -> None:
        """Learn from the choices' results of a turn. Prompts of a batch share its seconds."""
        for name in dict.fromkeys(trace.choice for trace in traces if trace.choice in self.decodes):
            some = [trace for trace in traces if trace.choice == name]
            seconds = sum(trace.seconds for trace in some)
            self.bandit.seen.append(Decoded(arm_of(name), [trace.rounds for trace in some], seconds))

    def overhear(self, prompts: Sequence[Sequence[int]], traces: Sequence[Trace]) -> None:
        """Count the rounds that lookups would have taken for texts that another choice decoded."""
        for arm in self.lookups:
            others = [(prompt, trace) for prompt, trace in zip(prompts, traces, strict=True)
                      if trace.tokens and arm_of(trace.choice).method != arm.method]  # fmt: skip
            if others:
                texts = [rounds_over(arm.method, arm.k, prompt, trace.tokens) for prompt, trace in others]
                self.bandit.seen.append(Decoded(arm, texts, None))

    def look(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], first: bool) -> None:
        """Decode with every choice, uncounted, and learn from all but the first calls, which allocate memory."""
        for name, decode in self.decodes.items():
            traces = decode(prompts, seeds)
            if not first:
                self.count([replace(trace, choice=name) for trace in traces])


def arm_of(name: str) -> Arm:
    return Arm(*parsed(name))


def refuse_choices(spec: RunSpec) -> None:
    """Raise UsageError for a choice that carries state: the prompts it sees would depend on timing."""
    for name, one in choices(spec).items():
        if name and carries(one):
            raise UsageError(
                f"--choices {name}: it learns from prompt to prompt, and would learn only from the prompts that it is "
                "chosen for: leave it out"
            )
