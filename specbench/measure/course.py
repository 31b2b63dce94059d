"""The arms of a group: made ready and warmed up, what is noted while they decode, and what their output is worth."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import cycle

import torch

from specbench.backends.base import Backend, Decode
from specbench.backends.roles import carries
from specbench.data.prompts import PromptSet
from specbench.decoding.drafters.strings import looks_up, rounds_over
from specbench.errors import UsageError
from specbench.measure.group import Failure, Group, attempt
from specbench.measure.lossless import losslessness_of
from specbench.measure.order import seed_of, side
from specbench.measure.sensors import Sensors
from specbench.metrics import Trace, ratio
from specbench.models.execution import machine
from specbench.results.machine import Peak, Peaks
from specbench.spec import BASELINE, CHOOSING, RunSpec, choices, parsed
from specbench.theory.bandit import Arm, Bandit, Decoded

Ids = Sequence[int]  # of the tokens of a prompt
GLANCED = 3  # prompts of the first estimate


@dataclass
class Arms:
    """How each arm of a group decodes, the seconds that it took to build, compile or capture it,
    which arms carry something from prompt to prompt, which choose their method, and the memory
    that there was at most while each decoded. sensors: of the machine that they decode on."""

    device: torch.device
    sensors: Sensors
    decodes: dict[str, Decode] = field(default_factory=dict)
    ready: dict[str, float] = field(default_factory=dict)
    carrying: set[str] = field(default_factory=set)
    choosing: dict[str, "Choosing"] = field(default_factory=dict)
    memory: dict[str, Peak] = field(default_factory=dict)

    @contextmanager
    def watched(self, arm: str) -> Iterator[None]:
        """Note the memory that there is at most while an arm decodes."""
        with machine.watched(self.device) as peak:
            yield
        self.memory[arm] = self.memory.get(arm, Peak()).higher(Peak(*peak()))

    def peaks(self, spec: RunSpec) -> Peaks:
        """Those of a cell; unknown where all that it has was decoded by a run that it goes on with."""
        return Peaks(self.memory.get(BASELINE, Peak()), self.memory.get(spec.key, Peak()))


def prepare(group: Group, backend: Backend, arms: Arms) -> None:
    """Build every arm and decode the first prompts with it, uncounted: first calls allocate and choose kernels.

    Where one of them changed how all are executed, the others are built anew.
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
    """Build one arm, note how long that took, and decode its warm-up."""
    if spec.method == CHOOSING:
        warm_up_choices(arm, spec, prompts, backend, arms)
        return
    began = time.perf_counter()
    decode = backend.prepare(spec, prompts.longest)
    arms.ready[arm] = time.perf_counter() - began
    for some, seeds in warm_ups(arm, spec, prompts, spec.warmup):
        decode(some, seeds)
    if carries(spec):
        arms.carrying.add(arm)
        decode = backend.prepare(spec, prompts.longest)  # what was learned in the warm-up is forgotten
    arms.decodes[arm] = decode


def warm_up_choices(arm: str, spec: RunSpec, prompts: PromptSet, backend: Backend, arms: Arms) -> None:
    """The same for an arm that chooses: its choices are looked at in its
    warm-up, which is one longer, as their first decodes say nothing."""
    began = time.perf_counter()
    choosing = Choosing.over(spec, backend, prompts.longest)
    arms.ready[arm] = time.perf_counter() - began
    for number, (some, seeds) in enumerate(warm_ups(arm, spec, prompts, spec.warmup + (spec.warmup > 0))):
        choosing.look(some, seeds, first=number == 0)
    arms.choosing[arm], arms.decodes[arm] = choosing, choosing.decode


def warm_ups(arm: str, spec: RunSpec, prompts: PromptSet, count: int) -> Iterator[tuple[list[Ids], list[int]]]:
    """The prompts and seeds of every warm-up: one batch, or one request where these come at times of their own."""
    every = cycle(prompts.prompts)
    for number in range(count):
        some = [next(every) for _ in range(spec.batch if spec.arrivals is None else 1)]
        yield [p.ids for p in some], [seed_of(spec, p.id, number, f"warm-up {side(arm)}") for p in some]


