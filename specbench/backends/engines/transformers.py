"""The engine transformers: a checked pair, loaded by the native backend and decoded by `generate()`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import transformers

from specbench.backends import native
from specbench.backends.base import Backend, Decode, Loading, drafting, no_method, refuse_settings, unseen
from specbench.backends.checked import CheckedPair
from specbench.backends.engines import generate
from specbench.backends.engines.generate import PLAIN, Call, Way
from specbench.backends.native import Native
from specbench.backends.roles import Role, whatever_prompts
from specbench.errors import UnusableModelError, UsageError
from specbench.metrics import Trace
from specbench.models.execution import compiled
from specbench.models.network.skipping import shares
from specbench.spec import RunSpec

NAME = "transformers"
EAGER = "generate() as it comes, with a cache that grows; --tier compile gives its best form"
COMPILED = "generate() with a static cache and compiled steps; assisted generation takes neither"
INSTEAD = "use --backend native"


def open_pair(specs: Sequence[RunSpec]) -> "Transformers":
    """The pair of some specs, checked without weights. Raises UsageError or UnusableModelError."""
    found = Transformers(native.open_pair([spec.with_(tier="eager") for spec in specs]), specs)
    for spec in specs:
        way_of(spec, found.inner.pair)
    return found


@dataclass(eq=False)
class Transformers:
    """The networks of a pair, and calls of `generate()` on twins that share their weights."""

    inner: Native
    specs: Sequence[RunSpec]
    name: str = NAME
    networks: None = None
    _longest: int = 0
    _calls: dict[RunSpec, tuple[int, Call]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.device, self.context = self.inner.device, self.inner.context
        self.chat, self.encode = self.inner.chat, self.inner.encode
        self.scores, self.demand = self.inner.scores, self.inner.demand
        self.tier, about = "eager", EAGER
        if self.specs[0].tier == "compile":
            self.tier, about = "compile", COMPILED
            compiled.choose("compile", self.device)  # requires a compiler
        self.execution = f"tier {self.tier}: transformers {transformers.__version__}, {about}"

    @property
    def warnings(self) -> Sequence[str]:
        return self.inner.warnings

    def describe(self) -> dict[str, Any]:
        found = {**self.inner.describe(), "tier_resolved": self.tier}
        if self.inner.pair.foreign:
            found["vocabulary_resolved"] = ", ".join(sorted({rule_of(spec) for spec in self.specs}))
        return found

    def notes(self, spec: RunSpec) -> Sequence[str]:
        return notes_on(way_of(spec, self.inner.pair), self.tier)

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

    def prepare(self, spec: RunSpec, longest: int) -> Decode:
        way, longest = way_of(spec, self.inner.pair), max(longest, self._longest)
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
        network, settings = self.inner.network, generate.settings_of(spec, self.inner.eos(spec))
        target = network("target")
        if way.kind == "plain" and self.tier == "compile":
            return generate.compiled(target, settings, longest + spec.max_new_tokens)
        if way.kind == "plain":
            return generate.watched(generate.twin(target), settings, {})
        if way.kind == "lookup":
            more = {"prompt_lookup_num_tokens": way.k, "max_matching_ngram_size": way.ngram}
            return generate.watched(generate.twin(target), settings, {}, **more)
        if way.kind == "early exit":
            return generate.early_exit(target, settings, way.k, way.layers)
        roles = self.inner.pair.roles
        if (head := roles[way.model].head) is not None:
            return generate.mtp(target, settings, head.head.folder)
        tokenizers = [roles[name].tokenizer for name in ("target", way.model)] if way.kind == "universal" else []
        return generate.assisted(target, network(way.model), settings, way.k, tokenizers)


def refuse_more(traces: Sequence[Trace], way: Way) -> None:
    """UnusableModelError if more than K tokens were drafted: the row would show another K. A
    draft re-tokenised with the target's tokenizer may have more."""
    most = max((one.drafted for trace in traces for one in trace.rounds), default=0)
    if most > way.k and way.kind != "universal":
        raise UnusableModelError(
            f"transformers {transformers.__version__} drafted {most} tokens in a round of K = {way.k}: "
            "use --backend native"
        )


