"""Our baseline and our chain against generate() and generate(assistant_model=…) of transformers, on the same weights.

    python -m tests.benchmarks.peers [--pair demo@llama-300m:demo-draft] [--dtype float32,bfloat16]

Greedy, the same prompts, the same number of new tokens (no EOS), in one process, all arms of a prompt in random order,
compiling and the first prompts not counted. Seconds are those of the whole call, prefill included; the decode column
leaves the prefill out. transformers runs its own sdpa attention on a twin of our network that shares its weights; its
static cache is made once and kept, as is best for it. Assisted: the same K in every round (schedule constant, threshold
0, which is counted before anything is measured), a dynamic cache, because it refuses a static one.

A tier costs up to a minute of compiling per arm. Ratios are tokens/s of the row ÷ tokens/s of the column with 95 %
intervals over prompts.
"""

import copy
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import CompileConfig, GenerationConfig, StaticCache

from specbench import metrics
from specbench.backends.native import Native
from specbench.data.prompts import Prompt
from specbench.models.execution.compiled import ON_CPU, ON_CUDA
from specbench.results.samples import digest
from specbench.results.statistics import speedup_interval
from specbench.spec import BASELINE, RunSpec
from tests.benchmarks import harness
from tests.benchmarks.harness import Bench, Sheet, between, listed, say, synchronize

PLAIN, STATIC, COMPILED, ASSISTED = "generate", "generate static", "generate static compiled", "assisted"
FROZEN = "generate static frozen"  # compiled with the settings of ours, which nobody finds in their documentation
THEIRS = (PLAIN, STATIC, COMPILED, FROZEN, ASSISTED)


@dataclass(frozen=True)
class Run:
    """One call: new tokens, seconds of all of it, those of its prefill where they can be told, passes of the target."""

    tokens: tuple[int, ...]
    seconds: float
    prefill: float | None
    passes: int | None = None


Arm = Callable[[Prompt], Run]


def ours(native: Native, spec: RunSpec, longest: int) -> Arm:
    """An arm of specbench."""
    decode = native.prepare(spec, longest)

    def arm(prompt: Prompt) -> Run:
        began = time.perf_counter()
        (trace,) = decode([prompt.ids], [0])
        return Run(trace.tokens, time.perf_counter() - began, trace.prefill_seconds, len(trace.rounds))

    return arm


def twin(network: Any) -> Any:
    """The same network with the same tensors, but modules, configuration and attention of transformers' own."""
    shared = {id(tensor): tensor for tensor in (*network.parameters(), *network.buffers())}
    found = copy.deepcopy(network, shared)
    if found.config._attn_implementation != "eager":
        found.set_attn_implementation("sdpa")
    found.generation_config = GenerationConfig(pad_token_id=0, do_sample=False)
    return found


