"""The body of `specbench predict`: from alpha, c and K, or a run, to printed predictions. Loads nothing heavy."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from specbench.errors import UsageError
from specbench.judge.advice import QUESTION
from specbench.judge.fleet import NEEDED as FLEET_NEEDS
from specbench.judge.fleet import Arm, arms, lengths
from specbench.judge.predictions import NEEDED, calibrated_at, costs_by_k, predictions, read_cell
from specbench.show.predictions import (
    Line,
    print_fleet,
    print_forecast,
    print_measured,
    print_other_k,
    print_predictions,
)
from specbench.show.text import Format
from specbench.theory.fleet import Load, simulate
from specbench.wording import clean, clean_path, grouped, resume_command

if TYPE_CHECKING:
    from specbench.results.reading import Run

CONTEXTS = ("512", "2k", "4k", "32k")  # of a forecast


def from_run(run: Path, style: Format, ks: Sequence[int] = ()) -> None:
    """Predict the cells of a measured run, or those with other K."""
    (found,) = read_given([run])
    rows = rows_with(found, NEEDED)
    cells = [read_cell(row, where) for where, row in rows]
    tell([found])
    note_tiers(row for _, row in rows)
    if not ks:
        print_measured(cells, style)
        return
    both = [(row, cell) for (_, row), cell in zip(rows, cells, strict=True)]
    alike = grouped(both, lambda one: tuple(one[0].get(name) for name in ("method", "schedule", *QUESTION)))
    print_other_k([
        {"dataset": cell.dataset, "method": cell.method, "measured_k": cell.k, "speedup": cell.speedup, "k": k,
         "speedup_calibrated": calibrated_at(row, cell, k, costs_by_k(other for _, other in some))}
        for some in alike for row, cell in some for k in ks
    ], style)  # fmt: skip


def from_rates(
    alphas: Sequence[float],
    costs: Sequence[tuple[float, bool]],
    c_hat: float | None,
    ks: list[int],
    style: Format,
) -> None:
    """Predict every K for every alpha and c, per token or, if true, per round; UsageError if one is out of range."""
    try:
        groups = [
            predictions(alpha, c, c if c_hat is None else c_hat, ks, at_once)
            for alpha in alphas
            for c, at_once in costs
        ]
    except ValueError as error:
        raise UsageError(str(error)) from error
    print_predictions(groups, style)


def from_hardware(
    hardware: str, settings: Mapping[str, Any], alphas: Sequence[float], ks: Sequence[int], style: Format
) -> None:
    """Predict a pair before it is measured: on a GPU of configs/hardware.yaml by calculation, on this CPU from a few
    of its layers. `settings`: of the cells, lists are axes. UsageError if something is unknown or out of range."""
    from specbench.jobs.calibrate import forecast  # loads torch
    from specbench.measure import grid
    from specbench.results.calibration import ALPHAS

    if wrong := [alpha for alpha in alphas if not 0 <= alpha <= 1]:
        raise UsageError(f"alpha must be in [0, 1], got {wrong[0]:g}")
    usual = {"context": list(CONTEXTS), "tier": ["auto"] if hardware == "cpu" else ["eager", "graph", "compile"]}
    print_forecast(*forecast(hardware, grid.cells({**usual, **settings}), alphas or ALPHAS, ks), style)


# --- fleet ------------------------------------------------------------------------------------------------------------
# The body of `specbench predict --fleet`: from a run at several batches to servers under load. Loads no torch.


@dataclass(frozen=True)
class Servers:
    """A simulated fleet; price: per device and hour; None for slots (rows per device) or output_tokens: as measured."""

    devices: int
    slots: int | None
    output_tokens: float | None
    requests: int
    price: float | None
    seed: int


def start(run: Path, arrivals: Sequence[float], users: Sequence[int], servers: Servers, style: Format) -> None:
    """Simulate every load with every method of a run and its baseline. UsageError without a load or a folder."""
    if not arrivals and not users:
        raise UsageError("no load: give --arrivals (requests a second, such as 0.5) or --users (such as 16)")
    if not all(rate > 0 for rate in arrivals):
        raise UsageError("--arrivals must be above 0 requests a second")
    (read,) = read_given([run])
    rows = [row for _, row in rows_with(read, FLEET_NEEDS)]
    note_tiers(rows)
    found = arms(rows, servers.slots)
    samples = [row for rows in read.samples for row in rows]
    tell([read])
    print_fleet([line for arm in found for line in lines(arm, samples, arrivals, users, servers)], servers.price, style)


def lines(
    arm: Arm, samples: Sequence[dict[str, str]], arrivals: Sequence[float], users: Sequence[int], servers: Servers
) -> list[Line]:
    """The results of an arm under every load."""
    long = lengths(samples, arm, servers.output_tokens)
    capacity = servers.devices * arm.engine.capacity(sum(long) / len(long))
    loads = [Load(servers.requests, long, rate=rate, seed=servers.seed) for rate in arrivals]
    loads += [Load(servers.requests, long, users=count, seed=servers.seed) for count in users]
    return [Line(arm, load, servers.devices, capacity, simulate(arm.engine, load, servers.devices)) for load in loads]


# --- given runs -------------------------------------------------------------------------------------------------------
# The runs that a reading command takes: read from their journals, with notes on stderr. Loads no torch.


def read_given(paths: Sequence[Path]) -> "list[Run]":
    """Read runs from folders. UsageError if one is not a run or has no results yet."""
    from specbench.results.reading import read_run  # slow to import

    runs = {path: read_run(path) for path in dict.fromkeys(paths)}
    for path, run in runs.items():
        if not run.cells:
            raise UsageError(f"no cell of {clean_path(path)} has begun: {resume_command(path)} starts them")
    return [runs[path] for path in paths]


def tell(runs: "Iterable[Run]") -> None:
    """Print a line on stderr for unfinished cells and for every edited table."""
    from specbench.results.reading import edited, unfinished

    for run in {run.path: run for run in runs}.values():
        for line in (*unfinished(run), *edited(run)):
            typer.echo(f"note: {line}", err=True)


def note_tiers(rows: Iterable[Mapping[str, str]]) -> None:
    """Print a line on stderr if costs were measured in several tiers."""
    tiers = dict.fromkeys(clean(tier) for row in rows if (tier := row.get("tier_resolved")))
    if len(tiers) > 1:
        typer.echo(
            f"note: the rows are of the tiers {', '.join(tiers)}: c and v of one do not hold in another", err=True
        )


def rows_with(run: "Run", needed: Sequence[str]) -> list[tuple[str, dict[str, str]]]:
    """The rows of a run that have all `needed` values, each with its location.

    Rows without them (failed cells, baselines) are left out, and their number is printed on stderr.
    UsageError if none is usable.
    """
    rows, file = run.rows, clean_path(run.path / "results.csv")
    found = [(f"{file}, row {n}", row) for n, row in enumerate(rows, start=1) if all(row.get(x) for x in needed)]
    if not found:
        raise UsageError(
            f"{file} has no row with {', '.join(needed)}: give a run in which at least one cell was measured"
        )
    if len(found) < len(rows):
        typer.echo(f"left out {len(rows) - len(found)} of {len(rows)} rows, without {', '.join(needed)}", err=True)
    return found
