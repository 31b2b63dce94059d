"""What the methods of a sweep gain over each other, paired by prompt, from the folders of runs.

    specbench sweep configs/grids/methods.yaml
    python -m tests.benchmarks.methods results/<run> [results/<run> …] [--save FILE]

For every data set and temperature: a line per method, the fastest first, lossy ones marked; and the ratios that the
methods promise, with 95 % intervals over prompts (delete-one jackknife of the log ratio, `results/statistics`): trees
more tokens per round than the chain, block verification at least as many accepted tokens, cascades a lower cost per
drafted token, a retrieval cache a greater acceptance than a streaming one. Nothing is decoded here.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from specbench.replacing import replace_text
from specbench.results.statistics import Interval, speedup_interval
from tests.benchmarks.harness import Sheet, between, say

COLUMNS = ("tokens_per_round", "alpha", "alpha_2", "c", "c_2", "v", "overhead", "law_distance")


@dataclass(frozen=True)
class Claim:
    """That Σ of one column ÷ Σ of another is greater (or, `less`, smaller) for a method than for the one beside it."""

    what: str
    over: str
    under: str
    method: str
    other: str
    less: bool = False
    sampled_only: bool = False


ROUND = ("tokens per round", "tokens", "rounds")
COST = ("draft seconds per drafted token", "draft_seconds", "drafted")
PASS = ("seconds of verification per round", "verify_seconds", "rounds")
CLAIMS = (
    Claim(*ROUND, "tree-top", "chain"),
    Claim(*ROUND, "tree-dynamic", "chain"),
    Claim(*ROUND, "tree-dynamic", "tree-top"),
    Claim(*ROUND, "tree-iid", "chain", sampled_only=True),
    Claim(*ROUND, "tree-distinct", "chain", sampled_only=True),
    Claim(*ROUND, "sequoia", "chain", sampled_only=True),
    Claim(*ROUND, "traversal", "tree-distinct", sampled_only=True),
    Claim(*ROUND, "merge", "chain"),
    Claim(*ROUND, "suffix-hybrid", "suffix"),
    Claim(*ROUND, "sam", "recycling"),
    Claim("accepted per round", "accepted", "rounds", "block", "chain", sampled_only=True),
    Claim(*COST, "cascade-vertical", "chain", less=True),
    Claim(*COST, "cascade-horizontal", "chain", less=True),
    Claim(*COST, "cascade", "chain", less=True),
    Claim(*PASS, "early-exit-shared", "early-exit", less=True),
    Claim("α", "overlap", "tested", "retrieval", "streaming"),
)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--save", type=Path)
    args = parser.parse_args(arguments)
    text = "\n".join(sheet.markdown() for run in args.runs for sheet in sheets(run))
    print(text)
    if args.save:
        replace_text(args.save, text)
        say(f"saved: {args.save}")


def sheets(run: Path) -> Iterator[Sheet]:
    """Two tables for every data set and temperature of a run: its methods, and what they gain over each other."""
    cells = pd.read_csv(run / "results.csv")
    samples = pd.read_csv(run / "samples.csv")
    for (data, temperature), group in cells[cells.status == "ok"].groupby(["dataset", "temperature"], sort=False):
        title = f"{data}, temperature {temperature:g}, K = {', '.join(map(str, sorted(set(group.k))))}"
        yield Sheet(title, [line(cell) for _, cell in group.sort_values("speedup", ascending=False).iterrows()])
        of = {cell.method: samples[samples.cell == cell.cell].set_index("prompt") for cell in group.itertuples()}
        found = [row(claim, of) for claim in CLAIMS if {claim.method, claim.other} <= of.keys()
                 and (temperature > 0 or not claim.sampled_only)]  # fmt: skip
        if found:
            yield Sheet(f"{title}: what is gained", found)


def line(cell: "pd.Series[float]") -> dict[str, object]:
    """A method as the report of results shows it."""
    numbers = {name: cell[name] for name in COLUMNS if name in cell and pd.notna(cell[name])}
    interval = Interval(cell.speedup, cell.speedup_low, cell.speedup_high)
    name = f"{cell.method} (lossy)" if cell.lossless == "lossy" else cell.method
    return {"method": name, "speedup": between(interval), **numbers,
            "predicted": cell.speedup_predicted, "calibrated": cell.speedup_calibrated}  # fmt: skip


def row(claim: Claim, of: dict[str, pd.DataFrame]) -> dict[str, object]:
    """The ratio of a claim, over the prompts that both methods have decoded, and whether its interval says so."""
    mine, other = of[claim.method].align(of[claim.other], join="inner", axis=0)
    ratio = speedup_interval(*(frame[name].tolist() for frame in (mine, other) for name in (claim.over, claim.under)))
    holds = ratio.high < 1 if claim.less else ratio.low > 1
    against = ratio.low > 1 if claim.less else ratio.high < 1
    return {"method": claim.method, "÷": claim.other, "what": claim.what, "ratio": between(ratio),
            "prompts": len(mine), "shown": "yes" if holds else "the contrary" if against else "open"}  # fmt: skip


if __name__ == "__main__":
    main()
