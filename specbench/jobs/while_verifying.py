"""The body of `specbench predict --parallel`: from numbers, traces or a run to printed predictions. Loads no torch."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

from specbench import metrics
from specbench.decoding.method_files import FITTING, chains_from
from specbench.errors import UsageError
from specbench.jobs.given_runs import read_results, verified
from specbench.judge import while_verifying
from specbench.judge.while_verifying import FANS, NEEDED, Counted, Hits
from specbench.results.trace_file import TokenView, TracedRound, read_trace
from specbench.show.records import Format
from specbench.show.while_verifying import print_cells, print_rates
from specbench.wording import clean, clean_path


def from_rates(
    alphas: Sequence[float],
    costs: Sequence[tuple[float, bool]],
    ks: Sequence[int],
    v: float,
    hit: float | None,
    style: Format,
) -> None:
    """Predict every K for every alpha with every cost, a token's or (true) a round's; UsageError out of range."""
    try:
        groups = [
            [while_verifying.of_rates(alpha, c, v, k, hit, at_once) for k in ks if k]
            for alpha in alphas
            for c, at_once in costs
        ]
    except ValueError as error:
        raise UsageError(str(error)) from error
    print_rates(groups, style)


def from_traces(files: Sequence[Path], costs: Sequence[tuple[float, bool]], v: float, style: Format) -> None:
    """Predict what traced decodes would have been with the draft at work meanwhile; UsageError out of range."""
    counted = counted_in(files)
    try:
        groups = [while_verifying.of_traces(counted, c, v, one) for c, one in costs]
    except ValueError as error:
        raise UsageError(str(error)) from error
    print_rates(groups, style)


def from_run(run: Path, hit: float | None, traces: Sequence[Path], style: Format) -> None:
    """Predict the cells of a run whose methods can do it, with the share of hits that is given or that traces count."""
    counted = counted_in(traces) if traces else None
    given = counted.hits if counted else [] if hit is None else [Hits("given", hit)]
    checked = verified([run], samples=False)
    rows = read_results(run, NEEDED)
    of_cells = [while_verifying.of_cell(row, where, given) for where, row in rows if wanted(row, counted)]
    checked.tell()
    why = f"the traces are of {counted.method} with K = {counted.k}" if counted else FITTING
    if not of_cells:
        raise UsageError(f"{clean_path(run)} has no cell to predict: {why}")
    if len(of_cells) < len(rows):
        typer.echo(f"left out {len(rows) - len(of_cells)} of {len(rows)} rows: {why}", err=True)
    print_cells([row for cell in of_cells for row in cell], style)


def wanted(row: Mapping[str, str], counted: Counted | None) -> bool:
    """Whether a row is of a method that can do it, no head drafting, and of that of the traces where there are some."""
    alike = counted is None or (row.get("method"), row.get("k")) == (counted.method, str(counted.k))
    return alike and not row.get("draft_head") and fits(row.get("method", ""))


def fits(method: str) -> bool:
    """Whether all drafts of a method are chains from a model of its own; false of one that nobody knows any more."""
    try:
        return chains_from(method) == "draft"
    except UsageError:
        return False


def counted_in(files: Sequence[Path]) -> Counted:
    """What traces of one method and K say together; UsageError where they differ, or the draft was not asked."""
    views = [(file, read_trace(file)) for file in files]
    for file, view in views:
        if any(one.guess is None for one in view.rounds):
            raise UsageError(
                f"{clean_path(file)} does not say what the draft guessed: {FITTING}; write it with specbench trace "
                "--method chain --output FILE"
            )
    about = {(clean(str(view.settings.get("method"))), view.settings.get("K")) for _, view in views}
    if len(about) > 1:
        raise UsageError(
            f"the traces are of {', '.join(f'{m} with K = {k}' for m, k in sorted(about, key=str))}: give those of one"
        )
    (method, k), *_ = about
    rounds = [one for _, view in views for one in rounds_of(view)]
    if not isinstance(k, int) or not rounds:
        raise UsageError("the traces have no round that is followed by another: trace more --max-new-tokens")
    return Counted(
        method, k, len(rounds), metrics.acceptance([r.counts for r in rounds]).tokens_per_round, hits(rounds)
    )


def rounds_of(view: TokenView) -> Sequence[TracedRound]:
    """The rounds that another one follows."""
    return view.rounds[:-1]


def hits(rounds: Sequence[TracedRound]) -> list[Hits]:
    """Of a draft that goes on with the one text that it holds likeliest, and with so many for every number of accepted
    tokens: the share of rounds that ended with one of them."""

    def share(number: int) -> float:
        return metrics.ratio(number, len(rounds))

    one = sum(r.guess == 0 and r.counts.accepted == r.counts.drafted for r in rounds)
    fans = [(fan, sum(r.guess is not None and r.guess < fan for r in rounds)) for fan in FANS]
    return [Hits("one text", share(one)), *(Hits(f"{fan} per place", share(number)) for fan, number in fans)]
