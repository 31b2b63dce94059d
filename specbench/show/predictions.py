"""Predictions as tables, with the measurements of a run if given."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, fields
from typing import Any

import typer
from rich.console import Console

from specbench.judge.predictions import Measured, Prediction
from specbench.show.fitting import sentence
from specbench.show.table import Numbers, Records, print_data
from specbench.show.text import Format
from specbench.theory import formulas, optimum
from specbench.wording import grouped, tokens_said

NOTE = (
    "The formula assumes one alpha for all positions, a verify pass as cheap as one decode step (v = 1) and no "
    "overhead. It misleads where acceptance changes with position, v > 1 (CPU, small GPUs, quantised kernels), "
    "overhead dominates (tiny models), or c was taken at another context length or batch size. A run measures these "
    "terms; --from-run puts them in."
)

FORECAST = (
    "Every position has the same alpha here, and its value is an assumption until a run measures it (specbench run). "
    "Texts end in the middle of rounds, and prompts are read before: both are not in these numbers."
)

COSTS = {
    "baseline_tokens_per_second": "baseline tokens/s", "baseline_step_ms": "step ms", "attention_ms": "attention ms",
    "attention_unmasked_ms": "without mask", "draft_token_ms": "drafted token ms", "c": "c", "v": "v",
    "overhead": "overhead",
}  # fmt: skip


def print_forecast(basis: str, rows: Records, style: Format) -> None:
    """The costs of a round by tier and context, and the best K for every alpha."""
    print_tables(rows, forecast_tables(basis, rows), style, f"note: {basis}. {FORECAST}")


def forecast_tables(basis: str, rows: Records) -> list[Numbers]:
    """Costs are those at the best K of the highest alpha."""
    levels = list(grouped(rows, lambda row: (row["tier"], row["batch"], row["context"])))
    keys = ("tier", "context", "batch")
    costs = {name: words for name, words in COSTS.items() if name in rows[0]}
    highest = [max(some, key=lambda row: row["alpha"]) for some in levels]
    lines = [(*level_of(row), str(row["k"]), *(short(row[name]) for name in costs)) for row in highest]
    header = (*keys, "K", *costs.values())
    choices = [(*level_of(some[0]), *map(choice, some)) for some in levels]
    alphas = [f"alpha {row['alpha']:g}" for row in levels[0]]
    title = f"{rows[0]['hardware']}: costs of a round, {basis}"
    return [
        Numbers(title, header, lines, keys=3),
        Numbers("best K and speedup", (*keys, *alphas), choices, keys=3),
    ]


def level_of(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return str(row["tier"]), tokens_said(row["context"]), str(row["batch"])


def choice(row: Mapping[str, Any]) -> str:
    """The best K with its speedup; a dash if none pays."""
    return f"K{row['k']} {row['speedup']:.2f}×" if row["k"] else "–"


def short(value: float) -> str:
    """Three digits, and all before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 1 else f"{value:.3f}"


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
    if print_data(records, style):
        return
    for table in tables:
        if style == "md":
            typer.echo(table.markdown())
        else:
            table.print()
    sentence(Console(stderr=True), note)
