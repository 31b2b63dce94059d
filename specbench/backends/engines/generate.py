"""`generate()` on a twin of a loaded network: the same tensors with transformers' own code, attention and caches.

The passes of a call show where rounds begin, what they draft and how long each takes.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import CompileConfig, GenerationConfig, StaticCache
from transformers.cache_utils import MtpCache
from transformers.generation.candidate_generator import MTPCandidateGenerator

from specbench.decoding.timing import Clock, clock_for
from specbench.errors import UnusableModelError
from specbench.metrics import STEP, RoundCounts, Trace, outcome
from specbench.models.execution.compiled import ON_CPU, ON_CUDA
from specbench.models.network.skipping import shared_tensors
from specbench.spec import RunSpec

HONOURED = {"num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": 0.0}
LOOKBEHIND = {"assistant_lookbehind": 10, "target_lookbehind": 10}  # transformers' own
Kind = Literal["plain", "assisted", "universal", "lookup", "early exit", "mtp"]


@dataclass(frozen=True)
class Way:
    """A kind of generation with K drafted tokens: from the named model, from the first `layers` of the
    target, by n-gram lookup up to the given size, or one token from each of the K named MTP modules."""

    kind: Kind
    k: int = 0
    model: str = ""
    layers: int = 0
    ngram: int = 0


PLAIN = Way("plain")


def twin(network: Any) -> Any:
    """The same network with the same tensors, but transformers' own modules, configuration and attention. The
    checkpoint's generation settings are dropped: penalties and the like would change the sampling distribution."""
    found = copy.deepcopy(network, shared_tensors(network))
    if found.config._attn_implementation != "eager":
        found.set_attn_implementation("sdpa")
    found.generation_config = generation(do_sample=False)
    return found


def generation(**settings: Any) -> Any:
    """A GenerationConfig. It names a padding token only to avoid a warning; there is no padding."""
    return GenerationConfig(**settings, pad_token_id=0)  # type: ignore[no-untyped-call]


def settings_of(spec: RunSpec, eos: Sequence[int]) -> dict[str, Any]:
    """The length and sampling parameters of a spec as generation settings."""
    found: dict[str, Any] = {"max_new_tokens": spec.max_new_tokens, "eos_token_id": list(eos) or None}
    if spec.temperature == 0:
        return {**found, "do_sample": False}
    sampling = {"top_p": spec.top_p, "min_p": spec.min_p, "eta_cutoff": spec.eta}
    drawn = {"do_sample": True, "temperature": spec.temperature, "top_k": spec.top_k or 0}  # its default is 50
    return {**found, **drawn, **{name: value for name, value in sampling.items() if value is not None}}


