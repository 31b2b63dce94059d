"""Whether drafts that are fitted where others miss draft better together than as many that are trained alike.

    python -m tests.benchmarks.boosted [--data text:FOLDER] [--tokens 300000] [--layers 1] [--hidden 96] [--work FOLDER]
        [--save FILE] [KEY=VALUE …]

Trains three drafts by `specbench train boost` and three by the same command with --alike, which differ in their seeds
alone, on text as it is, and lets the method boosted-merge decode with either, by grids/boosted.yaml. Tokens per
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


def main() -> None:
    options = harness.parser(__doc__)
    options.add_argument("--data", default=f"text:{sysconfig.get_path('stdlib')}/*.py", help="the modules of Python")
    options.add_argument("--tokens", default="300000", help="learned by every draft (300000)")
    options.add_argument("--layers", default="1", help="(1)")
    options.add_argument("--hidden", default="96", help="(96)")
    options.add_argument("--work", type=Path, help="folder for what is trained (a temporary one)")
    args = harness.with_settings(options, "boosted")
    bench = harness.begin("boosted", "Drafts that complement each other, beside drafts that are trained alike", args)
    grid, decoded = harness.grid("boosted", args), {}
    words = ["--as-it-is", "--data", args.data, "--target", grid["target"]]
    words += ["--layers", args.layers, "--hidden", args.hidden, "--tokens", args.tokens, "--patience", "100"]
    words += ["--seed", str(args.seed), "--device", args.device]
    with TemporaryDirectory() as temporary:
        work = (args.work or Path(temporary)).absolute()
        work.mkdir(parents=True, exist_ok=True)
        for name, more in (("alike", ["--alike"]), ("boosted", [])):
            say(f"training: {name}")
            more += ["--cache", str(work / "tokens"), "--output", str(work / name)]
            process(CLI, ["train", "boost", *words, *more], str(work))
            first, second, third = (str(work / name / number) for number in "123")
            grid |= {"draft": first, "model": [f"second={second}", f"third={third}"]}
            decoded[name] = specbench.run(**grid, output_dir=work / "runs", on_progress=harness.tell)
    rows = []
    for cells in zip(decoded["alike"].cells, decoded["boosted"].cells, strict=True):
        theirs, ours = (pd.DataFrame(cell.sample_rows()).set_index("prompt") for cell in cells)
        sums = [frame[name].tolist() for frame in (theirs, ours) for name in ("rounds", "tokens")]
        rows.append({
            "T": f"{cells[0].spec.temperature:g}",
            "tokens per round, trained alike": between(ratio_of_totals(sums[1], sums[0])),
            "tokens per round, boosted": between(ratio_of_totals(sums[3], sums[2])),
            "boosted ÷ alike": between(speedup_interval(*sums)),
        })  # fmt: skip
    note = (
        f"three drafts of {args.layers} layers of width {args.hidden}, {int(args.tokens):,} tokens each; boosted-merge"
        f", K = {grid['k']}, {grid['limit']} prompts of {grid['dataset']}, {grid['max_new_tokens']} new tokens"
    )
    bench.publish([Sheet(grid["target"], rows, [note])])


if __name__ == "__main__":
    main()
