"""`specbench verdict`: the answer of finished runs in a few sentences. Needs no model."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from specbench.cli.parsing import read_results
from specbench.cli.verify import tell, unverified, verified

Format = Literal["table", "json", "md"]
NEEDED = ("status", "target", "dataset", "method", "k")


def verdict(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, or their results.csv.")],
    output: Annotated[Format, typer.Option("--format", help="table (sentences), json or md on stdout.")] = "table",
) -> None:
    """Say whether speculative decoding pays: YES, NO, PROVISIONAL or UNCLEAR, the best K, and what would settle it."""
    bare, notes = verified(runs, samples=False)
    from specbench.judge.settling import with_command
    from specbench.judge.verdict import recommend as judge
    from specbench.show.verdict_lines import markdown_sentences, sentences
    from specbench.wording import literal

    results = [(run, [row for _, row in read_results(run, NEEDED)]) for run in runs]
    tell(bare, notes)
    found = judge([row for run, rows in results for row in with_command(rows, command_of(run))])
    if output == "json":
        typer.echo(json.dumps([{**asdict(one), "unverified": bare} for one in found], indent=2))
        return
    for number, one in enumerate(found):
        first, *rest = markdown_sentences(one) if output == "md" else sentences(one)
        typer.echo("\n" * (number > 0) + "\n".join([first, *rest_of(rest, output)]))
    if bare and output == "md":
        typer.echo(f"- {literal(unverified(bare))}")
    if not found:
        typer.echo("nothing to judge: no cell with a draft was measured", err=True)


def rest_of(lines: list[str], output: Format) -> list[str]:
    """What stands below a headline: indented, or as a list."""
    return ["", *(f"- {line}" for line in lines)] if output == "md" else [f"  {line}" for line in lines]


def command_of(run: Path) -> str:
    """The command line that made a run; empty where no run.json beside its results tells it."""
    try:
        found = json.loads(((run if run.is_dir() else run.parent) / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return ""
    return str(found.get("command", "")) if isinstance(found, dict) else ""