def compare_with_baseline(group: Group, backend: Backend, arms: Arms) -> None:
    """End the cells whose prompts are all decoded, with what is known of their output beside the baseline's."""
    for spec in list(group.live):
        found = attempt(partial(losslessness_of, spec, group.ids, group.live[spec], backend.scores))
        if isinstance(found, Failure):
            group.lose(spec.key, found)
        else:
            group.finish(spec, found, (arms.ready[BASELINE], arms.ready[spec.key]), arms.peaks(spec))


@dataclass(frozen=True)
class Choosing:
    """The arm that chooses: the decodes of its choices by name, and a bandit that says which one decodes the next turn.

    The choice follows from earlier turns alone and is made before anything of
    the turn is drawn, so its tokens have the law of the choice that decodes it.
    """

    decodes: dict[str, Decode]
    bandit: Bandit = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bandit", Bandit([arm_of(name) for name in self.decodes]))

    @cached_property
    def lookups(self) -> list[Arm]:
        """Of every method that looks tokens up the longest: it tells the shorter ones."""
        longest = {arm.method: arm for arm in sorted(self.bandit.arms, key=lambda arm: arm.k)}
        return [arm for arm in longest.values() if arm.k and looks_up(arm.method)]

    @staticmethod
    def over(spec: RunSpec, backend: Backend, longest: int) -> "Choosing":
        """All choices of a spec made ready, one after the other."""
        return Choosing({name: backend.prepare(one, longest) for name, one in choices(spec).items()})

    def decode(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[Trace]:
        """The prompts of a turn, by the choice that is made for them."""
        arm = machine.agreed(self.bandit.choose())
        name = next(name for name in self.decodes if arm_of(name) == arm)
        found = [replace(trace, choice=name) for trace in self.decodes[name](prompts, seeds)]
        self.learn(prompts, found)
        return found

    def learn(self, prompts: Sequence[Sequence[int]], traces: Sequence[Trace]) -> None:
        """See what became of a turn; also one of a run that is continued."""
        self.count(traces)
        self.overhear(prompts, traces)

    def count(self, traces: Sequence[Trace]) -> None:
        """See what the choices made of a turn. Prompts of a batch share its seconds."""
        for name in dict.fromkeys(trace.choice for trace in traces if trace.choice in self.decodes):
            some = [trace for trace in traces if trace.choice == name]
            seconds = sum(trace.seconds for trace in some)
            self.bandit.seen.append(Decoded(arm_of(name), [trace.rounds for trace in some], seconds))

    def overhear(self, prompts: Sequence[Sequence[int]], traces: Sequence[Trace]) -> None:
        """Count in how many rounds the lookups would have emitted the texts of a turn, where another choice did."""
        for arm in self.lookups:
            others = [(prompt, trace) for prompt, trace in zip(prompts, traces, strict=True)
                      if trace.tokens and arm_of(trace.choice).method != arm.method]  # fmt: skip
            if others:
                texts = [rounds_over(arm.method, arm.k, prompt, trace.tokens) for prompt, trace in others]
                self.bandit.seen.append(Decoded(arm, texts, None))

    def look(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], first: bool) -> None:
        """Decode with every choice, uncounted, and learn from it; not from the first calls, which allocate."""
        for name, decode in self.decodes.items():
            traces = decode(prompts, seeds)
            if not first:
                self.count([replace(trace, choice=name) for trace in traces])


def arm_of(name: str) -> Arm:
    return Arm(*parsed(name))


def refuse_choices(spec: RunSpec) -> None:
    """UsageError for a choice that carries something: which prompts it has seen would depend on times."""
    for name, one in choices(spec).items():
        if name and carries(one):
            raise UsageError(
                f"--choices {name}: it learns from prompt to prompt, and would learn from those alone that it is "
                "chosen for: leave it out"
            )
