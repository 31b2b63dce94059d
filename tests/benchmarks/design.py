"""Drafts of equal parameters by their depth: latency, acceptance after equal training, and measured tokens per second.

    python -m tests.benchmarks.design [--target demo] [--budget 1M,2M,4M] [--depths 1,2,4,8] [--tokens 300000]
        [--rungs 3] [--tier eager] [--like llama-7b] [--data NAME] [--prompts 20] [--new 64] [--folder results/design]
        [--save FILE]

It is `specbench design-draft` with its tables put down as Markdown; without --data the drafts learn the text of
Python's own modules. Killed and called again with the same options it goes on. Two cores take about 25 minutes.
"""

import argparse
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from specbench.cli.design_draft import BRIEF, python_modules
from specbench.jobs.design_draft import designed
from specbench.jobs.design_phases import Asked
from specbench.jobs.design_rows import Found
from specbench.jobs.parsing import parse_size
from specbench.jobs.train_data import Source
from specbench.show.design_table import line, title
from specbench.training.recipe import Recipe
from tests.benchmarks import harness
from tests.benchmarks.harness import Row, Sheet


def options() -> argparse.ArgumentParser:
    found = harness.parser(__doc__)
    found.add_argument("--target", default="demo", help="(demo)")
    found.add_argument("--budget", default="1M,2M,4M", help="(1M,2M,4M)")
    found.add_argument("--depths", default="1,2,4,8", help="(1,2,4,8)")
    found.add_argument("--tokens", type=int, default=300_000, help="that a draft learns at most (300000)")
    found.add_argument("--rungs", type=int, default=3, help="(3)")
    found.add_argument("--tier", default="eager", help="(eager)")
    found.add_argument("--dtype", default="float32", help="(float32)")
    found.add_argument("--like", help="shape whose times are taken")
    found.add_argument("--data", help="data set whose prompts the target answers (the text of Python's modules)")
    found.add_argument("--dataset", default="code", help="measured on (code)")
    found.add_argument("--prompts", type=int, default=20, help="how many (20)")
    found.add_argument("--new", type=int, default=64, help="new tokens per prompt (64)")
    found.add_argument("--repeat", type=int, default=15, help="turns of the latencies (15)")
    found.add_argument("--folder", type=Path, default=Path("results/design"), help="(results/design)")
    return found


def asked_of(args: argparse.Namespace) -> Asked:
    """The design that the options describe."""
    budgets = [parse_size(text, "--budget") for text in harness.listed(args.budget)]
    source = Source((args.data,)) if args.data else Source((python_modules(),), generate=False)
    recipe = Recipe(**{**BRIEF, "tokens": args.tokens, "seed": args.seed})
    depths = harness.numbers(args.depths)
    return Asked(budgets, depths, "all", args.like, 8, args.repeat, args.rungs, source, recipe)


def curves(found: Found) -> Iterator[Row]:
    """What every draft was worth after each rung."""
    for name, known in found.learned.items():
        for tokens, learned in known.items():
            yield {
                "shape": name,
                "tokens learned": tokens,
                "held-out α": round(learned.alpha, 3),
                f"tokens per round at K {learned.k}": round(learned.accepted, 3),
                "speedup predicted": round(found.speed.predicted(name, learned.alpha), 3),
            }


def main() -> None:
    args = options().parse_args()
    bench = harness.begin("design", "Drafts of equal parameters by depth", args)
    settings = {
        "target": args.target, "dtype": args.dtype, "device": str(bench.device), "tier": args.tier,
        "dataset": args.dataset, "limit": args.prompts, "max_new_tokens": args.new, "seed": args.seed,
    }  # fmt: skip
    _, found, said = designed(settings, asked_of(args), args.folder, Console(stderr=True))
    notes = [text.replace(sysconfig.get_path("stdlib"), "STDLIB") for text in said]
    shapes = Sheet(title(found.rows), [line(row) for row in found.rows], notes)
    bench.publish([shapes, Sheet("Held-out acceptance by training", list(curves(found)))], found.rows)


if __name__ == "__main__":
    main()
