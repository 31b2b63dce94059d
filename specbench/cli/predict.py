"""`specbench predict`: the formulas of theory.py as tables, for given alpha and c or beside what a run measured.

Knows formulas, results.csv and printing. Must not know torch, transformers, datasets or pandas: the command answers at once.
"""

import csv
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Literal

import typer

from specbench import theory
from specbench.cli.parsing import parse_k_list
from specbench.errors import UsageError

Format = Literal["table", "csv", "json", "jsonl", "md"]

DEFAULT_K = "1-12"
PIPE_WIDTH = 160  # without a terminal there is no width to fit, and a cut number would be a wrong one
ROUNDING = 1e-5  # a mean of float32 sums of min(p, q) may exceed 1 by this much when draft and target are the same model
NEEDED = ("k", "alpha", "c", "speedup")

NOTE = (
    "The formula assumes one alpha for every position, a verify pass as cheap as one decode step (v = 1) and no overhead. It misleads "
    "where acceptance changes with position, v > 1 (CPU, small GPUs, quantised kernels), overhead dominates (tiny models), or c was "
    "taken at another context length or batch size. A run measures these terms: specbench predict --from-run RUN."
)


@dataclass(frozen=True)
class Prediction:
    """What the formulas say for one (alpha, c, K). None = undefined at this K, or reached by no alpha."""

    alpha: float
    c: float
    c_hat: float
    k: int
    expected_tokens: float
    speedup_predicted: float
    operations: float
    accepted_per_drafted: float | None
    break_even_alpha: float | None
    best_k: int
    best_speedup: float
    near_best_low: int
    near_best_high: int


@dataclass(frozen=True)
class Cell:
    """One measured row of a run beside its predictions. None = the run did not measure what the number needs."""

    dataset: str
    method: str
    k: int
    alpha: float
    c: float
    v: float | None
    overhead: float | None
    speedup: float
    speedup_predicted: float
    speedup_calibrated: float | None
    best_k: int
    best_speedup: float