def way_of(spec: RunSpec, pair: CheckedPair) -> Way:
    """The way of a spec. UsageError, naming the native backend, if transformers has none."""
    refuse_settings(NAME, spec)
    parts = drafting(NAME, spec)
    if parts is None:
        return PLAIN
    number, fields = parts.k(spec), parts.fields
    if isinstance(number, int) and parts.drafter == "ModelDrafter":
        name = str(fields["model"])
        if name in pair.kept:
            base, layers = pair.kept[name]
            if base != "target" or layers != list(range(len(layers))) or shares(name) or name in pair.cuts:
                raise UsageError(
                    f"--backend transformers: its early exit drafts with the first layers of the target and a cache of "
                    f"their own, and {name} is something else: {INSTEAD}"
                )
            return Way("early exit", number, layers=len(layers))
        if pair.roles[name].head is not None:
            return from_mtp(name, pair.roles[name], number, pair.roles["target"])
        if name in pair.foreign:
            refuse_vocabulary(spec, name, pair)
            return Way("universal", number, name)
        return Way("assisted", number, name)
    if isinstance(number, int) and fields.get("least", 1) == 1:
        return Way("lookup", number, ngram=fields.get("most", 3))
    raise no_method(NAME, spec, parts)


def from_mtp(name: str, role: Role, k: int, target: Role) -> Way:
    """A chain from the MTP modules of the target. UsageError for any other trained head, and for another K."""
    assert role.head is not None
    if role.head.head.kind != "mtp" or role.checkpoint.source != target.checkpoint.source:
        raise UsageError(
            f"--backend transformers: the {name} is a trained head, and only MTP modules in the files of the target "
            f"can run there: {INSTEAD}"
        )
    modules = getattr(target.config.get_text_config(decoder=True), "num_mtp_layers", None)
    if not modules:
        raise UsageError(f"--backend transformers: it knows no MTP modules of {target.config.model_type}: {INSTEAD}")
    if k != modules:
        raise UsageError(
            f"--backend transformers: generate(use_mtp=True) drafts one token with each of the {modules} MTP modules "
            f"of the target: use --k {modules}, or {INSTEAD}"
        )
    return Way("mtp", k, name)


def refuse_vocabulary(spec: RunSpec, name: str, pair: CheckedPair) -> None:
    """UsageError if universal assisted decoding does not support the settings of a draft with another tokenizer."""
    sizes = {int(pair.roles[one].config.get_text_config(decoder=True).vocab_size) for one in ("target", name)}
    if len(sizes) == 1:
        raise UsageError(
            f"--backend transformers: the {name} has another tokenizer with as many tokens as the target's, which "
            f"generate() takes for the same one: {INSTEAD}"
        )
    if spec.vocabulary not in (None, rule_of(spec)):
        raise UsageError(
            f"--backend transformers: at temperature {spec.temperature:g} generate() drafts by the rule "
            f"{rule_of(spec)}: leave out --vocabulary {spec.vocabulary}, or {INSTEAD}"
        )


def rule_of(spec: RunSpec) -> str:
    """The rule of universal assisted decoding: strings when greedy, common tokens when sampling."""
    return "strings" if spec.temperature == 0 else "common"


def notes_on(way: Way, tier: str) -> Sequence[str]:
    """Differences of this engine that change numbers."""
    first = "" if way.kind == "mtp" else " and judges the first draft at once"
    found = [f"its first pass reads the prompt{first}; what a later pass takes of it counts as decoding, the rest as "
             "prefill"]  # fmt: skip
    if way.kind == "plain":
        return found
    found.append("alpha is accepted ÷ tested, counted from the passes")
    if way.kind == "mtp":
        found.append("the first token comes with the prompt and is a round without a draft")
    else:
        found.append("a draft ends one token before the last requested one, and at the end of the sequence")
    if tier == "compile":
        found.append("the baseline is compiled, assisted generation is not: it refuses a static cache")
    if way.kind == "universal":
        found.append("texts are re-tokenised in every round, with ten tokens before them")
        found.append(
            "vocabularies are passed in the order of their ids; without that, sampling is not lossless in 5.23"
        )
    return found
