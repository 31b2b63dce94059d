"""What `specbench predict --hardware cpu` says before a pair is measured, next to a run of the whole pair.

    python -m tests.benchmarks.forecast [--pairs demo:demo-draft,demo@llama-300m:demo-draft] [--tiers compile,eager]
        [--dtype float32] [--save results/benchmarks/forecast.md]

Every pair is first predicted, from a few of its layers, and then measured: the runner's own baseline and chain, with
synthetic acceptance. Prompts are as long as makes the mean context of the run the predicted one. On a quiet machine the
aim is a difference of at most 15 % in every cost that is at least a twentieth of a round. The pair of 1.1 billion
weights takes 5 GB in float32, half of it in bfloat16.
"""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import specbench
from specbench.jobs.calibrate import forecast
from specbench.measure import grid
from tests.benchmarks import harness
from tests.benchmarks.harness import Bench, Row, Sheet, listed, say

PAIRS = "demo:demo-draft,demo@llama-300m:demo-draft,demo@tinyllama-1.1b:demo-draft@llama-68m"
COMPARED = ("baseline_step_ms", "draft_token_ms", "c", "v", "overhead", "speedup")


def compared(bench: Bench, pair: str, tier: str) -> Iterator[Row]:
    """A line per cost: predicted, measured, and how far they differ."""
    args, (target, draft) = bench.args, pair.split(":", 1)
    settings: dict[str, Any] = {"target": target, "draft": draft, "dtype": args.dtype, "tier": tier, "device": "cpu"}
    say(f"predicting {pair}, {tier}")
    _, (predicted,) = forecast("cpu", grid.cells({**settings, "context": args.context}), [args.alpha], [args.k])
    say(f"measuring {pair}, {tier}")
    with TemporaryDirectory() as folder:
        run = specbench.run(
            **settings, acceptance=str(args.alpha), k=args.k, context=args.context - args.new // 2, limit=args.prompts,
            max_new_tokens=args.new, ignore_eos=True, seed=args.seed, output_dir=Path(folder),
        )  # fmt: skip
        (measured,) = run.rows()
    # the last round of a text is cut short: the predicted speedup is that of the tokens per round that were measured
    predicted["speedup"] *= float(measured["tokens_per_round"]) / predicted["tokens_per_round"]
    for name in COMPARED:
        one, other = float(predicted[name]), float(measured[name])
        yield {"pair": pair, "tier": predicted["tier"], "": name, "predicted": one, "measured": other,
               "difference %": 100 * (one / other - 1)}  # fmt: skip


def main() -> None:
    options = harness.parser(__doc__)
    options.add_argument("--pairs", default=PAIRS, help=f"({PAIRS})")
    options.add_argument("--tiers", help="(compile,eager)")
    options.add_argument("--dtype", default="float32", help="(float32)")
    options.add_argument("--context", type=int, default=512, help="mean tokens before a round (512)")
    options.add_argument("--prompts", type=int, default=4, help="how many (4)")
    options.add_argument("--new", type=int, default=64, help="new tokens per prompt (64)")
    options.add_argument("--alpha", type=float, default=0.8, help="synthetic acceptance (0.8)")
    options.add_argument("--k", type=int, default=4, help="lookahead (4)")
    bench = harness.begin("forecast", "Predicted from a few layers, and measured", options.parse_args())
    rows = [row for pair in listed(bench.args.pairs) for tier in listed(bench.args.tiers)
            for row in compared(bench, pair, tier)]  # fmt: skip
    bench.publish([Sheet(f"{bench.args.dtype}, {bench.args.context} tokens of context, K = {bench.args.k}", rows)])


if __name__ == "__main__":
    main()
