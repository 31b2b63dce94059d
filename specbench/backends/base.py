"""The backend protocol: an engine with one pair of checkpoints, and the abilities of engines besides ours.

A missing ability is declared as None; no code uses getattr or isinstance to find out.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from specbench.chat import Chat
from specbench.decoding.loop import Speculate
from specbench.decoding.method_files import read_method
from specbench.decoding.protocols import Model
from specbench.decoding.randomness import Source
from specbench.errors import UsageError
from specbench.metrics import Trace
from specbench.models.network.sampling import Sampling
from specbench.settings import declared
from specbench.spec import BASELINE, RunSpec
from specbench.theory.memory import Demand
from specbench.theory.optimum import Costs

Decode = Callable[[Sequence[Sequence[int]], Sequence[int]], list[Trace]]  # prompts as token ids, one seed per prompt
Loading = Callable[[str, int, int], None]  # (step and model, bytes done, total bytes)
Scores = Callable[[Sequence[int], int, int], torch.Tensor]  # see `Backend.scores`


def unseen(what: str, done: int, total: int) -> None:
    """A `Loading` that shows nothing."""


class Networks(Protocol):
    """The networks of a pair in this process, for jobs that look inside a round: calibration, searches and traces."""

    device: torch.device
    context: int
    width: int  # of a row of logits
    tokenizer: Any  # the target's, which the draft shares
    costs: Costs | None  # of a round on this machine, for `--k auto`; set by the job that measured them

    @property
    def depth(self) -> int:
        """The number of layers of the target."""

    def network(self, name: str) -> Any:
        """The module of a loaded model."""

    def sampling(self, spec: RunSpec) -> Sampling:
        """How logits become the distributions of every model of a spec."""

    def eos(self, spec: RunSpec) -> list[int]:
        """The ids that end a sequence; none under --ignore-eos."""

    @property
    def plain(self) -> Collection[str]:
        """The names of the loaded models that are networks over the target's tokens."""

    def models(self, spec: RunSpec) -> Mapping[str, Model]:
        """Fresh models by name: own caches, shared weights. UsageError if one has no rows over the target's tokens."""

    def alone(self, spec: RunSpec, part: Callable[[], object]) -> Callable[[], object]:
        """A pass or a draft of `models`, executed as in the rounds of a spec: compiled or captured by its first call,
        and always on the same objects. Random draws are executed as they are."""

    def method(self, spec: RunSpec) -> Speculate:
        """The method of a spec over fresh models."""

    def source(self, spec: RunSpec, seeds: Sequence[int]) -> Source:
        """The random source of a spec: one seed per row."""

    def experts(self, spec: RunSpec, prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> dict[str, float] | None:
        """The experts used by the target's passes, as columns; None for a target without experts. They
        are counted in an untimed, stepwise decode of the prompts as one batch with the spec's method."""

    def glance(self, spec: RunSpec, prompts: Sequence[Sequence[int]], seed: int) -> list[Trace]:
        """The first tokens after the prompts, decoded without the tier's compiled code: enough for an estimate."""

    def gradless(self) -> AbstractContextManager[None]:
        """Disable gradients; `prepare` does this by itself."""

    def prepare(self, spec: RunSpec, longest: int) -> Decode:
        """See `Backend.prepare`."""


@dataclass(frozen=True)
class Held:
    """Cells with one baseline, whose arms are ready at the same time, and the tokens of their longest prompt."""

    specs: Sequence[RunSpec]
    prompt: int

    @property
    def arms(self) -> list[RunSpec]:
        return [self.specs[0].baseline, *(spec for spec in self.specs if spec.method != BASELINE)]


class Backend(Protocol):
    """An engine and the pair of some specs, checked as far as possible without weights.

    The runner times nothing itself: it reads the traces. Between `load` and `unload` any number
    of specs of the pair may be prepared; all of them use the same weights.
    """

    name: str  # the engine's, for the user
    device: torch.device  # as far as this process knows it; a run records it as part of the environment
    context: int  # the maximum length of a sequence in tokens, new ones and drafts included

    @property
    def execution(self) -> str:
        """How decodes are executed, in a few words for the user. `prepare` may change it for everything prepared."""

    @property
    def warnings(self) -> Sequence[str]:
        """Warnings about the pair, one line each; `load` may add some."""

    @property
    def scores(self) -> Scores | None:
        """Scores for judging greedy output that diverges; None if the engine gives no logits.

        (ids, start, block) → [len(ids) − start, V] logits of the target along known ids from token start − 1 on,
        fed `block` at a time. A baseline computes block 1, verification block K + 1; their difference is numerical.
        """

    @property
    def networks(self) -> Networks | None:
        """The networks for calibration, searches and traces; None if the engine does not expose them."""

    @property
    def chat(self) -> Chat | None:
        """The chat format of the target's tokenizer; None if the engine takes plain text only."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a plain prompt, with the special tokens that the target's tokenizer adds."""

    def describe(self) -> dict[str, Any]:
        """The resolved pair as columns, such as target_source, target_commit and dtype_resolved."""

    def notes(self, spec: RunSpec) -> Sequence[str]:
        """Properties of this engine that change a cell's numbers; notes for its row."""

    def demand(self, held: Sequence[Held]) -> Demand | None:
        """The memory needed to measure these cells, group by group, weights included; None if unknown."""

    def frugal(self) -> "Backend | None":
        """The same pair in the mode that needs the least memory; None if it is already used, or the user chose one."""

    def judge(self) -> "Backend | None":
        """The loaded networks of the same checkpoints in this process, which score this one's output; None if none."""

    def load(self, longest: int = 0, watch: Loading = unseen) -> None:
        """Read the weights; no prompt will have more than `longest` tokens. Raises UnusableModelError."""

    def unload(self) -> None:
        """Free the weights and everything derived from them."""

    def prepare(self, spec: RunSpec, longest: int) -> Decode:
        """A function that decodes prompts of up to `longest` tokens as `spec` requires; all slow work is done here.

        The function returns one trace per prompt; each prompt has its own seed, and equal seeds give equal tokens.
        """

    def keep(self, specs: Sequence[RunSpec]) -> None:
        """Free the caches and the compiled or captured passes of all other specs."""


def networks_of(backend: Backend, purpose: str) -> Networks:
    """The networks of a backend. UsageError naming `purpose` if it exposes none."""
    if backend.networks is None:
        raise UsageError(
            f"{purpose} reads the networks of a pair, and the backend {backend.name} gives no access to them: use the "
            "native backend"
        )
    return backend.networks


@dataclass(frozen=True)
class Can:
    """What an engine besides ours supports.

    settings: supported settings in addition to ANYWHERE, with their supported values other than
    the default. drafters: supported drafters of method files, and the rules that can judge their
    drafts (None: all). why: the reason why other settings are missing. has: its methods in words.
    """

    settings: Mapping[str, Collection[Any] | None]
    why: Mapping[str, str]
    drafters: Mapping[str, Collection[str] | None] = field(default_factory=dict)
    has: str = ""
    refusal: str = "{option}: {why}: leave it out, or use --backend native"


ANYWHERE = (  # settings and groups supported by any engine, or needed by none; an engine's entry lists others
    "pair", "revisions", "device", "method", "data", "excerpt", "chat", "limit", "stopping", "length", "draws",
    "choices", "k", "confidence", "acceptance_source", "temperature", "top_k", "top_p", "dtype", "aux_layers",
    "draft_vocabulary", "vocabulary", "backend", "engine_option", "url", "baseline_url", "arrivals", "burstiness",
    "slo", "endpoint", "request_field", "server_args", "spec_config", "spec_args",
)  # fmt: skip
POINT_MASS = ("Rejection", "TokenMatch")  # the same if a draft is a point mass, as in lookup
KERNELS = "it has kernels of its own"
CAN = {
    "transformers": Can(
        settings={
            "eta": None, "min_p": None, "quantize": None, "draft_quantize": None, "draft_dtype": None,
            "attn_implementation": None, "tier": ("auto", "compile"),
        },
        why={
            "batch": "its assisted generation decodes one prompt at a time",
            "schedule": "K must be the same in every round to be comparable",
            "acceptance": "acceptance cannot be simulated",
            "tier": "it captures no graphs of whole rounds",
            "device_map": "the weights are shared with the native backend",
            "draft_device": "its assistant must be on the same device",
            "tensor_parallel": "its processes would sample independently",
        },
        drafters={"PromptLookup": POINT_MASS, "ModelDrafter": ("Rejection",)},
        has="generate() has only chains from a draft or from the first layers of the target, judged token by token, "
            "and prompt lookup",
    ),
    "vllm": Can(
        settings={"batch": None, "tier": ("auto", "compile")},
        why={
            "schedule": "K is the same in every round of an engine",
            "acceptance": "acceptance cannot be simulated on every device",
            "eta": "it has no eta sampling",
            "min_p": "it ignores such a limit while drafting",
            "quantize": "it loads checkpoints as they are stored",
            "draft_quantize": "it loads checkpoints as they are stored",
            "draft_dtype": "its draft has the dtype of the target",
            "device_map": "it divides models by engine options of its own",
            "tensor_parallel": "it splits models by engine options of its own",
            "draft_device": "it places models by engine options of its own",
            "attn_implementation": KERNELS,
            "tier": "use eager, or compile, which captures graphs on a GPU",
        },
        drafters={"PromptLookup": POINT_MASS, "Suffix": POINT_MASS, "ModelDrafter": ("Rejection", "Block")},
        has="it has only chains from a draft or an EAGLE-3 head, judged token by token or as a block, prompt lookup "
            "and suffix decoding",
    ),
    "llama.cpp": Can(
        settings={"batch": None, "min_p": None, "draft_dtype": None, "tier": ("auto",)},
        why={
            "schedule": "K is the same in every round of a server",
            "acceptance": "acceptance cannot be simulated",
            "eta": "it has no eta sampling",
            "quantize": "name a GGUF file that is quantised",
            "draft_quantize": "name a GGUF file that is quantised",
            "device_map": "it divides models by options of its own",
            "tensor_parallel": "it splits models by options of its own",
            "draft_device": "it places models by options of its own",
            "attn_implementation": KERNELS,
            "tier": "it has one way to execute rounds",
        },
        drafters={"PromptLookup": None, "ModelDrafter": POINT_MASS},
        has="it has only chains from a draft and prompt lookup",
    ),
    "openai": Can(
        settings={
            "batch": None, "min_p": None, "draft_quantize": None, "draft_dtype": None, "device_map": None,
            "attn_implementation": None, "tier": None, "chat_template": ("none", "always"),
        },
        why=dict.fromkeys(
            ("schedule", "acceptance", "eta", "quantize", "tensor_parallel", "draft_device", "chat_template"),
            "for the server to decide",
        ),
        refusal="{option} is {why}: leave it out, or start the server with it",
    ),
}  # fmt: skip
STARTED = replace(CAN["openai"], refusal="{option} is {why}: leave it out, or use --server-args or --spec-args")
CAN |= dict.fromkeys(("vllm-serve", "sglang", "llama-server"), STARTED)


def refuse_settings(engine: str, spec: RunSpec) -> None:
    """UsageError for a setting that an engine besides ours does not support."""
    can, every = CAN[engine], declared(RunSpec)
    doubtful = [name for name, one in every.items() if not {name, one.setting.group} & {*ANYWHERE}]
    for name in dict.fromkeys((*can.why, *doubtful)):
        value, values = getattr(spec, name), can.settings.get(name, ())
        if value != every[name].default and values is not None and value not in values:
            option, why = f"--{name.replace('_', '-')}", can.why.get(name, "it has no such setting")
            raise UsageError(f"--backend {engine}: {can.refusal.format(option=option, why=why)}")


@dataclass(frozen=True)
class Parts:
    """The drafter of a method, its fields, and the verification rule; all by name."""

    drafter: str
    fields: Mapping[str, Any]
    rule: str

    def k(self, spec: RunSpec) -> Any:
        """The number of tokens drafted per round."""
        found = self.fields.get("k")
        return spec.k if found == "k" else found


def parts_of(spec: RunSpec) -> Parts:
    """The parts of a method as named in its file."""
    outermost = read_method(spec.method)["method"]
    inner = outermost.get("Speculate") if isinstance(outermost, dict) else None
    if not isinstance(inner, dict) or inner.get("model") != "target":
        return Parts("something else", {}, "")
    drafter, rule = inner.get("drafter"), inner.get("verifier")
    ((name, fields),) = drafter.items() if isinstance(drafter, dict) else [(str(drafter), {})]
    return Parts(str(name), dict(fields or {}), rule if isinstance(rule, str) else "a rule with settings")


def drafting(engine: str, spec: RunSpec) -> Parts | None:
    """The parts of a method that another engine drafts with; None if nothing is drafted.
    UsageError, naming the native backend, for an unsupported method."""
    can, parts = CAN[engine], parts_of(spec)
    if parts.drafter == "NoDraft" or spec.k == 0:
        return None
    rules = can.drafters.get(parts.drafter, ())
    if rules is not None and parts.rule not in rules:
        raise no_method(engine, spec, parts)
    return parts


def no_method(engine: str, spec: RunSpec, parts: Parts) -> UsageError:
    """The error for a method that an engine does not support."""
    what = f"{parts.rule} over {parts.drafter}"
    if engine == "transformers" and parts.drafter != "ModelDrafter":
        what = parts.drafter
    has = f"{what}, and {CAN[engine].has}"
    return UsageError(f"--backend {engine}: --method {spec.method} is {has}: use --backend native")
