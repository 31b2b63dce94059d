"""Our own loop on Hugging Face checkpoints: a checked pair, its weights, and methods built over them.

Knows how a spec becomes models and a method; must not know data sets, statistics or files of results.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch

from specbench.backends.base import Decode
from specbench.backends.roles import Role, checkpoint_of, depth, half, kept_layers, named_by
from specbench.backends.tiers import Tier
from specbench.decoding.batch import decode_batches
from specbench.decoding.build import build
from specbench.decoding.decode import begin, decode, places
from specbench.decoding.drafters.schedule import Schedule, scheduled
from specbench.decoding.loop import Speculate
from specbench.decoding.method_files import needs
from specbench.decoding.randomness import FromUniforms, seeded
from specbench.decoding.rounds import Rounds
from specbench.decoding.timing import Clock, clock_for
from specbench.decoding.types import Model
from specbench.decoding.verifiers.synthetic import synthetic
from specbench.errors import UnusableModelError
from specbench.metrics import Trace
from specbench.models.checkpoints import check, loading, pairs
from specbench.models.execution import compiled, threads
from specbench.models.network.causal import Causal
from specbench.models.network.early_exit import sharing
from specbench.models.network.law import Law
from specbench.models.network.layers import with_layers
from specbench.models.network.probe import probe
from specbench.models.scale import growth
from specbench.settings import group
from specbench.spec import RunSpec
from specbench.theory.costs import Costs

NOT_LOADED: Any = Causal  # the class stands for a model where only the form of a method is looked at


def law_of(spec: RunSpec) -> Law:
    """How logits become the rows of every model of a spec."""
    return Law(**{setting.name: getattr(spec, setting.name) for setting in group("law", RunSpec)})


@dataclass(frozen=True)
class Arm:
    """A method over models of its own, the clock of its parts, the ids that end a sequence, and its rounds."""

    method: Speculate
    clock: Clock
    eos: list[int]
    rounds: Rounds


class Native:
    """The pair of some specs. Creating it checks everything that can be checked without weights; `load` reads them."""

    def __init__(self, *specs: RunSpec) -> None:
        spec = specs[0]
        self.device = loading.resolve_device(spec.device)
        threads.fit_threads()
        name, self.why = compiled.choose(spec.tier, self.device)
        self.tier = Tier(name, self.device)
        named = named_by(specs)  # models of the methods
        self.costs: Costs | None = None  # what `--k auto` reckons with; set by whoever has measured them on this pair
        for one in specs:
            synthetic(self.form(one), one.acceptance)  # a wrong method file ends it here
        target = self._role(checkpoint_of("target", spec), spec.dtype)
        self.roles = {"target": target}
        self.warnings: tuple[str, ...] = ()
        self.context = check.context_length(target.config)
        self.width = int(target.config.get_text_config(decoder=True).vocab_size)
        for role in sorted({names[-1] for names in named.values()} - {"target"}):
            self._join(role, spec)
        # by name: the role whose network it is a part of, and the layers that are kept of it
        self.kept = {
            name: (names[-1], kept_layers(names, depth(self.roles[names[-1]])))
            for name, names in named.items()
            if name not in self.roles
        }
        self.networks: dict[str, Any] = {}
        self.commits: dict[str, str | None] = {}
        self.longest = 0  # tokens of the longest prompt of all data sets: what is compiled for it serves them all
        self.arms: dict[RunSpec, Arm] = {}

    def _join(self, name: str, spec: RunSpec) -> None:
        """Take in a model that drafts, by the name of its role; refused where it does not fit the target."""
        target = self.roles["target"]
        role = self._role(checkpoint_of(name, spec), spec.draft_dtype or spec.dtype)
        if spec.draft_dtype is None:
            role = replace(role, dtype=target.dtype)  # two dtypes in one pair would inflate c
        report = check.check_pair(target.tokenizer, role.tokenizer, target.config, role.config, name)
        self.roles[name] = role
        self.warnings += report.warnings
        self.context = min(self.context, report.context)

    def _role(self, checkpoint: pairs.Checkpoint, dtype: str) -> Role:
        config = loading.load_config(checkpoint)
        tokenizer = loading.load_tokenizer(checkpoint)
        if dtype == "auto" and self.tier.name == "compile" and half(config) and compiled.fast_bfloat16(self.device):
            dtype = "bfloat16"
        return Role(checkpoint, config, tokenizer, loading.resolve_dtype(dtype, config, self.device))

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt, special tokens as the target's tokenizer adds them."""
        ids: list[int] = self.roles["target"].tokenizer(text).input_ids
        return ids

    def load(self) -> None:
        """Read the weights of every role."""
        for name, role in self.roles.items():
            loaded = self._read(role)
            probe(Causal(loaded.model, Law(), self.width), role.checkpoint.name, self.device)
            self.networks[name] = loaded.model
            self.commits[name] = loaded.commit
            self.warnings += loaded.warnings
        for name, (base, layers) in self.kept.items():
            self.networks[name] = with_layers(self.networks[base], layers)

    def _read(self, role: Role) -> loading.Loaded:
        try:
            return loading.load_model(role.checkpoint, role.dtype, self.device)
        except torch.OutOfMemoryError as error:
            raise UnusableModelError(
                f"{role.checkpoint.name}: its weights do not fit into the memory of {self.device}; "
                "choose a smaller --dtype, a smaller model or --device cpu"
            ) from error

    def eos(self, spec: RunSpec) -> list[int]:
        """The ids that end a sequence: the target's generation config decides; none under --ignore-eos."""
        if spec.ignore_eos:
            return []
        generation = getattr(self.networks["target"], "generation_config", None)
        ids = getattr(generation, "eos_token_id", None)
        ids = self.roles["target"].tokenizer.eos_token_id if ids is None else ids
        return [] if ids is None else [ids] if isinstance(ids, int) else list(ids)

    def models(self, spec: RunSpec) -> dict[str, Model]:
        """Fresh models (own caches, shared weights) whose rows follow the law of `spec`."""
        law = law_of(spec)
        fixed, static = self.tier.name != "eager", self.form(spec).drafter.static
        made = {name: self.tier.passes(static) for name in self.networks}
        every = self.networks.items()
        models = {name: Causal(network, law, self.width, fixed, made[name]) for name, network in every}
        return sharing(models, needs(spec.method))

    def form(self, spec: RunSpec) -> Speculate:
        """The method of a spec with nothing in the place of its models."""
        nothing = dict.fromkeys(needs(spec.method), NOT_LOADED)
        return build(spec.method, nothing, spec.k, schedule=self.schedule(spec))

    def schedule(self, spec: RunSpec) -> Schedule:
        """The rule that says how many of K tokens a drafter draws."""
        return scheduled(spec.schedule, spec.confidence, self.costs)

    def method(self, spec: RunSpec, clock: Clock | None = None) -> Speculate:
        """The method of a spec over fresh models."""
        method = build(spec.method, self.models(spec), spec.k, clock, self.schedule(spec))
        return synthetic(method, spec.acceptance)

    def prepare(self, spec: RunSpec, longest: int) -> Decode:
        arm = self.arm(spec, max(longest, self.longest))

        def run(prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[Trace]:
            to: Any = {"new": spec.max_new_tokens, "eos": arm.eos, "device": self.device}
            to |= {"clock": arm.clock, "rounds": arm.rounds}
            with self.gradless():
                if spec.batch > 1:
                    certain = law_of(spec).certain
                    return decode_batches(arm.method, prompts, seeds, rows=spec.batch, certain=certain, **to)
                return decode(arm.method, prompts, rng=self.source(spec, seeds), **to)

        return run

    def source(self, spec: RunSpec, seeds: Sequence[int]) -> FromUniforms:
        """Where the draws of a spec come from: one seed per row."""
        return seeded(seeds, self.device, law_of(spec).certain)

    def gradless(self) -> AbstractContextManager[None]:
        """Without gradients, in the way that is fast in this tier; decodes take it by themselves."""
        return self.tier.gradless()

    def arm(self, spec: RunSpec, longest: int) -> Arm:
        """A method that is ready for prompts of up to `longest` tokens. What was compiled or captured is kept."""
        same = spec.with_(dataset="", column=None, template=None, limit=None, seed=0, warmup=0, repeat=1, until_ci=None)
        known = self.arms.get(same)
        if known is not None and places(longest, spec.max_new_tokens, known.method.drafter.room) <= known.rounds.length:
            return known
        clock = clock_for(self.device)
        method, eos = self.method(spec, clock), self.eos(spec)
        length = places(longest, spec.max_new_tokens, method.drafter.room)
        clock.start()  # what is timed inside a round while it is compiled or captured belongs to this clock
        source = self.source(spec, [0] * spec.batch)
        arm = Arm(method, clock, eos, self.tier.rounds(method, length, spec.batch, eos, source))
        if arm.rounds.length:
            self.arms[same] = arm
        return arm

    def unload(self) -> None:
        """Forget the weights and everything that was made of them."""
        self.arms.clear()
        self.networks.clear()

    def scores(self, ids: Sequence[int], start: int, block: int) -> torch.Tensor:
        """[len(ids) − start, V] logits of the target along a known text from token start − 1 on, fed `block` at a time.

        What a baseline computes is block 1, what verification computes is block K + 1; their difference is numerical.
        """
        context = begin([list(ids[:start])], len(ids) - start, block, [], self.device)
        context.seq[0, : len(ids)] = torch.tensor(list(ids), device=self.device)
        model = Causal(self.networks["target"], Law(), self.width)
        known = growth.vocabulary(self.roles["target"].config)  # sunk logits would drown the noise of real ones
        return model.read(context, len(ids) - start, block)[:, :known]
