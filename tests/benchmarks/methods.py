"""What the methods of a sweep gain over each other, paired by prompt, from the folders of runs.

    specbench sweep configs/grids/methods.yaml
    python -m tests.benchmarks.methods results/<run> [results/<run> …] [--save FILE]

For every data set and temperature: a line per method, the fastest first, lossy ones marked; and the ratios that the
methods promise, with 95 % intervals over prompts (delete-one jackknife of the log ratio, `results/statistics`): trees
more tokens per round than the chain, block verification at least as many accepted tokens, cascades a lower cost per
drafted token, a retrieval cache a greater acceptance than a streaming one. Nothing is decoded here.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from specbench import load_run
from specbench.results.statistics import Interval
from tests.benchmarks.harness import Bench, Row, Sheet, between, paired, parser

COLUMNS = ("tokens_per_round", "alpha", "alpha_2", "c", "c_2", "v", "overhead", "law_distance")
# What is claimed of a method against another: Σ of a column ÷ Σ of another, and whether it should be greater.
ROUND = ("tokens per round", "tokens", "rounds", True)
ACCEPTED = ("accepted per round", "accepted", "rounds", True)
ALPHA = ("α", "overlap", "tested", True)
COST = ("draft seconds per drafted token", "draft_seconds", "drafted", False)
PASS = ("seconds of verification per round", "verify_seconds", "rounds", False)
CLAIMS = {
    ROUND: "tree-top/chain tree-dynamic/chain tree-dynamic/tree-top tree-iid/chain tree-distinct/chain sequoia/chain "
           "traversal/tree-distinct merge/chain suffix-hybrid/suffix sam/recycling",
    ACCEPTED: "block/chain",
    COST: "cascade-vertical/chain cascade-horizontal/chain cascade/chain",
    PASS: "early-exit-shared/early-exit",
    ALPHA: "retrieval/streaming",
}  # fmt: skip
SAMPLED_ONLY = {"tree-iid", "tree-distinct", "sequoia", "traversal", "block"}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("runs", nargs="+", type=Path, help="folders that specbench wrote")
    args = options.parse_args()
    bench = Bench("methods", "Methods beside each other", args, torch.device("cpu"))
    bench.publish([sheet for run in args.runs for sheet in sheets(run)])


def sheets(path: Path) -> Iterator[Sheet]:
    """Two tables for every data set and temperature of a run: its methods, and what they gain over each other."""
    run = load_run(path)
    cells, samples = run.to_frame(full=True), pd.DataFrame(run.samples())
    for (data, temperature), group in cells[cells.status == "ok"].groupby(["dataset", "temperature"], sort=False):
        title = f"{data}, temperature {temperature:g}, K = {', '.join(map(str, sorted(set(group.k))))}"
        yield Sheet(title, [line(cell) for _, cell in group.sort_values("speedup", ascending=False).iterrows()])
        of = dict(zip(group.method, group.cell, strict=True))
        pairs = [(what, *pair.split("/")) for what, pairs in CLAIMS.items() for pair in pairs.split()]
        found = [row(what, mine, other, samples, of) for what, mine, other in pairs
                 if {mine, other} <= of.keys() and (temperature > 0 or mine not in SAMPLED_ONLY)]  # fmt: skip
        if found:
            yield Sheet(f"{title}: what is gained", found)


def line(cell: "pd.Series[Any]") -> Row:
    """A method as the report of results shows it."""
    numbers = {name: cell[name] for name in COLUMNS if name in cell and pd.notna(cell[name])}
    interval = Interval(cell.speedup, cell.speedup_low, cell.speedup_high)
    name = f"{cell.method} (lossy)" if cell.lossless == "lossy" else cell.method
    return {"method": name, "speedup": between(interval), **numbers,
            "predicted": cell.speedup_predicted, "calibrated": cell.speedup_calibrated}  # fmt: skip


def row(what: tuple[str, str, str, bool], mine: str, other: str, samples: pd.DataFrame, of: dict[str, str]) -> Row:
    """A ratio over the prompts that both methods have decoded, and whether its interval shows the claim."""
    name, over, under, greater = what
    ratio, prompts = paired(samples, of[mine], of[other], over, under)
    above, below = ratio.low > 1, ratio.high < 1
    holds, against = (above, below) if greater else (below, above)
    return {"method": mine, "÷": other, "what": name, "ratio": between(ratio),
            "prompts": prompts, "shown": "yes" if holds else "the contrary" if against else "open"}  # fmt: skip


if __name__ == "__main__":
    main()
