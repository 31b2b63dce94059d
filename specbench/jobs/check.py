"""The body of `specbench check`: what a run needs, whether the pair fits, and whether memory is enough; no weights.

May import torch.
"""

from collections.abc import Sequence

from rich.console import Console

from specbench.backends.base import Backend, Held
from specbench.backends.choose import backend_for
from specbench.backends.roles import undrafted
from specbench.choices import expanded
from specbench.errors import MissingError, TooLargeError, UnusableModelError, command_for
from specbench.jobs.output import say
from specbench.measure import grid
from specbench.measure.fit import Needed, fit_of, needed, roomiest
from specbench.measure.plan import prompts_of
from specbench.models.checkpoints.check import NO_LIMIT
from specbench.show.checks import memory_rows, memory_table, needed_rows, needed_table
from specbench.show.text import Format, print_records
from specbench.spec import BASELINE, RunSpec
from specbench.theory.memory import Fit
from specbench.wording import gigabytes, grouped

TIGHT = 0.9  # of what is free
ASSUMED = 1024  # tokens of the longest prompt of a data set that is not here yet


def start(cells: Sequence[RunSpec], style: Format, quiet: bool, *, method: bool) -> None:
    """Check every pair of some cells; the first that is not ready ends the command with what is wrong.

    method: whether it was named; else a target for which no draft is known is checked alone.
    """
    err = Console(stderr=True, quiet=quiet)
    alone = not method and cells[0].draft is None and cells[0].backend != "openai"
    for specs in grid.by_pair(list(dict.fromkeys(cell.baseline for cell in cells)) if alone else cells):
        check_pair(expanded(specs), style, err)
    if alone:
        say(err, [undrafted(cells[0].target)])


def check_pair(specs: Sequence[RunSpec], style: Format, err: Console) -> None:
    """Print what one pair needs and takes. MissingError for what is neither here nor to be had, UnusableModelError for
    a pair that does not fit together, or into memory."""
    found = needed(specs)
    title = f"what {specs[0].target} needs"
    if lacking := [one.lacking for one in found if one.state == "missing"]:
        print_records(needed_rows(found), {title: needed_table(found)}, style)
        raise MissingError([*lacking, *(one.lacking for one in found if one.state == "to fetch")])
    try:
        backend = backend_for(specs)
    except UnusableModelError:
        print_records(needed_rows(found), {title: needed_table(found)}, style)
        raise
    groups, problem, left_out = held(specs, backend, found, err), None, {}
    try:
        backend, fitting = roomiest(backend, groups)
        left_out = {**fitting.left_out}
    except TooLargeError as error:  # said after the table that shows it
        problem = error
    fit = fit_of(backend, groups)
    tables = {title: needed_table(found), **({f"memory of {fit.device}": memory_table(fit)} if fit else {})}
    print_records([*needed_rows(found), *(memory_rows(fit) if fit else [])], tables, style)
    said = [f"{s.method}, K {s.k}, batch {s.batch} would be left out: {why.error}" for s, why in left_out.items()]
    say(err, [*conclusion(found, fit, backend, specs[0].method == BASELINE), *said])
    if problem is not None:
        raise problem


def held(specs: Sequence[RunSpec], backend: Backend, found: Sequence[Needed], err: Console) -> list[Held]:
    """The groups of cells that share a baseline, with their longest prompts as far as the data sets are here."""
    absent = {one.name for one in found if one.what == "data set" and one.state == "to fetch"}
    if absent:
        say(err, [f"note: {', '.join(sorted(absent))} not here yet: prompts of {ASSUMED} tokens are assumed"])
    return [
        Held(group, ASSUMED if group[0].dataset in absent else prompts_of(group, backend).longest)
        for group in grouped(specs, lambda spec: spec.baseline)
    ]


def conclusion(found: Sequence[Needed], fit: Fit | None, backend: Backend, alone: bool) -> list[str]:
    """What is to be known and done, line by line; alone: of a target without a draft."""
    lines = [f"note: {warning}" for warning in backend.warnings]
    limit = "" if backend.context == NO_LIMIT else f"; texts have up to {backend.context:,} tokens"
    lines += [f"{'the target can be decoded' if alone else 'the pair fits together'}{limit}", backend.execution]
    if command := command_for([one.lacking for one in found]):
        lines.append(f"to fetch, with one command (a run does it, too): {command}")
    if fit is not None and fit.fits:
        free = "" if fit.free is None else f" of {gigabytes(fit.free)} free"
        enough = "just enough, by a reckoning that may be wrong by a tenth" if fit.share > TIGHT else "enough"
        lines.append(f"memory is {enough}: about {gigabytes(fit.total)}{free} on {fit.device}")
    return lines