class Generate:
    """An arm of transformers: `options` go to generate(); `places` > 0 is the length of a static cache that is kept.

    `inductor`: settings that hold during a call, as dynamo reads some of them before it has those of the compiler.
    """

    def __init__(
        self, network: Any, new: int, places: int = 0, inductor: dict[str, Any] | None = None, **options: Any
    ) -> None:
        self.network, self.new, self.options, self.inductor = twin(network), new, options, inductor or {}
        self.device, self.prefilled = network.device, None
        if places:
            self.options["past_key_values"] = StaticCache(config=self.network.config, max_cache_len=places)
        self.prefill = getattr(self.network, "_prefill", None)
        if self.prefill is not None and "assistant_model" not in options:
            self.network._prefill = self._timed_prefill

    def _timed_prefill(self, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        outputs = self.prefill(*args, **kwargs)
        synchronize(self.device)
        self.prefilled = time.perf_counter() - began
        return outputs

    @torch.no_grad()
    def __call__(self, prompt: Prompt) -> Run:
        ids = torch.tensor([prompt.ids], device=self.device)
        if cache := self.options.get("past_key_values"):
            cache.reset()
        synchronize(self.device)
        began = time.perf_counter()
        mask = torch.ones_like(ids)
        with torch._inductor.config.patch(self.inductor):
            out = self.network.generate(ids, attention_mask=mask, max_new_tokens=self.new, **self.options)
        tokens = tuple(out[0, ids.shape[1] :].tolist())
        assert len(tokens) == self.new, "transformers ended before the last token"
        return Run(tokens, time.perf_counter() - began, self.prefilled)


class Assisted(Generate):
    """generate(assistant_model=…) with K drafted tokens in every round."""

    def __init__(self, target: Any, draft: Any, new: int, k: int) -> None:
        assistant = twin(draft)
        assistant.config.vocab_size = target.config.vocab_size  # else it would translate from one tokenizer to another
        assistant.generation_config.update(
            num_assistant_tokens=k, num_assistant_tokens_schedule="constant", assistant_confidence_threshold=0.0
        )
        super().__init__(target, new, assistant_model=assistant)

    def check(self, prompt: Prompt, k: int) -> str:
        """A line that says how K was honoured: how many tokens every pass of the target reads, but for the end."""
        found: list[int] = []
        hook = self.network.register_forward_pre_hook(
            lambda module, args, kwargs: found.append((args[0] if args else kwargs["input_ids"]).shape[1]),
            with_kwargs=True,
        )
        self(prompt)
        hook.remove()
        whole = next((i for i, width in enumerate(found[1:], start=1) if width != k + 1), len(found))
        if found[0] != len(prompt.ids) + k or sum(found[whole:]) > (k + 1) * k:
            raise SystemExit(f"transformers does not draft K = {k} tokens in every round: passes over {found}")
        return f"assisted: {len(found)} passes of the target, over the prompt, then {found[1:]} tokens"


def everywhere(settings: CompileConfig) -> CompileConfig:
    """Compile on a CPU, too, which transformers does not by itself."""
    settings._compile_all_devices = True  # type: ignore[assignment]
    return settings


def theirs(networks: dict[str, Any], spec: RunSpec, longest: int, which: Sequence[str]) -> dict[str, Arm]:
    """The arms of transformers."""
    target, new, places = networks["target"], spec.max_new_tokens, longest + spec.max_new_tokens
    frozen = dict(ON_CUDA if target.device.type == "cuda" else ON_CPU)
    strongest = CompileConfig(fullgraph=False, mode=None, options=frozen)
    known: dict[str, Callable[[], Arm]] = {
        PLAIN: lambda: Generate(target, new),
        STATIC: lambda: Generate(target, new, places, disable_compile=True),
        COMPILED: lambda: Generate(target, new, places, compile_config=everywhere(CompileConfig(fullgraph=False))),
        FROZEN: lambda: Generate(target, new, places, frozen, compile_config=everywhere(strongest)),
        ASSISTED: lambda: Assisted(target, networks["draft"], new, spec.k),
    }
    return {name: known[name]() for name in which}


def arm_row(name: str, runs: Sequence[Run], reference: Sequence[Run]) -> dict[str, Any]:
    """A line of the table of arms."""
    tokens, seconds = sum(len(run.tokens) for run in runs), sum(run.seconds for run in runs)
    prefills = [run.prefill for run in runs if run.prefill is not None]
    prefill = sum(prefills) if len(prefills) == len(runs) else None
    first = len(runs) if name in THEIRS else 0  # what transformers calls prefill gives the first token, too
    passes = [run.passes for run in runs if run.passes is not None]
    return {
        "arm": name,
        "tokens/s": metrics.ratio(tokens, seconds),
        "tokens/s decode": None if prefill is None else metrics.ratio(tokens - first, seconds - prefill),
        "prefill ms": None if prefill is None else 1000 * prefill / len(runs),
        "tokens/pass": metrics.ratio(tokens, sum(passes)) if passes else None,
        "same text": f"{sum(a.tokens == b.tokens for a, b in zip(runs, reference, strict=True))}/{len(runs)}",
    }


def ratio_row(name: str, results: dict[str, list[Run]]) -> dict[str, Any]:
    """A line of the table of ratios: one of our arms against all others."""
    own = ([run.seconds for run in results[name]], [len(run.tokens) for run in results[name]])
    cells = {}
    for other, runs in results.items():
        their = ([run.seconds for run in runs], [len(run.tokens) for run in runs])
        cells[f"÷ {other}"] = None if other == name else between(speedup_interval(*their, *own))
    return {"arm": name, **cells}


def measure(bench: Bench, dtype: str) -> tuple[list[Sheet], list[dict[str, Any]]]:
    """Everything in one dtype."""
    args = bench.args
    spec = harness.spec_of(bench, k=args.k, dtype=dtype)
    pairs = harness.natives(spec, listed(args.tiers))
    first = next(iter(pairs.values()))
    prompts = harness.prompts_for(first, spec)
    longest = max(len(prompt.ids) for prompt in prompts)
    arms: dict[str, Arm] = {}
    for tier, native in pairs.items():
        for form, one in (("baseline", spec.with_(method=BASELINE, k=0)), (f"chain K={args.k}", spec)):
            say(f"preparing: ours {tier} {form}")
            arms[f"ours {tier} {form}"] = ours(native, one.with_(tier=tier), longest)
    before = {name: arm(prompts[0]).tokens for name, arm in arms.items()}
    peers = theirs(first.modules, spec, longest, listed(args.theirs))
    notes = [arm.check(prompts[0], args.k) for arm in peers.values() if isinstance(arm, Assisted)]
    results = harness.interleaved(arms | peers, prompts, args.warmup, args.seed)
    disturbed = [name for name, tokens in before.items() if results[name][0].tokens != tokens]
    notes.append(f"texts of ours that transformers' compiling changed: {', '.join(disturbed) or 'none'}")
    reference = next((results[name] for name in (PLAIN, *results) if name in results), [])
    raw = [{"dtype": dtype, "arm": name, "prompt": prompt.id, "tokens": len(run.tokens), "seconds": run.seconds,
            "prefill_seconds": run.prefill, "output_sha256": digest(run.tokens)}
           for name, runs in results.items() for prompt, run in zip(prompts, runs, strict=True)]  # fmt: skip
    about = f"{args.pair}, {dtype}, K = {args.k}, {len(prompts)} prompts of {args.dataset}, {args.new} new tokens"
    rows = [arm_row(name, runs, reference) for name, runs in results.items()]
    return [Sheet(about, rows, notes), Sheet(f"Ratios, {dtype}", [ratio_row(name, results) for name in arms])], raw


def main() -> None:
    options = harness.parser(__doc__)
    harness.decoding(options, "demo", prompts=10, new=128)
    options.add_argument("--k", type=int, default=4, help="lookahead (4)")
    options.add_argument("--tiers", help="of ours (compile,eager; on a GPU graph,eager)")
    options.add_argument("--theirs", default=",".join(THEIRS), help=f"which of {', '.join(THEIRS)} (all)")
    options.add_argument("--warmup", type=int, default=2, help="prompts that do not count (2)")
    bench = harness.begin("peers", "specbench against transformers", options.parse_args())
    sheets: list[Sheet] = []
    raw: list[dict[str, Any]] = []
    for dtype in listed(bench.args.dtype):
        torch.compiler.reset()
        found, samples = measure(bench, dtype)
        sheets, raw = sheets + found, raw + samples
        gc.collect()
    bench.publish(sheets, raw)


if __name__ == "__main__":
    main()
