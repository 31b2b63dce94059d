"""`specbench verdict`: the answer of finished runs in a few sentences. Needs no model."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from specbench.cli.parsing import read_results
from specbench.cli.verify import verified
from specbench.wording import literal, unverified

Format = Literal["table", "json", "md"]
NEEDED = ("status", "target", "dataset", "method", "k")


def verdict(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, or their results.csv.")],
    output: Annotated[Format, typer.Option("--format", help="table (sentences), json or md on stdout.")] = "table",
) -> None:
    """Say whether speculative decoding pays: YES, NO, PROVISIONAL or UNCLEAR, the best K, and what would settle it."""
    checked = verified(runs, samples=False)
    from specbench.judge.settling import with_command
    from specbench.judge.verdict import recommend
    from specbench.show.verdict_lines import markdown_sentences, sentences

    results = [(checked.commands[run], [row for _, row in read_results(run, NEEDED)]) for run in runs]
    checked.tell()
    found = recommend([row for command, rows in results for row in with_command(rows, command)])
    if output == "json":
        typer.echo(json.dumps([{**asdict(one), "unverified": checked.bare} for one in found], indent=2))
        return
    for number, one in enumerate(found):
        first, *rest = markdown_sentences(one) if output == "md" else sentences(one)
        typer.echo("\n" * (number > 0) + "\n".join([first, *rest_of(rest, output)]))
    if checked.bare and output == "md":
        typer.echo(f"- {literal(unverified(', '.join(checked.bare)))}")
    if not found:
        typer.echo("nothing to judge: no cell with a draft was measured", err=True)


def rest_of(lines: list[str], output: Format) -> list[str]:
    """What stands below a headline: indented, or as a list."""
    return ["", *(f"- {line}" for line in lines)] if output == "md" else [f"  {line}" for line in lines]
