"""Our own loop on Hugging Face checkpoints: the networks of a checked pair, and methods built over them."""

import gc
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from specbench.backends.base import Decode, Held, Loading, unseen
from specbench.backends.checked import CheckedPair, agreeing
from specbench.backends.heads import joined_in
from specbench.backends.heads import load as load_head
from specbench.backends.memory import Estimate, free_for
from specbench.backends.networks import Joins, complete, read_weights, recurrent_notes
from specbench.backends.roles import bounded, depth_of, end_ids, form, known_in, places, whatever_prompts
from specbench.backends.tiers import AUTO, HELD, PYTHON, Tier, opened, refused, unfused
from specbench.decoding.decode import begin, decode, decode_batches
from specbench.decoding.drafters.schedule import scheduled
from specbench.decoding.loop import Speculate
from specbench.decoding.method_files import drafts_with, learners, needs
from specbench.decoding.methods import build
from specbench.decoding.protocols import Model
from specbench.decoding.randomness import FromUniforms, seeded
from specbench.decoding.rounds import Rounds
from specbench.decoding.timing import Clock, clock_for
from specbench.decoding.verifiers.lossy import synthetic
from specbench.metrics import Trace
from specbench.models.checkpoints import description
from specbench.models.checkpoints.tokenizers import TokenizerChat, runs_on
from specbench.models.execution import machine
from specbench.models.execution.machine import give_back
from specbench.models.network import packed
from specbench.models.network.caches import OWN, Memory, Pool
from specbench.models.network.early_exit import sharing
from specbench.models.network.recurrent import Rollback, model_of
from specbench.models.network.sampling import Sampling
from specbench.models.network.skipping import ENOUGH, Count, cut_of, layers_with_experts
from specbench.models.scale import growth
from specbench.settings import group
from specbench.spec import RunSpec
from specbench.theory.memory import Demand
from specbench.theory.optimum import Costs

NAME = "native"
GLANCE = 32  # new tokens of a prompt of the first estimate


def open_pair(specs: Sequence[RunSpec]) -> "Native":
    """The pair of some specs, checked without weights. Raises UsageError or UnusableModelError.

    The threads of this process are fitted to the processor: everything measured in it must have the same number.
    """
    machine.fit_threads()
    for spec in specs:
        synthetic(form(spec, None), spec.acceptance)  # an invalid method file fails here
    return Native(*opened(specs), specs)


@dataclass(frozen=True)
class Arm:
    """A method with its own models, the clock of its parts, the ids that end a sequence, and its rounds."""

    method: Speculate
    clock: Clock
    eos: list[int]
    rounds: Rounds