@dataclass
class Watch:
    """The record of one call at a time. drafts: (tokens before a round, the tokens that it
    drafted); passes: of the target, and of the drafting network."""

    clock: Clock
    drafts: list[tuple[int, Tensor]] = field(default_factory=list)
    passes: list[int] = field(default_factory=lambda: [0, 0])
    drafting: bool = False

    def begin(self) -> None:
        self.drafts, self.passes, self.drafting = [], [0, 0], False
        self.clock.start()

    def target(self, network: Any) -> None:
        """Watch the passes of a target, whose first layers may also draft."""
        network.register_forward_pre_hook(lambda *_: None if self.drafting else self.before())
        network.register_forward_hook(lambda *_: self.after(self.drafting))

    def generator(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the method that makes a candidate generator so that every draft is recorded."""

        def made(*args: Any, **kwargs: Any) -> Any:
            found = make(*args, **kwargs)
            propose = found.get_candidates

            def proposed(ids: Tensor, **more: Any) -> tuple[Tensor, Tensor | None]:
                self.before()
                self.drafting = True
                candidates, logits = propose(ids, **more)
                self.drafting = False
                self.clock.lap("draft")
                self.drafts.append((ids.shape[1], candidates[:, ids.shape[1] :]))
                return candidates, logits

            found.get_candidates = proposed
            return found

        return made

    def deepest(self, layer: Any) -> None:
        """Watch the last layer of a target that exits early: a draft must not run it."""

        def called(*_: Any) -> None:
            if self.drafting:
                raise UnusableModelError(
                    "the code of this architecture ignores an early exit, so that all layers would draft: use "
                    "--backend native"
                )

        layer.register_forward_pre_hook(called)

    def before(self) -> None:
        """Count the time since the last pass or draft as verification, or as the beginning of the call."""
        self.clock.lap("accept" if self.passes[0] else "prefill/begin")

    def after(self, drafting: bool) -> None:
        """A pass has ended; the first one of each network reads the prompt."""
        self.passes[drafting] += 1
        name = "draft" if drafting else "verify"
        self.clock.lap(f"prefill/{name}" if self.passes[drafting] == 1 else name)

    def trace(self, prompt: int, tokens: Sequence[int], new: int, seconds: float, spans: dict[str, float]) -> Trace:
        """The trace of a call that emitted these tokens, at most `new`, after a prompt of `prompt` tokens."""
        prefill = spans.get("prefill/begin", 0.0)
        found = {name: spans.get(name, 0.0) for name in ("draft", "verify", "accept")}
        for name, passes in zip(("verify", "draft"), self.passes, strict=True):
            first = spans.get(f"prefill/{name}", 0.0)
            later = min(first, found[name] / (passes - 1)) if passes > 1 else first
            prefill, found[name] = prefill + first - later, found[name] + later
        return Trace(tuple(tokens), self.rounds(prompt, tokens, new), seconds - prefill, prefill, found)

    def rounds(self, prompt: int, tokens: Sequence[int], new: int) -> tuple[RoundCounts, ...]:
        """The counts of every round."""
        if not self.drafts:
            return (STEP,) * len(tokens)
        if len(self.drafts) != self.passes[0]:
            raise RuntimeError(f"{len(self.drafts)} drafts were judged in {self.passes[0]} passes of the target")
        begins = [begun - prompt for begun, _ in self.drafts]
        emitted = [tokens[a:b] for a, b in zip(begins, [*begins[1:], len(tokens)], strict=True)]
        drafted = [ids[0].tolist() for _, ids in self.drafts]
        left = [new - begun for begun in begins]
        return tuple(counted(*one) for one in zip(drafted, emitted, left, strict=True))


@dataclass(eq=False)
class Call:
    """One way to call `generate()`, with its arguments. inductor: settings that hold during a
    call, as dynamo reads some of them before it reads the compiler's own."""

    network: Any
    watch: Watch
    options: dict[str, Any]
    inductor: Mapping[str, Any] = field(default_factory=dict)

    @torch.no_grad()
    def __call__(self, prompt: Sequence[int], seed: int) -> Trace:
        """Decode one prompt. Equal seeds give equal tokens."""
        ids = torch.tensor([list(prompt)], device=self.network.device)
        if (cache := self.options.get("past_key_values")) is not None:
            cache.reset()
        cuda = [ids.device] if ids.device.type == "cuda" else []
        with torch.random.fork_rng(cuda), torch._inductor.config.patch(dict(self.inductor)):
            torch.manual_seed(seed)  # transformers draws from torch's generators
            mask = torch.ones_like(ids)
            self.watch.begin()
            out = self.network.generate(ids, attention_mask=mask, **self.options)
            seconds, spans = self.watch.clock.stop()
        tokens, new = out[0, len(prompt) :].tolist(), self.options["generation_config"].max_new_tokens
        return self.watch.trace(len(prompt), tokens, new, seconds, spans)


def compiled(network: Any, settings: dict[str, Any], places: int) -> Call:
    """Its fastest form: one static cache that is reused, and compiled steps with weights as constants."""
    found, watch = twin(network), Watch(clock_for(network.device))
    inductor = dict(ON_CUDA if network.device.type == "cuda" else ON_CPU)
    how: Any = CompileConfig(fullgraph=False, mode=None, options=inductor)  # type: ignore[arg-type]
    how._compile_all_devices = True  # on a CPU transformers compiles only if forced to
    cache = StaticCache(config=found.config, max_cache_len=places)
    found._prefill = timed(found._prefill, watch)
    make = found.get_compiled_call
    found.get_compiled_call = lambda config: timed(make(config), watch)
    config = generation(**settings, compile_config=how)
    return Call(found, watch, {"generation_config": config, "past_key_values": cache}, inductor)


def timed(function: Any, watch: Watch) -> Any:
    """A compiled pass, timed from outside: a hook would be compiled with it."""

    def called(*args: Any, **kwargs: Any) -> Any:
        watch.before()
        outputs = function(*args, **kwargs)
        watch.after(False)
        return outputs

    return called


def watched(network: Any, settings: dict[str, Any], options: dict[str, Any], **more: Any) -> Call:
    """A call whose passes are recorded by hooks."""
    watch = Watch(clock_for(network.device))
    network._get_candidate_generator = watch.generator(network._get_candidate_generator)
    watch.target(network)
    if (assistant := options.get("assistant_model")) is not None:
        assistant.register_forward_hook(lambda *_: watch.after(True))
    config = generation(**settings, **more)
    return Call(network, watch, {"generation_config": config, **options})


def assisted(target: Any, draft: Any, settings: dict[str, Any], k: int, tokenizers: Sequence[Any] = ()) -> Call:
    """`generate(assistant_model=…)` with K drafted tokens a round; universal with the tokenizers of both models."""
    assistant, options = twin(draft), {}
    assistant.generation_config.update(num_assistant_tokens=k, **HONOURED, **LOOKBEHIND)
    if tokenizers:
        options = dict(zip(("tokenizer", "assistant_tokenizer"), map(ordered, tokenizers), strict=True))
    else:
        assistant.config.vocab_size = target.config.vocab_size  # otherwise it would translate between tokenizers
    return watched(twin(target), settings, {"assistant_model": assistant, **options})


def ordered(tokenizer: Any) -> Any:
    """A copy of the tokenizer whose vocabulary is in the order of its ids.

    Fast tokenizers return it in another order. transformers 5.23 then assigns a draft's
    probabilities to the wrong tokens, and samples do not follow the target's distribution. It
    also caches its translation per draft tokenizer, so that two drafts must not share one.
    """
    found = copy.copy(tokenizer)
    vocabulary = dict(sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]))
    found.get_vocab = lambda: dict(vocabulary)
    return found


