"""Trained heads beside a chain, prompt lookup and layer skip on one target: the tables of finished runs, by category.

    specbench sweep tests/benchmarks/grids/heads.yaml --output RUN
    python -m tests.benchmarks.heads RUN [RUN2 …] [--curves FOLDER …] [--save FILE]

It decodes nothing itself: `specbench sweep` does, all cells of a pair interleaved, each with the baseline of its pair.
The grid names every head as a draft; methods without a draft need a second run. `--curves` are folders that `specbench
train` wrote: what each head had learned when it was best. c is of a drafted token, and in brackets of a round where one
pass drafts all.
"""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch

from specbench import load_run
from specbench.judge.advice import drafting
from specbench.wording import grouped
from tests.benchmarks.harness import Bench, Row, Sheet, parser


def main() -> None:
    """Read the runs, print and save their tables."""
    options = parser(__doc__)
    options.add_argument("runs", nargs="+", type=Path, help="folders that specbench wrote")
    options.add_argument("--curves", nargs="*", type=Path, default=[], help="folders of trainings")
    options.add_argument("--title", default="Trained heads", help="(Trained heads)")
    args = options.parse_args()
    runs = [load_run(path) for path in args.runs]
    cells = [row for run in runs for row in run.rows() if row["method"] != "baseline" and pd.notna(row["speedup"])]
    of = {row["cell"]: row for row in cells}
    parts = [
        row | {"tier": of[row["cell"]]["tier_resolved"]}
        for run in runs
        for row in run.categories()
        if row["cell"] in of
    ]
    sheets = [Sheet("All prompts", [of_cell(row) for row in cells])]
    for some in grouped(parts, lambda row: (row["tier"], row["k"])):
        title = f"Tokens per round, and speedup, by category: {some[0]['tier']}, K = {some[0]['k']}"
        sheets.append(Sheet(title, by_category(some)))
    if args.curves:
        sheets.append(Sheet("What was learned", [row for folder in args.curves for row in learned(folder)]))
    Bench("heads", args.title, args, torch.device("cpu")).publish(sheets)


def name_of(row: Row) -> str:
    """What drafts: the folder of the draft, or the method without one."""
    return Path(row["draft"]).name if row["draft"] and row["method"] == "chain" else Path(row["method"]).stem


def of_cell(row: Row) -> Row:
    places = [row.get(f"acceptance_at_{place}") for place in range(1, row["k"] + 1)]
    return {
        "tier": row["tier_resolved"], "draft": name_of(row), "K": row["k"], "prompts": row["prompts"],
        "α": f"{row['alpha']:.3f}", "tokens per round": f"{row['tokens_per_round']:.2f}",
        "accepted at 1, 2, …": " ".join(f"{one:.2f}" for one in places if pd.notna(one)),
        "c (of a round)": f"{row['c']:.3f} ({drafting(row) or 0:.2f})", "v": f"{row['v']:.2f}",
        "measured": measured(row), "predicted": f"{row['speedup_predicted']:.2f}",
        "calibrated": f"{row['speedup_calibrated']:.2f}", "output": row["lossless"],
    }  # fmt: skip


def measured(row: Row) -> str:
    """The speedup, with its interval where more than one prompt gives one."""
    bounds = "" if pd.isna(row["speedup_low"]) else f" [{row['speedup_low']:.2f}, {row['speedup_high']:.2f}]"
    return f"{row['speedup']:.2f}×{bounds}"


def by_category(rows: Sequence[Row]) -> list[Row]:
    """One line for each category, with a column for each draft."""
    return [
        {"category": some[0]["category"], "prompts": some[0]["prompts"]}
        | {name_of(row): f"{row['tokens_per_round']:.2f}, {measured(row)}" for row in some}
        for some in grouped(sorted(rows, key=lambda row: str(row["category"])), lambda row: row["category"])
    ]


def learned(folder: Path) -> list[Row]:
    """What a training had reached at every judgement, over all held-out text."""
    curve = pd.read_csv(folder / "curve.csv")
    return [
        {"draft": folder.name, "tokens learned": f"{row.tokens_learned:,}", "minutes": f"{row.seconds / 60:.0f}",
         "loss": row.loss, "α": f"{row.alpha:.3f}", "tokens per round": f"{row.tokens_per_round:.2f}"}
        for row in curve[curve.category == "all"].itertuples()
    ]  # fmt: skip


if __name__ == "__main__":
    main()
