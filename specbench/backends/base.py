"""What a backend is: an engine with one pair of checkpoints, as jobs use it; and what engines besides ours can do.

What an engine lacks it declares as None; nothing is ever asked for with getattr or isinstance.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
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
Loading = Callable[[str, int, int], None]  # (what is done with which model, bytes done, bytes in all)
Scores = Callable[[Sequence[int], int, int], torch.Tensor]  # see `Backend.scores`


def unseen(what: str, done: int, total: int) -> None:
    """A `Loading` that shows nothing."""


class Networks(Protocol):
    """The networks of a pair in this process, for what looks inside a round: calibration, searches and traces."""

    device: torch.device
    context: int
    costs: Costs | None  # of a round on this machine, for `--k auto`; set by the job that has measured them

    @property
    def width(self) -> int:
        """The length of a row of logits."""
        ...

    @property
    def depth(self) -> int:
        """The number of layers of the target."""
        ...

    @property
    def tokenizer(self) -> Any:
        """The target's, which is the draft's as well."""
        ...

    def network(self, name: str) -> Any:
        """The module of a model that has been loaded."""
        ...

    def hold(self, name: str, network: Any) -> None:
        """Take in a network that was made in this process, by the name that methods have for it: one without
        recurrent state, of the target's vocabulary, in its dtype and on its device. It replaces one of that name."""
        ...

    def law(self, spec: RunSpec) -> Sampling:
        """How logits become the distributions of every model of a spec."""
        ...

    def eos(self, spec: RunSpec) -> list[int]:
        """The ids that end a sequence; none under --ignore-eos."""
        ...

    @property
    def plain(self) -> Collection[str]:
        """The names of those models that were loaded and are networks over the target's tokens."""
        ...

    def models(self, spec: RunSpec) -> Mapping[str, Model]:
        """Fresh models by name: own caches, shared weights. UsageError where
        one of those that the method names has no rows over the target's tokens."""
        ...

    def method(self, spec: RunSpec) -> Speculate:
        """The method of a spec over fresh models."""
        ...

    def source(self, spec: RunSpec, seeds: Sequence[int]) -> Source:
        """Where the draws of a spec come from: one seed per row."""
        ...

    def experts(self, spec: RunSpec, prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> dict[str, float] | None:
        """The experts that the target's passes touch as columns, None of a target without any: counted while
        prompts are decoded in the rows of one batch with the method of a spec, step by step and untimed."""
        ...

    def glance(self, spec: RunSpec, prompts: Sequence[Sequence[int]], seed: int) -> list[Trace]:
        """The first tokens after the prompts, decoded without the compiled
        code of the tier: enough for a first estimate, not for a result."""
        ...

    def gradless(self) -> AbstractContextManager[None]:
        """Without gradients; `prepare` takes care of it by itself."""
        ...

    def prepare(self, spec: RunSpec, longest: int) -> Decode:
        """See `Backend.prepare`."""
        ...


@dataclass(frozen=True)
class Held:
    """Cells with one baseline, whose arms are all held ready at once, and the tokens of their longest prompt."""

    specs: Sequence[RunSpec]
    prompt: int

    @property
    def arms(self) -> list[RunSpec]:
        """The baseline and every other cell."""
        return [self.specs[0].baseline, *(spec for spec in self.specs if spec.method != BASELINE)]


class Backend(Protocol):
    """An engine and the pair of some specs, checked as far as that is possible without weights.

    The runner times nothing itself: it reads the traces. Between `load` and `unload` any
    number of specs of the pair may be prepared, and all that are decode on the same weights.
    """

    @property
    def name(self) -> str:
        """What a user calls the engine."""
        ...

    @property
    def device(self) -> torch.device:
        """Where it computes, as far as this process knows; it is part of the environment that a run records."""
        ...

    @property
    def context(self) -> int:
        """The most tokens of a sequence, new ones and drafts included."""
        ...

    @property
    def execution(self) -> str:
        """How decodes are executed, in a few words for the user. `prepare` may change it, for all that was prepared."""
        ...

    @property
    def warnings(self) -> Sequence[str]:
        """What a user should know about the pair, one line each; `load` may add some."""
        ...

    @property
    def scores(self) -> Scores | None:
        """How diverging greedy output is judged; None where the engine gives no logits.

        (ids, start, block) → [len(ids) − start, V] logits of the target along known ids from token start − 1 on, fed
        `block` at a time. A baseline computes block 1, verification block K + 1; their difference is numerical.
        """
        ...

    @property
    def networks(self) -> Networks | None:
        """What calibration, searches and traces look into; None where the engine keeps it to itself."""
        ...

    @property
    def chat(self) -> Chat | None:
        """How the target's tokenizer writes chats; None where the engine takes plain text alone."""
        ...

    def encode(self, text: str) -> list[int]:
        """Token ids of a plain prompt, special tokens as the target's tokenizer adds them."""
        ...

    def describe(self) -> dict[str, Any]:
        """What the names of the pair stood for, as columns: target_source, target_commit, dtype_resolved …"""
        ...

    def notes(self, spec: RunSpec) -> Sequence[str]:
        """What of this engine a reader of a cell's numbers must know, because it changes them; for its row."""
        ...

    def demand(self, held: Sequence[Held]) -> Demand | None:
        """The memory that measuring these cells takes, group after group, weights included; None where nobody knows."""
        ...

    def frugal(self) -> "Backend | None":
        """The same pair in the way of execution that takes the least memory;
        None where that is the present one, or another was asked for."""
        ...

    def judge(self) -> "Backend | None":
        """What scores its text again: a backend with networks of the same
        checkpoints in this process, loaded; None if there is no such backend."""
        ...

    def load(self, longest: int = 0, watch: Loading = unseen) -> None:
        """Read the weights; no prompt will have more than `longest` tokens. Raises UnusableModelError.

        `watch` hears what is being fetched or read, how many bytes of it are done, and how many there are.
        """
        ...

    def unload(self) -> None:
        """Forget the weights and everything that was made of them."""
        ...

    def prepare(self, spec: RunSpec, longest: int) -> Decode:
        """A function that decodes prompts of up to `longest` tokens as `spec` says; all that is slow is done here.

        It returns one trace per prompt, decoded with a seed each: equal seeds give equal tokens.
        """
        ...

    def keep(self, specs: Sequence[RunSpec]) -> None:
        """Forget what was prepared for other specs than these: their caches, and what was compiled or captured."""
        ...


def networks_of(backend: Backend, purpose: str) -> Networks:
    """The networks of a backend; UsageError, saying what needs them, where it gives none."""
    if backend.networks is None:
        raise UsageError(
            f"{purpose} looks into the networks of a pair, and the backend {backend.name} gives no access to them: "
            "use the native backend"
        )
    return backend.networks


@dataclass(frozen=True)
class Can:
    """What an engine besides ours can do.

    settings: those that it has besides ANYWHERE, and which values of them besides the default.
    drafters: the parts of method files that it drafts with, and the rules that it judges their drafts
    by; None: all. why: the reason for settings that it lacks. has: its methods in words.
    """

    settings: Mapping[str, Collection[Any] | None]
    why: Mapping[str, str]
    drafters: Mapping[str, Collection[str] | None] = field(default_factory=dict)
    has: str = ""
    refusal: str = "{option}: {why}: leave it out, or use --backend native"


ANYWHERE = (  # settings, and groups of them, that any engine has or none needs; of others its row says so
    "pair", "revisions", "device", "method", "data", "excerpt", "chat", "limit", "stopping", "length", "draws",
    "choices", "k", "confidence", "acceptance_source", "temperature", "top_k", "top_p", "dtype", "aux_layers",
    "draft_vocabulary", "vocabulary", "backend", "engine_option", "url", "baseline_url", "arrivals",
)  # fmt: skip
POINT_MASS = ("Rejection", "TokenMatch")  # the same where a draft is a point mass, as one that was looked up is
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
            "acceptance": "its verdicts cannot be made up",
            "tier": "it captures no graphs of whole rounds",
            "device_map": "the weights are shared with the native backend",
            "draft_device": "its assistant lies beside its model",
            "tensor_parallel": "its processes would not decide together",
        },
        drafters={"PromptLookup": POINT_MASS, "ModelDrafter": ("Rejection",)},
        has="generate() has only chains from a draft or from the first layers of the target, judged token by token, "
            "and prompt lookup",
    ),
    "vllm": Can(
        settings={"batch": None, "tier": ("auto", "compile")},
        why={
            "schedule": "K is the same in every round of an engine",
            "acceptance": "its verdicts cannot be made up on every device",
            "eta": "it has no eta sampling",
            "min_p": "it heeds no such bound while it drafts",
            "quantize": "it reads the checkpoints as they are",
            "draft_quantize": "it reads the checkpoints as they are",
            "draft_dtype": "its draft has the dtype of the target",
            "device_map": "it divides models by engine options of its own",
            "tensor_parallel": "it splits models by engine options of its own",
            "draft_device": "it places models by engine options of its own",
            "attn_implementation": KERNELS,
            "tier": "take eager, or compile, which captures graphs on a GPU",
        },
        drafters={"PromptLookup": POINT_MASS, "Suffix": POINT_MASS, "ModelDrafter": ("Rejection", "Block")},
        has="it has only chains from a draft or an EAGLE-3 head, judged token by token or as a block, prompt lookup "
            "and suffix decoding",
    ),
    "llama.cpp": Can(
        settings={"batch": None, "min_p": None, "draft_dtype": None, "tier": ("auto",)},
        why={
            "schedule": "K is the same in every round of a server",
            "acceptance": "its verdicts cannot be made up",
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
            "attn_implementation": None, "tier": None, "chat_template": ("none",),
        },
        why=dict.fromkeys(
            ("schedule", "acceptance", "eta", "quantize", "tensor_parallel", "draft_device", "chat_template"),
            "for the server to decide",
        ),
        refusal="{option} is {why}: leave it out, or start it with that",
    ),
}  # fmt: skip


