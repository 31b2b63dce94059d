"""The body of `specbench verdict`: from finished runs to sentences. Loads no torch."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import typer

from specbench.errors import NotComparableError, RegressionError, UsageError
from specbench.jobs.given_runs import read_given, rows_with, tell
from specbench.judge.settling import with_command
from specbench.judge.verdict import Recommendation, pays, recommend
from specbench.results.named_runs import short_name
from specbench.results.reading import Run
from specbench.show.fitting import screen, sentence
from specbench.show.verdict import lead, paragraphs, together
from specbench.wording import clean, text_in

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
    read = read_given(runs)
    rows = [(run, [row for _, row in rows_with(run, NEEDED)]) for run in read]
    tell(read)
    found = recommend([row for run, some in rows for row in with_command(some, *named(run))])
    if style == "json":
        typer.echo(json.dumps(list(map(asdict, found)), indent=2))
    elif explain:
        for run in read:
            explained(run, style)
    else:
        show(found, style)
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


def named(run: Run) -> tuple[str, str]:
    """The command line that made a run, "" where that is not known, and its name in commands."""
    return text_in(run.description, "command"), short_name(run.path)


def explained(run: Run, style: Style) -> None:
    """A run as it was printed when it was measured, with everything that explains it."""
    from specbench.show.run_output import Shown, print_run

    rows = [cell.row() for cell in run.cells]
    print_run(rows, style, screen(), Shown.of(run.cells, *named(run), explain=True))


def show(found: Sequence[Recommendation], style: Style) -> None:
    """The answers, each with what stands below it."""
    if style == "table":
        for line in together(found) if found else []:
            sentence(screen(), line)
        return
    for paragraph in paragraphs(found):
        typer.echo(paragraph)
