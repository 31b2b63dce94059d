"""`specbench verdict`: the answer of finished runs in a few sentences. Needs no model."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from specbench.cli.parsing import read_results

Format = Literal["table", "json", "md"]
NEEDED = ("status", "target", "dataset", "method", "k")


def verdict(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, or their results.csv.")],
    output: Annotated[Format, typer.Option("--format", help="table (sentences), json or md on stdout.")] = "table",
) -> None:
    """Say whether speculative decoding pays: YES, NO or UNCLEAR, the best K, and what would change the answer."""
    rows = [row for run in runs for _, row in read_results(run, NEEDED)]
    from specbench.bench.verdict import lines
    from specbench.bench.verdict import verdict as judge
    from specbench.bench.wording import literal

    found = judge(rows)
    if output == "json":
        typer.echo(json.dumps([asdict(one) for one in found], indent=2))
        return
    for number, (first, *rest) in enumerate(map(lines, found)):
        blank = "\n" * (number > 0)
        if output == "md":
            first, rest = f"**{literal(first)}**\n", [f"- {literal(line)}" for line in rest]
        else:
            rest = [f"  {line}" for line in rest]
        typer.echo(blank + "\n".join([first, *rest]))
    if not found:
        typer.echo("nothing to judge: no cell with a draft was measured", err=True)
