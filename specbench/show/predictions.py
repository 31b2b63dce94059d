"""Predictions as tables, with the measurements of a run if given. Loads nothing heavy before it prints."""

from collections.abc import Sequence
from dataclasses import asdict, astuple, fields

import typer

from specbench.judge.predictions import Measured, Prediction
from specbench.show.text import Format, Numbers, Records, print_data
from specbench.theory import formulas, optimum

NOTE = (
    "The formula assumes one alpha for all positions, a verify pass as cheap as one decode step (v = 1) and no "
    "overhead. It misleads where acceptance changes with position, v > 1 (CPU, small GPUs, quantised kernels), "
    "overhead dominates (tiny models), or c was taken at another context length or batch size. A run measures these "
    "terms; --from-run puts them in."
)


def print_predictions(groups: Sequence[list[Prediction]], style: Format) -> None:
    """A table for each alpha and c."""
    rows = [asdict(row) for group in groups for row in group]
    print_tables(rows, [_prediction_table(group) for group in groups], style, NOTE)


def print_measured(cells: list[Measured], style: Format) -> None:
    """One table of all cells."""
    print_tables([asdict(cell) for cell in cells], [_cell_table(cells)], style, NOTE)


def _prediction_table(group: list[Prediction]) -> Numbers:
    first = group[0]
    rows = [
        (
            str(row.k),
            *map(text, (row.expected_tokens, row.speedup_predicted, row.operations, row.accepted_per_drafted)),
            "best" if row.k == row.best_k else "within 1 %" * (row.near_best_low <= row.k <= row.near_best_high),
        )
        for row in group
    ]
    header = ("K", "expected tokens", "speedup", "operations", "accepted/drafted", "")
    costs = f"{_cost(first)} {first.c:g}, c-hat{' of a round' * first.at_once} {first.c_hat:g}"
    return Numbers(f"alpha {first.alpha:g}, {costs}", header, rows, _summary(first, [row.k for row in group]))


def _cost(row: Prediction) -> str:
    return "c of a round" if row.at_once else "c"


def _summary(row: Prediction, asked: Sequence[int]) -> str:
    """The best K overall, and the α from which any pays."""
    enough = optimum.enough(row.c, row.at_once)
    if not optimum.pays(row.alpha, row.c, row.at_once):
        return f"no K pays: that needs alpha above {'c / (1 + c)' if row.at_once else 'c'} = {enough:g}"
    if not row.best_k:
        return f"no K up to {formulas.K_MAX} pays: so few tokens are not worth the pass that drafts them"
    low, high = row.near_best_low, row.near_best_high
    near = f"K = {low} to {high}" if high > low else f"K = {low} alone"
    if row.best_k == formulas.K_MAX:
        even = f"; some K pays from alpha {enough:.3f} on, c / (1 + c)" if row.at_once else ""
        return (
            f"the speedup grows with every K, to {row.best_speedup:.3f} at K = {row.best_k}; within 1 %: {near}{even}"
        )
    even = text(optimum.break_even_alpha(row.best_k, row.c))
    beyond = "" if row.best_k in asked else ", not among those of --k"
    return (
        f"best K = {row.best_k} (speedup {row.best_speedup:.3f}{beyond}), within 1 %: {near}; "
        f"break-even at alpha {even} for this K, at alpha {row.c:g} (= c) for K = 1"
    )


def _cell_table(cells: list[Measured]) -> Numbers:
    header = tuple(field.name.replace("_", " ") for field in fields(Measured))
    rows = [tuple(map(text, astuple(cell))) for cell in cells]
    return Numbers("measured and predicted speedup", header, rows, "", keys=3)


def text(value: object) -> str:
    return "" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


def print_tables(records: Records, tables: Sequence[Numbers], style: Format, note: str) -> None:
    """Print data to stdout, and the note on the formula's limits to stderr, away from pipes."""
    from rich.console import Console

    from specbench.show.fitting import sentence

    if print_data(records, style):
        return
    for table in tables:
        if style == "md":
            typer.echo(table.markdown())
        else:
            table.print()
    sentence(Console(stderr=True), note)
