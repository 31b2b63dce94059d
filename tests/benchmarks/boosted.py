"""Whether drafts that are fitted where others miss draft better together than as many that are trained alike.

    python -m tests.benchmarks.boosted [--tokens 300000] [--layers 1] [--hidden 96] [--work FOLDER] [--save FILE]
        [KEY=VALUE …]

Trains three drafts by `specbench train boost` and three by the same command with --alike, which differ in their seeds
alone, on the modules of Python, and lets the method boosted-merge decode with either, by grids/boosted.yaml. Tokens per
round and their ratio have 95 % intervals over prompts (delete-one jackknife, paired). Nothing is timed.
"""

import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

import specbench
from specbench.results.statistics import ratio_of_totals, speedup_interval
from tests.benchmarks import harness
from tests.benchmarks.harness import Sheet, between, say
from tests.benchmarks.startup import CLI, process

TRAINED = ("alike", "boosted")


def main() -> None:
    options = harness.parser(__doc__)
    options.add_argument("--tokens", default="300000", help="learned by every draft (300000)")
    options.add_argument("--layers", default="1", help="(1)")
    options.add_argument("--hidden", default="96", help="(96)")
    options.add_argument("--work", type=Path, help="folder for what is trained (a temporary one)")
    args = harness.with_settings(options, "boosted")
    bench = harness.begin("boosted", "Drafts that complement each other, beside drafts that are trained alike", args)
    grid, words = (
        harness.grid("boosted", args),
        ("--tokens", args.tokens, "--layers", args.layers, "--hidden", args.hidden),
    )
    data = ("--as-it-is", "--data", f"text:{sysconfig.get_path('stdlib')}/*.py", "--target", grid["target"])
    decoded = {}
    with TemporaryDirectory() as temporary:
        work = (args.work or Path(temporary)).absolute()
        for name in TRAINED:
            say(f"training: {name}")
            more = ("--cache", str(work / "tokens"), "--output", str(work / name), *(["--alike"] * (name == "alike")))
            process(CLI, ["train", "boost", *data, *words, "--patience", "100", *more], str(work))
            drafts = {
                "draft": str(work / name / "1"),
                "model": [f"second={work / name / '2'}", f"third={work / name / '3'}"],
            }
            decoded[name] = specbench.run(**grid, **drafts, output_dir=work / "runs", on_progress=harness.tell)
    rows = []
    for cells in zip(*(decoded[name].cells for name in TRAINED), strict=True):
        theirs, ours = (pd.DataFrame(cell.sample_rows()).set_index("prompt") for cell in cells)
        sums = [frame[name].tolist() for frame in (theirs, ours) for name in ("rounds", "tokens")]
        rows.append({
            "T": f"{cells[0].spec.temperature:g}",
            "tokens per round, trained alike": between(ratio_of_totals(sums[1], sums[0])),
            "tokens per round, boosted": between(ratio_of_totals(sums[3], sums[2])),
            "boosted ÷ alike": between(speedup_interval(*sums)),
        })  # fmt: skip
    note = (
        f"three drafts of {args.layers} layers of width {args.hidden}, {int(args.tokens):,} tokens each; boosted-merge, K = "
        f"{grid['k']}, {grid['limit']} prompts of {grid['dataset']}, {grid['max_new_tokens']} new tokens"
    )
    bench.publish([Sheet(grid["target"], rows, [note])])


if __name__ == "__main__":
    main()
