"""The body of `specbench verdict`: from finished runs to sentences. Loads no torch."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import typer

from specbench.errors import NotComparableError, RegressionError, UsageError
from specbench.jobs.given_runs import Checked, read_results, verified
from specbench.judge.settling import with_command
from specbench.judge.verdict import Recommendation, pays, recommend
from specbench.results.named_runs import short_name
from specbench.show.fitting import screen, sentence
from specbench.show.verdict_lines import lead, paragraphs, together
from specbench.wording import clean, literal, unverified

Style = Literal["table", "json", "md"]
NOTHING = "nothing to judge: no cell with a draft was measured"
NEEDED = ("status", "target", "dataset", "method", "k")


def start(runs: Sequence[Path], style: Style, explain: bool, judges: bool = False, least: float | None = None) -> None:
    """Print the answers of the runs together; to `explain`, each run with all its tables and notes. Where it `judges`,
    or the speedup is to be at least something, end with the exit code of the worst answer."""
    if least is not None and (judges or not 0 < least < math.inf):
        raise UsageError(
            "--fail-under takes a speedup such as 1.1, and sets the exit code itself: leave out --exit-code"
        )
    checked = verified(runs, samples=False)
    results = [(run, [row for _, row in read_results(run, NEEDED)]) for run in runs]
    checked.tell()
    found = recommend([row for run, rows in results for row in with_command(rows, *named(run, checked))])
    if style == "json":
        typer.echo(json.dumps([{**asdict(one), "unverified": checked.bare} for one in found], indent=2))
    elif explain:
        for run in runs:
            explained(run, checked, style)
    else:
        show(found, checked.bare, style)
    if judges or least is not None:
        conclude(found, least)
    elif not found:
        typer.echo(NOTHING, err=True)


def conclude(found: Sequence[Recommendation], least: float | None) -> None:
    """End as the worst answer says: RegressionError for a NO or a speedup below `least`, NotComparableError where that
    is not settled."""
    if not found:
        raise NotComparableError(NOTHING)
    below = "speculative decoding does not pay" if least is None else f"the speedup is below {least:g}×"
    for error, said, answer in (
        (RegressionError, below, False),
        (NotComparableError, f"it is not settled whether {below}", None),
    ):
        if those := [one for one in found if pays(one, least) is answer]:
            more = f"; and {len(those) - 1} more" if len(those) > 1 else ""
            raise error(f"{said} on {clean(those[0].dataset)}: {lead(those[0])}{more}")


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
