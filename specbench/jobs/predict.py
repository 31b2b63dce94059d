"""The body of `specbench predict`: from alpha, c and K, or a run, to printed predictions. Loads nothing heavy."""

from collections.abc import Sequence
from pathlib import Path

from specbench.errors import UsageError
from specbench.jobs.given_runs import read_given, rows_with, tell
from specbench.judge.predictions import NEEDED, predictions, read_cell
from specbench.show.predictions import print_measured, print_predictions
from specbench.show.text import Format


def from_run(run: Path, style: Format) -> None:
    """Predict the cells that a run measured."""
    (found,) = read_given([run])
    cells = [read_cell(row, where) for where, row in rows_with(found, NEEDED)]
    tell([found])
    print_measured(cells, style)


def from_rates(
    alphas: Sequence[float],
    costs: Sequence[tuple[float, bool]],
    c_hat: float | None,
    ks: list[int],
    style: Format,
) -> None:
    """Predict every K for every alpha with every c, of a token or (true) a round; UsageError if one is out of range."""
    try:
        groups = [
            predictions(alpha, c, c if c_hat is None else c_hat, ks, at_once)
            for alpha in alphas
            for c, at_once in costs
        ]
    except ValueError as error:
        raise UsageError(str(error)) from error
    print_predictions(groups, style)
