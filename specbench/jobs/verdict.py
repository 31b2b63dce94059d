"""The body of `specbench verdict`: from finished runs to sentences. Loads no torch."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import typer

from specbench.jobs.given_runs import read_results, verified
from specbench.judge.settling import with_command
from specbench.judge.verdict import Recommendation, recommend
from specbench.show.verdict_lines import markdown_sentences, sentences
from specbench.wording import literal, unverified

Style = Literal["table", "json", "md"]
NEEDED = ("status", "target", "dataset", "method", "k")


def start(runs: Sequence[Path], style: Style) -> None:
    """Print the answers of the runs together."""
    checked = verified(runs, samples=False)
    results = [(checked.commands[run], [row for _, row in read_results(run, NEEDED)]) for run in runs]
    checked.tell()
    found = recommend([row for command, rows in results for row in with_command(rows, command)])
    if style == "json":
        typer.echo(json.dumps([{**asdict(one), "unverified": checked.bare} for one in found], indent=2))
        return
    show(found, checked.bare, style)
    if not found:
        typer.echo("nothing to judge: no cell with a draft was measured", err=True)


def show(found: Sequence[Recommendation], bare: Sequence[str], style: Style) -> None:
    """A headline for each, and what stands below it."""
    for number, one in enumerate(found):
        first, *rest = markdown_sentences(one) if style == "md" else sentences(one)
        typer.echo("\n" * (number > 0) + "\n".join([first, *rest_of(rest, style)]))
    if bare and style == "md":
        typer.echo(f"- {literal(unverified(', '.join(bare)))}")


def rest_of(lines: list[str], style: Style) -> list[str]:
    """What stands below a headline: indented, or as a list."""
    return ["", *(f"- {line}" for line in lines)] if style == "md" else [f"  {line}" for line in lines]
