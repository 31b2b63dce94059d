"""Our own loop on Hugging Face checkpoints: a checked pair, its weights, and methods built over them.

Knows how a spec becomes models and a method; must not know data sets, statistics or files of results.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from specbench.backends.base import Decode
from specbench.decoding.build import build, needs
from specbench.decoding.decode import Trace, begin, decode, places
from specbench.decoding.loop import Speculate
from specbench.decoding.randomness import seeded
from specbench.decoding.rounds import Play, Rounds, Stepwise, Whole
from specbench.decoding.schedule import Costs, Schedule, scheduled
from specbench.decoding.synthetic import synthetic
from specbench.errors import UnusableModelError, UsageError
from specbench.models import check, forward, loading, pairs, scale
from specbench.models.causal import Causal
from specbench.models.probe import probe
from specbench.models.warp import Law
from specbench.spec import RunSpec
from specbench.timing import Clock, clock_for

NOT_LOADED: Any = Causal  # the class stands for a model where only the form of a method is looked at


@dataclass(frozen=True)
class Role:
    """One model of a run as it resolved: where it comes from, its configuration, tokenizer and dtype."""

    checkpoint: pairs.Checkpoint
    config: Any
    tokenizer: Any
    dtype: torch.dtype


def draft_name(spec: RunSpec) -> str:
    """The draft that is asked for, or the one that goes with the target."""
    name = spec.draft or pairs.default_draft(spec.target)
    if name is None:
        raise UsageError(
            f"no draft is known for {spec.target}: name one with --draft, or choose a pair of configs/pairs.yaml"
        )
    return name


def half(config: Any) -> bool:
    """Whether a checkpoint is stored in a type of 16 bits."""
    own = config.dtype or config.get_text_config(decoder=True).dtype
    return isinstance(own, torch.dtype) and own.itemsize == 2


class Native:
    """The pair of some specs. Creating it checks everything that can be checked without weights; `load` reads them."""

    def __init__(self, *specs: RunSpec) -> None:
        spec = specs[0]
        self.device = loading.resolve_device(spec.device)
        self.tier, self.why = forward.choose(spec.tier, self.device)
        roles = {"target"}.union(*(needs(one.method) for one in specs))
        self.costs: Costs | None = None  # what `--k auto` reckons with; set by whoever has measured them on this pair
        nothing = dict.fromkeys(("target", "draft"), NOT_LOADED)
        for one in specs:
            form = build(one.method, nothing, one.k, schedule=self.schedule(one))  # a wrong method file ends it here
            synthetic(form, one.acceptance)
        target = self._role(pairs.resolve(spec.target, spec.target_revision), spec.dtype)
        self.roles = {"target": target}
        self.warnings: tuple[str, ...] = ()
        self.context = check.context_length(target.config)
        self.width = int(target.config.get_text_config(decoder=True).vocab_size)
        if "draft" in roles:
            draft = self._role(pairs.resolve(draft_name(spec), spec.draft_revision), spec.draft_dtype or spec.dtype)
            if spec.draft_dtype is None:
                draft = replace(draft, dtype=target.dtype)  # two dtypes in one pair would inflate c
            report = check.check_pair(target.tokenizer, draft.tokenizer, target.config, draft.config)
            self.roles["draft"] = draft
            self.warnings, self.context = report.warnings, report.context
        self.networks: dict[str, Any] = {}
        self.commits: dict[str, str | None] = {}

    def _role(self, checkpoint: pairs.Checkpoint, dtype: str) -> Role:
        config = loading.load_config(checkpoint)
        tokenizer = loading.load_tokenizer(checkpoint)
        if dtype == "auto" and self.tier == "compile" and half(config) and forward.fast_bfloat16(self.device):
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

    def models(self, spec: RunSpec) -> dict[str, Causal]:
        """Fresh models (own caches, shared weights) whose rows follow the law of `spec`."""
        law = Law(spec.temperature, spec.top_k, spec.top_p, spec.min_p, spec.eta)
        fixed = self.tier != "eager"
        return {name: Causal(network, law, self.width, fixed) for name, network in self.networks.items()}

    def schedule(self, spec: RunSpec) -> Schedule:
        """The rule that says how many of K tokens a drafter draws."""
        return scheduled(spec.schedule, spec.confidence, self.costs)

    def method(self, spec: RunSpec, clock: Clock | None = None) -> Speculate:
        """The method of a spec over fresh models."""
        method = build(spec.method, self.models(spec), spec.k, clock, self.schedule(spec))
        return synthetic(method, spec.acceptance)

    def prepare(self, spec: RunSpec, longest: int) -> Decode:
        clock = clock_for(self.device)
        method = self.method(spec, clock)
        eos = self.eos(spec)
        rounds = self.rounds(spec, method, longest)

        def run(prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[Trace]:
            rng = seeded(seeds, self.device)
            to = {"new": spec.max_new_tokens, "eos": eos, "device": self.device}
            return decode(method, prompts, rng=rng, clock=clock, rounds=rounds, **to)  # type: ignore[arg-type]

        return run

    def rounds(self, spec: RunSpec, method: Speculate, longest: int) -> Rounds:
        """How the tier of this pair runs the rounds of a method, made ready for prompts of up to `longest` tokens."""
        if self.tier == "eager":
            return Stepwise(method)
        room = method.drafter.room
        length = places(longest, spec.max_new_tokens, room)
        prompts = [[0] * 2] * spec.batch
        context = begin(prompts, 1, room, self.eos(spec), self.device, length)
        rounds = Whole(method, length, forward.reaches(length, self.device), self.ready)
        rounds.prime(context, seeded([0] * spec.batch, self.device))
        return rounds

    def ready(self, play: Play) -> Play:
        """A round that is cheap to call."""
        return forward.Compiled(play, self.device)

    def scores(self, ids: Sequence[int], start: int, block: int) -> torch.Tensor:
        """[len(ids) − start, V] logits of the target along a known text from token start − 1 on, fed `block` at a time.

        What a baseline computes is block 1, what verification computes is block K + 1; their difference is numerical.
        """
        context = begin([list(ids[:start])], len(ids) - start, block, [], self.device)
        context.seq[0, : len(ids)] = torch.tensor(list(ids), device=self.device)
        model = Causal(self.networks["target"], Law(), self.width)
        known = scale.vocabulary(self.roles["target"].config)  # sunk logits would drown the noise of real ones
        return model.read(context, len(ids) - start, block)[:, :known]
