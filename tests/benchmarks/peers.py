"""Our baseline and our chain against generate() and generate(assistant_model=…) of transformers, on the same weights.

    python -m tests.benchmarks.peers [--pair demo@llama-300m:demo-draft] [--dtype float32,bfloat16]

Greedy, the same prompts, the same number of new tokens (no EOS), in one process, all arms of a prompt in random order,
compiling and the first prompts not counted. Seconds are those of the whole call, prefill included; the decode column
leaves the prefill out. The arms of transformers are those of the backend of that name: generate() as it comes, its best
form (a static cache that is kept, compiled, weights as constants), and assisted generation. Of ours, `plain` is eager
without packed matrices, which it has on some processors.

A tier costs up to a minute of compiling per arm. Ratios are tokens/s of the row ÷ tokens/s of the column with 95 %
intervals over prompts.
"""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from specbench import metrics
from specbench.backends.base import Backend
from specbench.backends.engines.transformers import Transformers
from specbench.backends.native import Native
from specbench.data.prompts import Prompt
from specbench.results.samples import digest
from specbench.results.statistics import speedup_interval
from specbench.spec import BASELINE, RunSpec
from tests.benchmarks import harness
from tests.benchmarks.harness import Bench, Sheet, between, listed, say

PLAIN, BEST, ASSISTED = "generate", "generate static frozen", "assisted"
THEIRS = (PLAIN, BEST, ASSISTED)


@dataclass(frozen=True)
class Run:
    """One call: new tokens, seconds of all of it, those of its prefill, and its rounds."""

    tokens: tuple[int, ...]
    seconds: float
    prefill: float
    rounds: Sequence[metrics.RoundCounts]


Arm = Callable[[Prompt], Run]


def arm_of(backend: Backend, spec: RunSpec, longest: int) -> Arm:
    """An arm of a backend."""
    decode = backend.prepare(spec, longest)

    def arm(prompt: Prompt) -> Run:
        began = time.perf_counter()
        (trace,) = decode([prompt.ids], [0])
        return Run(trace.tokens, time.perf_counter() - began, trace.prefill_seconds, trace.rounds)

    return arm


def theirs(native: Native, spec: RunSpec, longest: int, which: Sequence[str]) -> dict[str, Arm]:
    """The arms of transformers."""
    known = {
        PLAIN: spec.baseline.with_(tier="eager"),
        BEST: spec.baseline.with_(tier="compile"),
        ASSISTED: spec.with_(tier="eager"),
    }
    return {name: arm_of(Transformers(native, [known[name]]), known[name], longest) for name in which}


def arm_row(name: str, runs: Sequence[Run], reference: Sequence[Run]) -> dict[str, Any]:
    """A line of the table of arms."""
    tokens, seconds = sum(len(run.tokens) for run in runs), sum(run.seconds for run in runs)
    prefill = sum(run.prefill for run in runs)
    return {
        "arm": name,
        "tokens/s": metrics.ratio(tokens, seconds),
        "tokens/s decode": metrics.ratio(tokens, seconds - prefill),
        "prefill ms": 1000 * prefill / len(runs),
        "tokens/pass": metrics.ratio(tokens, sum(len(run.rounds) for run in runs)),
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
            arms[f"ours {tier} {form}"] = arm_of(native, one.with_(tier=native.tier.name), longest)
    before = {name: arm(prompts[0]).tokens for name, arm in arms.items()}
    peers = theirs(first, spec, longest, listed(args.theirs))
    results = harness.interleaved(arms | peers, prompts, args.warmup, args.seed)
    disturbed = [name for name, tokens in before.items() if results[name][0].tokens != tokens]
    notes = [f"texts of ours that transformers' compiling changed: {', '.join(disturbed) or 'none'}"]
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
    options.add_argument("--tiers", help="of ours, and plain (compile,eager; on a GPU graph,eager)")
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
