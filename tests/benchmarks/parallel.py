"""Drafting while verifying, with two processes on a core (or a GPU) each, against drafting and then verifying.

    python -m tests.benchmarks.parallel [--pair demo:demo-draft] [--k 1,2,4] [--temperature 0] [--prompts 12] [--new 96]

Needs two cores that nothing else uses: `taskset` must leave two, or two GPUs with --device cuda. Arms, in random order
per prompt: the baseline and the method that waits, both on the one core of the target; both with the two cores (of a
GPU: only the one); and the method with its draft in a process of its own on the other core. Tier eager, the same
prompts and draws, no EOS. Ratios are over the baseline on one core, with 95 % intervals over prompts. c, v and the
overhead are those of the arm that waits; hit is counted in the arm in parallel, predicted E / (h·max(Kc, v) +
(1 − h)(v + Kc) + overhead) is from these. The goal: the text of both is the same, and the measured speedup is what the
formula says; the draft makes one more token than Kc counts, its guess, so it must be done before v is, or a hit waits.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from specbench import metrics
from specbench.backends.draft_process import DraftProcess, Place, parallel, started, two_places
from specbench.backends.native import Native, open_pair
from specbench.data.prompts import Prompt
from specbench.decoding.decode import decode
from specbench.decoding.drafters.while_verifying import WhileVerifying
from specbench.decoding.loop import Speculate
from specbench.decoding.timing import clock_for
from specbench.errors import SpecbenchError
from specbench.metrics import Trace
from specbench.results.costs import timing
from specbench.results.samples import digest
from specbench.results.statistics import speedup_interval
from specbench.spec import RunSpec
from specbench.theory.costs import measured_costs
from specbench.theory.while_verifying import by_hits
from tests.benchmarks import harness
from tests.benchmarks.harness import Bench, Sheet, between

BASE = "baseline"


@dataclass(frozen=True)
class Run:
    """A decode, and whether every draft of it but the first was ready."""

    trace: Trace
    ready: Sequence[bool] = ()


@contextmanager
def on(cores: Sequence[int]) -> Iterator[None]:
    """This process on some cores, with a thread for each; where it was afterwards. Nothing for a GPU."""
    if not cores or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before, threads = os.sched_getaffinity(0), torch.get_num_threads()
    os.sched_setaffinity(0, set(cores))
    torch.set_num_threads(len(cores))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        torch.set_num_threads(threads)


@dataclass
class Arm:
    """Decodes prompts by a method on some cores, its drafts from a partner where there is one."""

    native: Native
    spec: RunSpec
    cores: Sequence[int]
    partner: DraftProcess | None = None

    def __call__(self, prompt: Prompt) -> Run:
        clock, seed = clock_for(self.native.device), self.spec.seed
        method: Speculate = self.native.method(self.spec, clock)
        if self.partner is not None:
            self.partner.seed = seed
            method = parallel(self.spec.method, method, self.partner)
        to: Any = {"new": self.spec.max_new_tokens, "eos": [], "device": self.native.device, "clock": clock}
        with on(self.cores), self.native.gradless():
            (trace,) = decode(method, [prompt.ids], rng=self.native.source(self.spec, [seed]), **to)
        return Run(trace, method.drafter.ready[1:] if isinstance(method.drafter, WhileVerifying) else ())


def arms_of(native: Native, spec: RunSpec, places: tuple[Place, Place], partner: DraftProcess) -> dict[str, Arm]:
    """The arms of one K."""
    cores = [place.core for place in places if place.core is not None]
    found = {BASE: Arm(native, spec.baseline, cores[:1]), "waits": Arm(native, spec, cores[:1])}
    if cores:
        found |= {"baseline, 2 cores": Arm(native, spec.baseline, cores), "waits, 2 cores": Arm(native, spec, cores)}
    return found | {"in parallel": Arm(native, spec, cores[:1], partner)}


def rows_of(k: int, results: dict[str, list[Run]], greedy: bool) -> list[dict[str, Any]]:
    """The lines of one K."""
    traces = {name: [run.trace for run in runs] for name, runs in results.items()}
    costs = measured_costs(timing(traces[BASE]), timing(traces["waits"]))
    ready = [one for run in results["in parallel"] for one in run.ready]
    hit = metrics.ratio(sum(ready), len(ready))
    counts = metrics.acceptance([r for trace in traces["waits"] for r in trace.rounds])
    drafting = costs.c * metrics.ratio(counts.drafted, counts.rounds)
    predicted = {
        "waits": by_hits(counts.tokens_per_round, drafting, costs.v, 0, costs.overhead),
        "in parallel": by_hits(counts.tokens_per_round, drafting, costs.v, hit, costs.overhead),
    }
    return [
        {
            "K": k,
            "arm": name,
            "tokens/s": metrics.ratio(sum(len(t.tokens) for t in some), sum(t.seconds for t in some)),
            "speedup": None if name == BASE else between(ratio(traces[BASE], some)),
            "predicted": predicted.get(name),
            "tokens/round": counts.tokens_per_round if name in predicted else None,
            "hit": hit if name == "in parallel" else None,
            **({"c": costs.c, "v": costs.v, "overhead": costs.overhead} if name == "waits" else {}),
            "same text": same(some, traces[reference(name, greedy)]) if name != reference(name, greedy) else None,
        }
        for name, some in traces.items()
    ]


def reference(name: str, greedy: bool) -> str:
    """The arm whose text an arm must have: sampled, those with the same method, as their draws are the same."""
    if greedy or "baseline" in name:
        return BASE
    return "waits"


def same(some: list[Trace], others: list[Trace]) -> str:
    return f"{sum(a.tokens == b.tokens for a, b in zip(some, others, strict=True))}/{len(some)}"


def ratio(base: list[Trace], some: list[Trace]) -> Any:
    return speedup_interval(
        [t.seconds for t in base],
        [len(t.tokens) for t in base],
        [t.seconds for t in some],
        [len(t.tokens) for t in some],
    )


def measure(bench: Bench) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    places = two_places(str(bench.device))
    spec = harness.spec_of(bench, method=bench.args.method, temperature=bench.args.temperature, tier="eager")
    native = open_pair([spec.with_(k=max(bench.args.k))])
    native.load()
    prompts = harness.prompts_for(native, spec.with_(k=max(bench.args.k)))
    rows: list[dict[str, Any]] = []
    raw: list[dict[str, Any]] = []
    for k in bench.args.k:
        began = time.perf_counter()
        partner = started(spec.with_(k=k), native.width, places[1], native.law(spec).certain)
        try:
            arms: dict[str, Callable[[Prompt], Run]] = dict(arms_of(native, spec.with_(k=k), places, partner))
            results = harness.interleaved(arms, prompts, bench.args.warmup, bench.args.seed)
        finally:
            partner.close()
        harness.say(f"K = {k}: {time.perf_counter() - began:.0f} s")
        rows += rows_of(k, results, native.law(spec).certain)
        raw += [
            raw_row(k, name, prompt, run)
            for name, runs in results.items()
            for prompt, run in zip(prompts, runs, strict=True)
        ]
    return rows, raw


def raw_row(k: int, name: str, prompt: Prompt, run: Run) -> dict[str, Any]:
    trace = run.trace
    return {"k": k, "arm": name, "prompt": prompt.id, "tokens": len(trace.tokens), "seconds": trace.seconds,
            "draft_seconds": trace.spans.get("draft"), "verify_seconds": trace.spans.get("verify"),
            "rounds": len(trace.rounds), "hits": sum(run.ready), "output_sha256": digest(trace.tokens)}  # fmt: skip


def main() -> None:
    options = harness.parser(__doc__)
    harness.decoding(options, "demo:demo-draft", prompts=12, new=96)
    options.set_defaults(dtype="float32")
    options.add_argument("--k", type=harness.numbers, default=[1, 2, 4], help="lookaheads (1,2,4)")
    options.add_argument("--method", default="chain", help="whose drafts are one chain from the draft (chain)")
    options.add_argument("--temperature", type=float, default=0.0, help="(0)")
    options.add_argument("--warmup", type=int, default=1, help="prompts that do not count (1)")
    bench = harness.begin("parallel", "Drafting while verifying, in two processes", options.parse_args())
    try:
        rows, raw = measure(bench)
    except SpecbenchError as error:
        raise SystemExit(f"parallel: {error}") from None
    about = f"{bench.args.pair}, {bench.args.dataset}, {bench.args.method}, temperature {bench.args.temperature:g}"
    notes = ["one core each: baseline and waits have the target's alone, in parallel also the draft's"]
    bench.publish([Sheet(f"{about}, {bench.args.prompts} prompts, {bench.args.new} new tokens", rows, notes)], raw)


if __name__ == "__main__":
    main()
