"""Trained heads beside a chain, prompt lookup and layer skip on one target: the tables of finished runs, by category.

    specbench sweep heads.yaml --output RUN        # as below
    python -m tests.benchmarks.heads RUN [RUN2 …] [--curves FOLDER …] [--save FILE]

It decodes nothing itself: `specbench sweep` does, all cells of a pair interleaved, each with the baseline of its pair.
A grid names every head as a draft, and what needs none in a second run, for instance:

    target: ./smollm2-135m
    draft: [./eagle3, ./medusa, ./pard, ./draft]     # the second run: none
    dataset: [jsonl:eagle3/held-out.jsonl]
    method: [chain]                                  # [prompt-lookup, ./layers.yaml]
    k: [4]
    limit: 26

`--curves` are folders that `specbench train` wrote: what each head had learned when it was best. The columns are those
of results.csv and categories.csv; c is of a drafted token, and in brackets of a round where one pass drafts all.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from specbench.judge.drafts import drafting

from specbench.results.reading import CATEGORIES, RESULTS, rows_of
from specbench.wording import grouped
from tests.benchmarks import harness
from tests.benchmarks.harness import Bench, Sheet

CURVE, ALL = "curve.csv", "all"
Line = dict[str, Any]


def main() -> None:
    """Read the runs, print and save their tables."""
    options = harness.parser(__doc__)
    options.add_argument("runs", nargs="+", type=Path, help="folders that specbench wrote")
    options.add_argument("--curves", nargs="*", type=Path, default=[], help="folders of trainings")
    options.add_argument("--title", default="Trained heads", help="(Trained heads)")
    args = options.parse_args()
    bench = Bench("heads", args.title, args, torch.device("cpu"))
    cells = [read(row) for run in args.runs for row in rows_of(run / RESULTS)]
    tiers = {row["cell"]: row["tier_resolved"] for row in cells}
    parts = [read(row) | {"tier": tiers[row["cell"]]} for run in args.runs for row in rows_of(run / CATEGORIES)]
    sheets = [Sheet("All prompts", [of_cell(row) for row in ours(cells)])]
    sheets += by_category(ours(parts))
    bench.publish(sheets + ([Sheet("What was learned", learned(args.curves))] if args.curves else []))


def read(row: dict[str, str]) -> Line:
    """A line of a table with its numbers as numbers."""
    return {name: number(text) for name, text in row.items()}


def number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def ours(rows: Sequence[Line]) -> list[Line]:
    """The cells of methods that were measured."""
    return [row for row in rows if row["method"] != "baseline" and row.get("speedup") not in ("", None)]


def name_of(row: Line) -> str:
    """What drafts: the folder of the draft, or the method where there is none."""
    return Path(str(row["draft"])).name if row["draft"] and row["method"] == "chain" else Path(str(row["method"])).stem


def of_cell(row: Line) -> Line:
    """A line of the first table."""
    places = sorted(name for name in row if name.startswith("acceptance_at_") and row[name] != "")
    return {
        "tier": row["tier_resolved"],
        "draft": name_of(row),
        "K": int(row["k"]),
        "prompts": int(row["prompts"]),
        "α": f"{row['alpha']:.3f}",
        "tokens per round": f"{row['tokens_per_round']:.2f}",
        "accepted at 1, 2, …": " ".join(f"{row[name]:.2f}" for name in places[: int(row["k"])]),
        "c (of a round)": f"{row['c']:.3f} ({drafting(row) or 0:.2f})",
        "v": f"{row['v']:.2f}",
        "measured": measured(row),
        "predicted": f"{row['speedup_predicted']:.2f}",
        "calibrated": f"{row['speedup_calibrated']:.2f}",
        "output": row["lossless"],
    }


def measured(row: Line) -> str:
    """The speedup, with its interval where more than one prompt gives one."""
    bounds = f" [{row['speedup_low']:.2f}, {row['speedup_high']:.2f}]" if row["speedup_low"] != "" else ""
    return f"{row['speedup']:.2f}×{bounds}"


def by_category(rows: Sequence[Line]) -> list[Sheet]:
    """Tokens per round and the measured speedup in every category, a table for each tier and K."""
    groups = grouped(rows, lambda row: (row["tier"], row["k"]))
    titles = [
        f"Tokens per round, and speedup, by category: {some[0]['tier']}, K = {int(some[0]['k'])}" for some in groups
    ]
    return [Sheet(title, lines(some)) for title, some in zip(titles, groups, strict=True)]


def lines(rows: Sequence[Line]) -> list[Line]:
    """One line for each category, with a column for each draft."""
    return [
        {"category": some[0]["category"], "prompts": int(some[0]["prompts"])}
        | {name_of(row): f"{row['tokens_per_round']:.2f}, {measured(row)}" for row in some}
        for some in grouped(sorted(rows, key=lambda row: str(row["category"])), lambda row: row["category"])
    ]


def learned(folders: Sequence[Path]) -> list[Line]:
    """What each training had reached at every judgement, over all held-out text."""
    curves = {folder.name: [read(row) for row in rows_of(folder / CURVE)] for folder in folders}
    return [
        {"draft": name, "tokens learned": f"{int(row['tokens_learned']):,}", "minutes": f"{row['seconds'] / 60:.0f}",
         "loss": row["loss"], "α": f"{row['alpha']:.3f}", "tokens per round": f"{row['tokens_per_round']:.2f}"}
        for name, rows in curves.items()
        for row in [row for row in rows if row["category"] == ALL]
    ]  # fmt: skip


if __name__ == "__main__":
    main()
