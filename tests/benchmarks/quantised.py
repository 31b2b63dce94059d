"""What quantising the target does to acceptance: the same draft against the unquantised, int8, int4 and fp8 target.

    python -m tests.benchmarks.quantised [--pair demo] [--methods chain,prompt-lookup] [--quantize int8,int4,fp8]
        [--temperatures 0,1] [--k 4] [--prompts 20] [--new 64] [--batch 1] [--save FILE]

The draft is not quantised; one that consists of layers of the target has the target's weights. α and its 95 % interval
are over prompts (delete-one jackknife), and so is the ratio to the α of the unquantised target, paired by prompt. With
a target as its own draft (--pair FOLDER:FOLDER), 1 − α is what quantising alone changes. Nothing is timed.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specbench.backends.native import Native, open_pair
from specbench.data.loading import load_prompts
from specbench.data.prompts import PromptSet
from specbench.measure.order import seed_of
from specbench.metrics import Trace, acceptance
from specbench.results.statistics import Interval, ratio_of_totals, speedup_interval
from specbench.spec import RunSpec
from tests.benchmarks import harness
from tests.benchmarks.harness import Sheet, between, say

CONTEXT = 512  # of prompts, in tokens


@dataclass(frozen=True)
class Decoded:
    """The decodes of one cell: per prompt Σ min(p, q) over tested positions, their number, rounds and tokens."""

    overlap: list[float]
    tested: list[float]
    rounds: int
    tokens: int

    @property
    def alpha(self) -> Interval:
        return ratio_of_totals(self.overlap, self.tested, at_most=1.0)

    def against(self, other: "Decoded") -> Interval:
        """The ratio of the two α."""
        return speedup_interval(self.overlap, self.tested, other.overlap, other.tested)


def options() -> argparse.ArgumentParser:
    found = harness.parser(__doc__)
    harness.decoding(found, "demo", prompts=20, new=64)
    found.set_defaults(dtype="float32")
    found.add_argument("--methods", default="chain,prompt-lookup", help="(chain,prompt-lookup)")
    found.add_argument("--quantize", default="int8,int4,fp8", help="(int8,int4,fp8)")
    found.add_argument("--temperatures", default="0,1", help="(0,1)")
    found.add_argument("--batch", type=int, default=1, help="rows decoded together, which is faster (1)")
    found.add_argument("--k", type=int, default=4, help="(4)")
    return found


def specs_of(args: argparse.Namespace, kind: str) -> list[RunSpec]:
    """The cells of one target."""
    target, _, draft = args.pair.partition(":")
    common = {
        "target": target, "draft": draft or None, "dtype": args.dtype, "device": args.device, "dataset": args.dataset,
        "k": args.k, "max_new_tokens": args.new, "seed": args.seed, "quantize": kind, "batch": args.batch,
    }  # fmt: skip
    return [
        RunSpec.model_validate({**common, "method": method, "temperature": float(temperature)})
        for method in harness.listed(args.methods)
        for temperature in harness.listed(args.temperatures)
    ]


def decoded(backend: Native, spec: RunSpec, prompts: PromptSet) -> Decoded:
    """All prompts, decoded by the method of a spec."""
    run = backend.prepare(spec, CONTEXT)
    texts = [(prompt.ids, seed_of(spec, prompt.id, 0, "method")) for prompt in prompts.prompts]
    parts = [texts] if spec.batch > 1 else [[text] for text in texts]
    return summed([trace for part in parts for trace in run(*zip(*part, strict=True))])


def summed(traces: Sequence[Trace]) -> Decoded:
    counts = [acceptance(trace.rounds) for trace in traces]
    overlap = [one.alpha * one.tested if one.tested else 0.0 for one in counts]
    rounds, tokens = sum(len(trace.rounds) for trace in traces), sum(len(trace.tokens) for trace in traces)
    return Decoded(overlap, [float(one.tested) for one in counts], rounds, tokens)


def targets(args: argparse.Namespace) -> Iterator[tuple[str, dict[RunSpec, Decoded]]]:
    """Of every target its weights, in words, and what its cells decoded."""
    for kind in ("none", *harness.listed(args.quantize)):
        specs = specs_of(args, kind)
        backend = open_pair(specs)
        prompts = load_prompts(args.dataset, backend.encode, limit=args.prompts, seed=args.seed, longest=CONTEXT)
        backend.load(CONTEXT)
        found = {}
        for spec in specs:
            found[spec] = decoded(backend, spec, prompts)
            say(f"{kind} {spec.method} T={spec.temperature:g}: α {found[spec].alpha.value:.3f}")
        yield str(backend.describe()["target_weights"]), found
        backend.unload()


def rows(args: argparse.Namespace) -> Iterator[dict[str, object]]:
    first: dict[tuple[str, float], Decoded] = {}
    for weights, found in targets(args):
        for spec, one in found.items():
            plain = first.setdefault((spec.method, spec.temperature), one)
            ratio = "–" if one is plain else between(one.against(plain))
            yield {
                "method": spec.method, "T": f"{spec.temperature:g}", "target": weights, "α": between(one.alpha),
                "α ÷ α of the unquantised": ratio, "tokens per round": round(one.tokens / one.rounds, 3),
                "tested": int(sum(one.tested)),
            }  # fmt: skip


def main() -> None:
    args = options().parse_args()
    bench = harness.begin("quantised", "Acceptance against quantised targets", args)
    found = sorted(rows(args), key=lambda row: (str(row["method"]), str(row["T"])))
    decoded_of = f"{args.prompts} prompts of {args.dataset}, {args.new} new tokens"
    note = f"{decoded_of}, K = {args.k}, {args.dtype}, draft unquantised"
    bench.publish([Sheet(args.pair, found, [note])])


if __name__ == "__main__":
    main()