@dataclass(eq=False)
class Native:
    """The networks of a pair, empty until `load`, and the arms built from them."""

    pair: CheckedPair
    tier: Tier
    execution: str
    specs: Sequence[RunSpec] = ()  # those that it was opened for
    costs: Costs | None = None
    modules: dict[str, Any] = field(default_factory=dict)
    commits: dict[str, str | None] = field(default_factory=dict)
    weights: dict[str, str] = field(default_factory=dict)
    rollbacks: dict[str, Rollback] = field(default_factory=dict)
    cut: dict[str, str] = field(default_factory=dict)  # the kept part of a model's vocabulary, if cut
    warnings: tuple[str, ...] = field(init=False)
    joins: Joins = field(init=False)
    name: str = NAME
    refused: str = ""  # why the tier that auto chose was left
    _longest: int = 0  # tokens of the longest prompt: code compiled for it serves all data sets
    _arms: dict[RunSpec, Arm] = field(default_factory=dict)
    _twins: packed.Twins = field(default_factory=packed.Twins)
    _looked_into: bool = False  # whether a network was handed out
    _pool: Pool = field(init=False)  # arms never run at once

    def __post_init__(self) -> None:
        self._pool = Pool(fixed=self.tier.name != "eager")
        self.device, self.context, self.width = self.pair.device, self.pair.context, self.pair.width
        self.joins, self.warnings = Joins(self.pair), self.pair.warnings
        self.tokenizer, self.encode = self.pair.roles["target"].tokenizer, self.pair.roles["target"].encode
        self.chat = TokenizerChat(self.tokenizer)

    @property
    def networks(self) -> "Native":
        return self

    @property
    def depth(self) -> int:
        return depth_of(self.pair.roles["target"])

    def describe(self) -> dict[str, Any]:
        """The tier and all resolved roles."""
        cuts = dict.fromkeys(what for name, what in self.cut.items() if cut_of(name) is None)  # of --draft-vocabulary
        found = {"tier_resolved": self.tier.name, "tier_refused": self.refused}
        found |= {"draft_vocabulary_resolved": "; ".join(cuts)}
        return found | self.pair.columns(self.commits, self.weights, self.rollbacks)

    def notes(self, spec: RunSpec) -> Sequence[str]:
        found = [packed.NOTE if self.tier.name == "eager" else packed.PROMPTS] if self.tier.packed else []
        most = bounded(spec).k
        return found if most == spec.k else [*found, f"a round drafts {most} tokens, as many as a text may have"]

    def demand(self, held: Sequence[Held]) -> Demand | None:
        tier = self.tier
        estimate = Estimate(self.pair, tier.name != "eager", tier.lays_out, tier.packed, self.releases)
        found = estimate.demand(held)
        if not self.tier.packed or found is None or free_for(found, self.device):
            return found
        self.tier, self.warnings = replace(self.tier, packed=False), (*self.warnings, packed.TOO_LARGE)
        return self.demand(held)

    def frugal(self) -> "Native | None":
        if self.specs[0].tier != AUTO or self.tier.name not in HELD:
            return None
        return Native(*opened(self.specs, f"memory is not enough for {HELD[self.tier.name]} rounds"), self.specs)

    def judge(self) -> "Native":
        return self

    def load(self, longest: int = 0, watch: Loading = unseen) -> None:
        """Read the weights of every role."""
        self._longest = longest
        for name, role in self.pair.roles.items():
            width = self.joins.width(name)
            # a head is read after its target
            loaded, self.rollbacks[name] = (
                read_weights(role, width, role.device or self.device, watch)
                if role.head is None or not role.borrows
                else (load_head(role, role.head, self.modules["target"]), "position")
            )
            self.modules[name], self.commits[name], self.weights[name] = loaded.model, loaded.commit, loaded.weights
            self.warnings += (*loaded.warnings, *recurrent_notes(name, self.rollbacks[name]))
            give_back()  # temporary memory of reading
        self.cut = complete(self.pair, self.modules, self.rollbacks, self.ends())
        self.warnings += (
            *[f"the {name} knows {what}, and drafts no other" for name, what in self.cut.items()],
            *runs_on(self.tokenizer, self.ends()),
        )

    def unload(self) -> None:
        self._twins = packed.Twins()
        self._arms.clear()
        self.modules.clear()

    @property
    def releases(self) -> bool:
        """Whether the packed copies that passes read may be the only ones: no other code reads these
        weights. Networks with a recurrent state multiply by them without calling their layers."""
        learning = any(learners(spec.method) for spec in self.specs)
        reading = any(description.recurrent(role.config) for role in self.pair.roles.values())
        return not (self._looked_into or self.tier.lays_out or learning or reading or self.pair.kept)

    def network(self, name: str) -> Any:
        self._looked_into = True
        self._twins.restore()
        return self.modules[name]

    def passing(self, learning: Collection[str] = ()) -> Mapping[str, Any]:
        """The networks as passes read them; those that are `learning` as they change."""
        if not self.tier.packed:
            return self.modules
        found = self._twins.of(self.modules, self.tier.lays_out, self.releases)
        return found | {name: self.modules[name] for name in learning}

    def eos(self, spec: RunSpec) -> list[int]:
        return [] if spec.ignore_eos else self.ends()

    def ends(self) -> list[int]:
        """The ids that end a sequence: the target's generation config decides."""
        return end_ids(getattr(self.modules["target"], "generation_config", None), self.tokenizer)

    def sampling(self, spec: RunSpec) -> Sampling:
        return Sampling(**{setting.name: getattr(spec, setting.name) for setting in group("sampling", RunSpec)})

    @property
    def plain(self) -> set[str]:
        return {name for name in self.modules if name not in self.pair.heads and self.joins.found(name) is None}

    def models(self, spec: RunSpec) -> dict[str, Model]:
        self.joins.refuse_looking(needs(spec.method))
        return self._models(spec, False, OWN)

    def _models(self, spec: RunSpec, eager: bool, memory: Memory) -> dict[str, Model]:
        """Those that the method names may share caches and read the target's hidden states."""
        fixed, drafter = self.tier.name != "eager" and not eager, form(spec, self.costs).drafter
        networks, sampling, named = self.passing(learners(spec.method)), self.sampling(spec), needs(spec.method)
        borrowing = {name for name, role in self.pair.roles.items() if role.borrows}
        models = {
            name: model_of(
                *(self.rollbacks[name], network, self.joins.sampling(name, sampling), self.joins.width(name)),
                *(fixed, self.tier.passes(drafter.static or eager), memory.beside()),
            )
            for name, network in networks.items()
            if name not in borrowing
        }
        heads = {name: None if name in models else networks[name] for name in self.pair.heads if name in named}
        return joined_in(self.joins.joined(sharing(models, named)), heads, drafter.depth)

    def alone(self, spec: RunSpec, part: Callable[[], object]) -> Callable[[], object]:
        whole = form(spec, self.costs).drafter.static and self.sampling(spec).certain  # a recorded draw is no draw
        return self.tier.alone(part) if whole else part

    def method(self, spec: RunSpec, clock: Clock | None = None, eager: bool = False, memory: Memory = OWN) -> Speculate:
        spec = bounded(spec)
        models, schedule = self._models(spec, eager, memory), scheduled(spec.schedule, spec.confidence, self.costs)
        built = build(spec.method, models, spec.k, clock, schedule, self.joins.around, self.pair.thinking)
        return synthetic(built, spec.acceptance)

    def experts(self, spec: RunSpec, prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> dict[str, float] | None:
        target = self.passing()["target"]
        if not (layers := layers_with_experts(target)):
            return None
        count = Count(target, layers, len(prompts))
        to: Any = {"new": min(spec.max_new_tokens, ENOUGH), "eos": self.eos(spec), "device": self.device}
        with self.gradless(), count.counting():
            method = self.method(spec, count, eager=True)
            decode(method, prompts, rng=self.source(spec, seeds), clock=count, **to)
        return count.row()

    def glance(self, spec: RunSpec, prompts: Sequence[Sequence[int]], seed: int) -> list[Trace]:
        clock, new = clock_for(self.device), min(spec.max_new_tokens, GLANCE)
        to: Any = {"new": new, "eos": self.eos(spec), "device": self.device, "clock": clock}
        with self.gradless():
            method, rng = self.method(spec, clock, eager=True), self.source(spec, [seed])
            return [trace for prompt in prompts for trace in decode(method, [prompt], rng=rng, **to)]

    def source(self, spec: RunSpec, seeds: Sequence[int]) -> FromUniforms:
        return seeded(seeds, self.device, self.sampling(spec).certain, agreeing(spec))

    def gradless(self) -> AbstractContextManager[None]:
        """Disable gradients in the way that is fast in this tier."""
        return self.tier.gradless()

    def prepare(self, spec: RunSpec, longest: int) -> Decode:
        arm, tier = self.arm(spec, max(longest, self._longest)), self.tier
        known = known_in(self.modules, () if self.pair.foreign else drafts_with(spec.method), self.width)
        # clear what it carries from earlier prompts
        if (carried := arm.method.carries) is not None:
            carried.forget()

        def run(prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[Trace]:
            nonlocal arm, tier
            if tier is not self.tier:  # another arm could not run in it
                arm, tier = self.arm(spec, max(longest, self._longest)), self.tier
            with self.gradless():
                to: Any = {"device": self.device, "clock": arm.clock, "rounds": arm.rounds, "eos": arm.eos}
                to["new"] = spec.max_new_tokens
                if spec.batch > 1:
                    to |= {"rows": spec.batch, "certain": self.sampling(spec).certain, "agree": agreeing(spec)}
                    traces = decode_batches(arm.method, prompts, seeds, **to)
                else:
                    traces = decode(arm.method, prompts, rng=self.source(spec, seeds), **to)
            remarks = [] if arm.method.carries is None else arm.method.carries.remarks
            self.warnings = tuple(dict.fromkeys((*self.warnings, *remarks, *self.tier.remarks)))
            remarks.clear()
            if known is None:
                return traces
            return [replace(trace, draftable=sum(token in known for token in trace.tokens)) for trace in traces]

        return run

    def keep(self, specs: Sequence[RunSpec]) -> None:
        wanted = set(map(whatever_prompts, specs))
        self._arms = {spec: arm for spec, arm in self._arms.items() if spec in wanted}
        gc.collect()  # stepwise passes and their network refer to each other

    def arm(self, spec: RunSpec, longest: int) -> Arm:
        """A method, ready for prompts of up to `longest` tokens. An automatically chosen tier that fails is left."""
        try:
            return self._ready(spec, longest)
        except Exception as error:  # any error of a compiler or driver
            self.refused = refused(self.tier.name, spec, error)
        self._arms.clear()  # also those that are ready: a ratio of two tiers means nothing
        self.tier, self._pool = self.tier.eager(), Pool()
        self.execution = f"tier eager: {self.refused}, so baseline and methods are eager alike: {PYTHON}"
        self.warnings += (self.execution, *unfused(self.pair, "eager"))
        return self._ready(spec, longest)

    def _ready(self, spec: RunSpec, longest: int) -> Arm:
        same, length = whatever_prompts(spec), places(spec, longest, self.costs)
        if (known := self._arms.get(same)) and length <= known.rounds.length:
            return known
        clock, eos = clock_for(self.device), self.eos(spec)
        # the most of all that share this baseline
        together = {spec, *(one for one in self.specs if one.baseline == spec.baseline)}
        memory = self._pool.share(length, max(places(one, longest, self.costs) for one in together))
        method = self.method(spec, clock, memory=memory)
        clock.start()  # parts timed while a round is compiled or captured belong to this clock
        source = self.source(spec, [0] * spec.batch)
        arm = Arm(method, clock, eos, self.tier.rounds(method, length, spec.batch, eos, source))
        if arm.rounds.length:
            self._arms[same] = arm
        return arm

    def scores(self, ids: Sequence[int], start: int, block: int) -> torch.Tensor:
        context = begin([list(ids[:start])], len(ids) - start, block, [], self.pair.device)
        context.seq[0, : len(ids)] = torch.tensor(list(ids), device=self.pair.device)
        model = model_of(self.rollbacks["target"], self.passing()["target"], Sampling(), self.pair.width)
        # logits set to −∞ would hide the noise of real ones
        known = growth.vocabulary(self.pair.roles["target"].config)
        return model.read(context, len(ids) - start, block)[:, :known]
