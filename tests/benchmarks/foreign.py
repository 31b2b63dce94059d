"""A draft with another tokenizer by both rules, and universal assisted decoding of transformers, on the same weights.

    python -m tests.benchmarks.foreign --pair FOLDER:demo-draft [--dtype float32] [--prompts 20] [--new 128]

FOLDER is a checkpoint with another tokenizer than the draft, such as SmolLM2's. Greedy, the same prompts, the same
number of new tokens (no EOS), in one process, all arms of a prompt in random order. Theirs: `generate()`; the same
with `assistant_model` and both tokenizers, which then drafts strings; and its sampling from the likeliest token alone
(top-k 1), which is greedy, too, and drafts common tokens. K counts tokens of the draft, in every arm alike. Alpha is
accepted ÷ tested tokens of the target; of theirs it is counted from the passes of the target. Seconds are those of the
whole call, prefill included; ratios are over `generate()` for theirs and over our baseline of the same tier for ours,
with 95 % intervals over prompts.
"""

import gc
from typing import Any

from specbench import metrics
from specbench.backends.engines.transformers import Transformers
from specbench.backends.native import Native, open_pair
from specbench.results.samples import digest
from specbench.results.statistics import speedup_interval
from specbench.spec import BASELINE, RunSpec
from tests.benchmarks import harness
from tests.benchmarks.harness import Bench, Sheet, between, listed
from tests.benchmarks.peers import Arm, Run, arm_of

RULES = ("common", "strings")
STRINGS: dict[str, Any] = {"vocabulary": "strings", "tier": "eager"}
GENERATE = "generate"


def theirs(native: Native, spec: RunSpec, longest: int, rule: str = "") -> Arm:
    """Their baseline or a rule: strings when greedy; common tokens when sampling, here from the likeliest alone."""
    spec = spec.with_(tier="eager", vocabulary=None)
    likeliest = {"temperature": 1.0, "top_k": 1} if rule == "common" else {}
    one = spec.with_(**likeliest) if rule else spec.baseline
    return arm_of(Transformers(native, [one]), one, longest)


def row_of(name: str, results: dict[str, list[Run]], base: str) -> dict[str, Any]:
    """A line of the table."""
    runs, first = results[name], results[base]
    seconds = [[run.seconds for run in some] for some in (first, runs)]
    tokens = [[len(run.tokens) for run in some] for some in (first, runs)]
    ratio = speedup_interval(seconds[0], tokens[0], seconds[1], tokens[1])
    same = sum(a.tokens == b.tokens for a, b in zip(runs, first, strict=True))
    rounds = [one for run in runs for one in run.rounds]
    tested, accepted = (sum(getattr(one, what) for one in rounds) for what in ("tested", "accepted"))
    return {
        "arm": name,
        "tokens/s": metrics.ratio(sum(tokens[1]), sum(seconds[1])),
        "alpha": metrics.ratio(accepted, tested) if tested else None,
        "tokens/round": metrics.ratio(accepted + len(rounds), len(rounds)) if tested else None,
        "speedup": None if name == base else between(ratio),
        "same text": f"{same}/{len(runs)}",
    }


def measure(bench: Bench) -> tuple[Sheet, list[dict[str, Any]]]:
    args = bench.args
    spec = harness.spec_of(bench, k=args.k, tier=args.tier)
    native, other = open_pair([spec.with_(vocabulary="common")]), open_pair([spec.with_(**STRINGS)])
    native.load()
    other.modules, other.commits, other.rollbacks = native.modules, native.commits, native.rollbacks
    pairs = {"common": native, "strings": other}
    prompts = harness.prompts_for(native, spec)
    longest = max(len(prompt.ids) for prompt in prompts)
    base = f"ours {spec.tier} baseline"
    arms: dict[str, Arm] = {base: arm_of(native, spec.with_(method=BASELINE, k=0, vocabulary="common"), longest)}
    arms |= {
        "ours common": arm_of(native, spec.with_(vocabulary="common"), longest),
        "ours strings": arm_of(other, spec.with_(**STRINGS), longest),
    }
    arms[GENERATE] = theirs(native, spec, longest)
    arms |= {f"assisted {rule}": theirs(native, spec, longest, rule) for rule in listed(args.theirs)}
    results = harness.interleaved(arms, prompts, args.warmup, args.seed)
    rows = [row_of(name, results, base if name.startswith("ours") else GENERATE) for name in arms]
    raw = [{"arm": name, "prompt": prompt.id, "tokens": len(run.tokens), "seconds": run.seconds,
            "output_sha256": digest(run.tokens)}
           for name, runs in results.items() for prompt, run in zip(prompts, runs, strict=True)]  # fmt: skip
    notes = [pairs[rule].warnings[0] for rule in RULES]
    about = f"{args.pair}, {args.dtype}, K = {args.k}, {len(prompts)} prompts of {args.dataset}, {args.new} new tokens"
    return Sheet(about, rows, notes), raw


def main() -> None:
    options = harness.parser(__doc__)
    harness.decoding(options, "smollm2-135m:demo-draft", prompts=20, new=128)
    options.set_defaults(dtype="float32")
    options.add_argument("--k", type=int, default=4, help="lookahead, in tokens of the draft (4)")
    options.add_argument("--tier", default="eager", help="of ours; strings are eager in any case (eager)")
    options.add_argument("--theirs", default=",".join(RULES), help="which of their rules (common,strings)")
    options.add_argument("--warmup", type=int, default=1, help="prompts that do not count (1)")
    bench = harness.begin("foreign", "Drafts with another tokenizer", options.parse_args())
    sheet, raw = measure(bench)
    gc.collect()
    bench.publish([sheet], raw)


if __name__ == "__main__":
    main()
