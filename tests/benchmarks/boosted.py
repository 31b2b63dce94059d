"""Whether drafts that are fitted where others miss draft better together than as many that are trained alike.

    python -m tests.benchmarks.boosted [--target demo] [--data text:FOLDER] [--dataset code] [--prompts 48]
        [--tokens 300000] [--layers 1] [--hidden 96] [--k 4] [--new 64] [--temperatures 0,1] [--work FOLDER]
        [--save FILE]

Trains three drafts by `specbench train boost` and three by the same command with --alike, which differ in their seeds
alone, and lets the method boosted-merge decode with either. Tokens per round and their ratio have 95 % intervals over
prompts (delete-one jackknife, paired). Nothing is timed. --work keeps what was trained.
"""

import argparse
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory

from specbench.backends.native import Native, open_pair
from specbench.data.loading import load_prompts
from specbench.data.prompts import PromptSet
from specbench.jobs import train as job
from specbench.jobs.train import Draft
from specbench.jobs.train_data import Source
from specbench.jobs.train_start import Start
from specbench.measure.order import seed_of
from specbench.results.statistics import ratio_of_totals, speedup_interval
from specbench.spec import RunSpec
from specbench.training.recipe import Recipe
from tests.benchmarks import harness
from tests.benchmarks.harness import Sheet, between, say

Counts = tuple[list[float], list[float]]  # of every prompt: its tokens, its rounds


def options() -> argparse.ArgumentParser:
    found = harness.parser(__doc__)
    found.add_argument("--target", default="demo", help="(demo)")
    found.add_argument("--data", action="append", help="text that is learned, as it is (the modules of Python)")
    found.add_argument("--dataset", default="code", help="what is decoded (code)")
    found.add_argument("--prompts", type=int, default=48, help="(48)")
    found.add_argument("--tokens", type=int, default=300_000, help="learned by every draft (300000)")
    found.add_argument("--layers", type=int, default=1, help="(1)")
    found.add_argument("--hidden", type=int, default=96, help="(96)")
    found.add_argument("--k", type=int, default=4, help="(4)")
    found.add_argument("--new", type=int, default=64, help="(64)")
    found.add_argument("--temperatures", default="0,1", help="(0,1)")
    found.add_argument("--work", type=Path, help="folder for what is trained (a temporary one)")
    return found


def train(args: argparse.Namespace, work: Path, boosted: bool) -> Path:
    """Three drafts in a folder, by the body of the command."""
    folder = work / ("boosted" if boosted else "alike")
    data = tuple(args.data or [f"text:{sysconfig.get_paths()['stdlib']}/*.py"])
    source = Source(data, generate=False, cache=work / "tokens")
    recipe = Recipe(tokens=args.tokens, k=args.k, seed=args.seed, patience=100)
    settings = {"target": args.target, "device": args.device}
    asked = Draft(settings, Start(layers=args.layers, hidden=args.hidden), source, recipe, folder, boosted=boosted)
    job.boost(asked, 3, "jsonl", quiet=False)
    return folder


def decoded(backend: Native, spec: RunSpec, prompts: PromptSet) -> Counts:
    """Tokens and rounds of every prompt."""
    decode = backend.prepare(spec, prompts.longest)
    traces = [decode([one.ids], [seed_of(spec, one.id, 0, "method")])[0] for one in prompts.prompts]
    return [float(sum(r.emitted for r in t.rounds)) for t in traces], [float(len(t.rounds)) for t in traces]


def measured(args: argparse.Namespace, folder: Path) -> dict[float, Counts]:
    """What the drafts of a folder emit together, by temperature."""
    models = tuple((name, str(folder / str(number))) for number, name in ((2, "second"), (3, "third")))
    specs = [
        RunSpec(
            target=args.target, draft=str(folder / "1"), model=models, method="boosted-merge", k=args.k,
            dataset=args.dataset, max_new_tokens=args.new, temperature=temperature, device=args.device, seed=args.seed,
        )
        for temperature in map(float, harness.listed(args.temperatures))
    ]  # fmt: skip
    backend = open_pair(specs)
    longest = backend.context - args.new - 4 * args.k
    prompts = load_prompts(args.dataset, backend.encode, limit=args.prompts, seed=args.seed, longest=longest)
    backend.load(prompts.longest)
    found = {spec.temperature: decoded(backend, spec, prompts) for spec in specs}
    backend.unload()
    return found


def main() -> None:
    args = options().parse_args()
    bench = harness.begin("boosted", "Drafts that complement each other, beside drafts that are trained alike", args)
    with TemporaryDirectory() as temporary:
        work = args.work or Path(temporary)
        folders = [train(args, work, boosted) for boosted in (False, True)]
        alike, boosted = (measured(args, folder) for folder in folders)
    rows = []
    for temperature, ours in boosted.items():
        theirs = alike[temperature]
        rows.append(
            {
                "T": f"{temperature:g}",
                "tokens per round, trained alike": between(ratio_of_totals(*theirs)),
                "tokens per round, boosted": between(ratio_of_totals(*ours)),
                "boosted ÷ alike": between(speedup_interval(theirs[1], theirs[0], ours[1], ours[0])),
            }
        )
        say(str(rows[-1]))
    note = (
        f"three drafts of {args.layers} layers of width {args.hidden}, {args.tokens:,} tokens each; boosted-merge, K = "
        f"{args.k}, {args.prompts} prompts of {args.dataset}, {args.new} new tokens"
    )
    bench.publish([Sheet(args.target, rows, [note])])


if __name__ == "__main__":
    main()
