"""The body of `specbench verdict`: from finished runs to sentences. Loads no torch."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import typer

from specbench.jobs.given_runs import Checked, read_results, verified
from specbench.judge.settling import with_command
from specbench.judge.verdict import Recommendation, recommend
from specbench.results.named_runs import short_name
from specbench.show.fitting import screen, sentence
from specbench.show.verdict_lines import paragraphs, together
from specbench.wording import literal, unverified

Style = Literal["table", "json", "md"]
NEEDED = ("status", "target", "dataset", "method", "k")


def start(runs: Sequence[Path], style: Style, explain: bool) -> None:
    """Print the answers of the runs together; to `explain`, each run with all its tables and notes."""
    checked = verified(runs, samples=False)
    results = [(run, [row for _, row in read_results(run, NEEDED)]) for run in runs]
    checked.tell()
    found = recommend([row for run, rows in results for row in with_command(rows, *named(run, checked))])
    if style == "json":
        typer.echo(json.dumps([{**asdict(one), "unverified": checked.bare} for one in found], indent=2))
        return
    if explain:
        for run in runs:
            explained(run, checked, style)
    else:
        show(found, checked.bare, style)
    if not found:
        typer.echo("nothing to judge: no cell with a draft was measured", err=True)


def named(run: Path, checked: Checked) -> tuple[str, str]:
    """The command line that made a run, and its name in commands; a bare table has none."""
    return checked.commands[run], "" if run in checked.tables else short_name(run)


def explained(run: Path, checked: Checked, style: Style) -> None:
    """A run as it was printed when it was measured, with everything that explains it; of a bare table its answers."""
    if run in checked.tables:
        rows = with_command([row for _, row in read_results(run, NEEDED)], *named(run, checked))
        show(recommend(rows), checked.bare, style)
        return
    from specbench.results.reading import read_run
    from specbench.show.run_output import Shown, print_run

    cells = read_run(run).cells
    print_run([cell.row() for cell in cells], style, screen(), Shown.of(cells, *named(run, checked), explain=True))


def show(found: Sequence[Recommendation], bare: Sequence[str], style: Style) -> None:
    """The answers, each with what stands below it."""
    if style == "table":
        for line in together(found) if found else []:
            sentence(screen(), line)
        return
    for paragraph in paragraphs(found):
        typer.echo(paragraph)
    if bare:
        typer.echo(f"- {literal(unverified(', '.join(bare)))}")