def refuse_settings(engine: str, spec: RunSpec) -> None:
    """UsageError for a setting that an engine besides ours does not have."""
    can, every = CAN[engine], declared(RunSpec)
    doubtful = [name for name, one in every.items() if not {name, one.setting.group} & {*ANYWHERE}]
    for name in dict.fromkeys((*can.why, *doubtful)):
        value, values = getattr(spec, name), can.settings.get(name, ())
        if value != every[name].default and values is not None and value not in values:
            option, why = f"--{name.replace('_', '-')}", can.why.get(name, "it has no such setting")
            raise UsageError(f"--backend {engine}: {can.refusal.format(option=option, why=why)}")


@dataclass(frozen=True)
class Parts:
    """The drafter of a method, its fields, and the rule that judges; all by name."""

    drafter: str
    fields: Mapping[str, Any]
    rule: str

    def k(self, spec: RunSpec) -> Any:
        """How many tokens are drafted in a round."""
        found = self.fields.get("k")
        return spec.k if found == "k" else found


def parts_of(spec: RunSpec) -> Parts:
    """The parts of a method as its file names them."""
    outermost = read_method(spec.method)["method"]
    inner = outermost.get("Speculate") if isinstance(outermost, dict) else None
    if not isinstance(inner, dict) or inner.get("model") != "target":
        return Parts("something else", {}, "")
    drafter, rule = inner.get("drafter"), inner.get("verifier")
    ((name, fields),) = drafter.items() if isinstance(drafter, dict) else [(str(drafter), {})]
    return Parts(str(name), dict(fields or {}), rule if isinstance(rule, str) else "a rule with settings")


def drafting(engine: str, spec: RunSpec) -> Parts | None:
    """The parts of a method that an engine besides ours drafts with; None where nothing
    is drafted. UsageError, naming the native backend, for a method that it does not have."""
    can, parts = CAN[engine], parts_of(spec)
    if parts.drafter == "NoDraft" or spec.k == 0:
        return None
    rules = can.drafters.get(parts.drafter, ())
    if rules is not None and parts.rule not in rules:
        raise no_method(engine, spec, parts)
    return parts


def no_method(engine: str, spec: RunSpec, parts: Parts) -> UsageError:
    """That an engine does not have a method."""
    what = f"{parts.rule} over {parts.drafter}"
    if engine == "transformers" and parts.drafter != "ModelDrafter":
        what = parts.drafter
    has = f"{what}, and {CAN[engine].has}"
    return UsageError(f"--backend {engine}: --method {spec.method} is {has}: use --backend native")