@dataclass(frozen=True)
class Table:
    """A table ready to print: text only."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]
    summary: str


def predict(
    alpha: Annotated[list[float] | None, typer.Option(help="Acceptance of one tested token, 0 to 1. Repeatable.")] = None,
    c: Annotated[
        list[float] | None, typer.Option("--c", help="Seconds per drafted token ÷ seconds per target step. Repeatable.")
    ] = None,
    c_hat: Annotated[
        float | None, typer.Option(help="Operations per drafted token ÷ per target token. [default: the value of --c]")
    ] = None,
    k: Annotated[
        str | None, typer.Option("--k", help=f"Lookahead K: 4, 1,2,4, 1-12 or 1-16+3. [default: {DEFAULT_K}]")
    ] = None,
    from_run: Annotated[
        Path | None, typer.Option(help="Run folder or results.csv: its predictions beside its measured speedup.")
    ] = None,
    output: Annotated[Format, typer.Option("--format", help="How to print the data.")] = "table",
) -> None:
    """Predict tokens per round, speedup and operations from alpha, c and K, without running a model.

    Tables are rounded to 3 decimals (not truncated, as in some tutorials); csv, json and jsonl carry full precision.
    """
    if from_run is not None:
        if any(option is not None for option in (alpha, c, c_hat, k)):
            raise UsageError("--from-run takes alpha, c and K from the run: leave out --alpha, --c, --c-hat and --k")
        cells = read_cells(from_run)
        _print(cells, [_cell_table(from_run, cells)], output, Cell)
        return
    if not alpha or not c:
        raise UsageError("nothing to predict from: give --alpha and --c (such as --alpha 0.7 --c 0.1), or --from-run RUN")
    ks = parse_k_list(DEFAULT_K if k is None else k)
    try:
        groups = [predictions(a, one_c, one_c if c_hat is None else c_hat, ks) for a in alpha for one_c in c]
    except ValueError as error:
        raise UsageError(str(error)) from error
    _print([row for group in groups for row in group], [_prediction_table(group) for group in groups], output, Prediction)


def predictions(alpha: float, c: float, c_hat: float, ks: list[int]) -> list[Prediction]:
    """One Prediction per K. ValueError if an argument is out of range."""
    best, best_speedup = theory.best_k(alpha, c)
    near = theory.near_best(alpha, c)
    return [
        Prediction(
            alpha=alpha,
            c=c,
            c_hat=c_hat,
            k=k,
            expected_tokens=theory.expected_tokens(alpha, k),
            speedup_predicted=theory.speedup(alpha, k, c),
            operations=theory.operations(alpha, k, c_hat),
            accepted_per_drafted=theory.accepted_per_drafted(alpha, k) if k else None,
            break_even_alpha=theory.break_even_alpha(k, c) if k else None,
            best_k=best,
            best_speedup=best_speedup,
            near_best_low=near[0],
            near_best_high=near[-1],
        )
        for k in ks
    ]


def read_cells(path: Path) -> list[Cell]:
    """The measured rows of a run folder or results.csv; rows without numbers (failed cells, baselines) are left out, and said so."""
    file = path / "results.csv" if path.is_dir() else path
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream)
            rows, columns = list(reader), reader.fieldnames or []
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"cannot read {file}: give a run folder or its results.csv ({_reason(error)})") from error
    if missing := [name for name in NEEDED if name not in columns]:
        raise UsageError(f"{file} lacks the column(s) {', '.join(missing)}: give the results.csv of a specbench run")
    measured = [(line, row) for line, row in enumerate(rows, start=1) if all((row[name] or "").strip() for name in NEEDED)]
    if not measured:
        raise UsageError(f"{file} has no row with {', '.join(NEEDED)}: none of its cells was measured")
    if len(measured) < len(rows):
        typer.echo(f"left out {len(rows) - len(measured)} of {len(rows)} rows: no {', '.join(NEEDED)}", err=True)
    return [_read_cell(row, f"{file}, row {line}") for line, row in measured]


def _read_cell(row: dict[str, str], where: str) -> Cell:
    try:
        numbers = {name: _number(row, name) for name in (*NEEDED, "v", "overhead")}
        k, alpha, c, speedup = (float(numbers[name] or 0) for name in NEEDED)
        if not k.is_integer():
            raise ValueError(f"K must be a whole number, got {k}")
        alpha = _as_share(alpha)
        best, best_speedup = theory.best_k(alpha, c)
        return Cell(
            dataset=row.get("dataset") or "",
            method=row.get("method") or "",
            k=int(k),
            alpha=alpha,
            c=c,
            v=numbers["v"],
            overhead=numbers["overhead"],
            speedup=speedup,
            speedup_predicted=theory.speedup(alpha, int(k), c),
            speedup_calibrated=_calibrated(row, int(k), c, numbers["v"], numbers["overhead"]),
            best_k=best,
            best_speedup=best_speedup,
        )
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{where}: {error}") from error


def _calibrated(row: dict[str, str], k: int, c: float, v: float | None, overhead: float | None) -> float | None:
    measured = [_number(row, f"acceptance_at_{position}") for position in range(1, k + 1)]
    known = [_as_share(acceptance) for acceptance in measured if acceptance is not None]
    # No round gets past a position that never accepts: what lies behind it was not measured and counts for nothing.
    complete = len(known) == k or (0.0 in known and measured[: len(known)] == known)
    if v is None or overhead is None or not complete:
        return None
    return theory.speedup_calibrated([*known, *[0.0] * (k - len(known))], k, c, v, overhead)


def _number(row: dict[str, str], name: str) -> float | None:
    text = (row.get(name) or "").strip()
    try:
        return float(text) if text else None
    except ValueError as error:
        raise ValueError(f"{name} is {text!r}, not a number") from error


def _as_share(value: float) -> float:
    return 1.0 if 1 < value <= 1 + ROUNDING else value


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or "not a CSV text file"


def _prediction_table(group: list[Prediction]) -> Table:
    first = group[0]
    marks = {True: "within 1 %", False: ""}
    rows = [
        (
            str(row.k),
            *map(_rounded, (row.expected_tokens, row.speedup_predicted, row.operations, row.accepted_per_drafted)),
            "best" if row.k == row.best_k else marks[row.near_best_low <= row.k <= row.near_best_high],
        )
        for row in group
    ]
    header = ("K", "expected tokens", "speedup", "operations", "accepted/drafted", "")
    return Table(f"alpha {first.alpha:g}, c {first.c:g}, c-hat {first.c_hat:g}", header, rows, _summary(first))