def early_exit(target: Any, settings: dict[str, Any], k: int, layers: int) -> Call:
    """Early exit: the target's first layers draft, with a cache of their own."""
    found = twin(target)
    found.generation_config.update(num_assistant_tokens=k, **HONOURED)
    call = watched(found, settings, {}, assistant_early_exit=layers)
    call.watch.deepest(found.get_decoder().layers[-1])
    return call


def mtp(target: Any, settings: dict[str, Any], files: Path) -> Call:
    """The target's own MTP modules draft, one token each. `generate()` would read their files in every call."""
    found = twin(target)
    found.config.name_or_path = str(files)
    first: Any = MTPCandidateGenerator(found, generation(**settings), {})

    def made(*_: Any, logits_processor: Any = None, **__: Any) -> Any:
        fresh = copy.copy(first)
        fresh.mtp_cache, fresh.logits_processor = MtpCache(config=found.config.get_mtp_config()), logits_processor
        fresh.mtp_cache.activate_past_recording()
        return fresh

    found._get_candidate_generator = made
    call = watched(found, settings, {}, use_mtp=True)
    first.mtp_model.register_forward_hook(lambda *_: call.watch.after(True))
    return call


def counted(drafted: Sequence[int], emitted: Sequence[int], left: int) -> RoundCounts:
    """A round by its tokens, with `left` tokens still to decode, the last of which is the target's own.

    A token was accepted if it equals the drafted one: a rejected token is replaced by a sample from the
    residual distribution, in which its probability is 0.
    """
    usable = min(len(drafted), left - 1)
    same = [a == b for a, b in zip(drafted[:usable], emitted, strict=False)]
    accepted = same.index(False) if False in same else len(same)
    return outcome(len(drafted), accepted, len(emitted), usable)
