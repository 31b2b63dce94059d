"""`specbench predict`: the formulas of `theory` as tables, for given alpha and c or beside what a run measured.

Must not know torch, transformers, datasets or pandas: the command answers at once.
"""

from dataclasses import asdict, astuple, dataclass, fields
from itertools import takewhile
from pathlib import Path
from typing import Annotated

import typer

from specbench.cli.parsing import number, parse_k_list, read_results
from specbench.cli.verify import verified
from specbench.errors import UsageError
from specbench.show.records import Format, print_data, print_numbers
from specbench.theory import formulas, optimum
from specbench.wording import clean, literal

DEFAULT_K = "1-12"
ROUNDING = 1e-5  # a mean of float32 sums of min(p, q) may exceed 1 by this much when draft and target agree
NEEDED = ("k", "alpha", "c", "speedup")

NOTE = (
    "The formula assumes one alpha for all positions, a verify pass as cheap as one decode step (v = 1) and no "
    "overhead. It misleads where acceptance changes with position, v > 1 (CPU, small GPUs, quantised kernels), "
    "overhead dominates (tiny models), or c was taken at another context length or batch size. A run measures these "
    "terms; --from-run puts them in."
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
    keys: int = 1  # columns that say what a row is about


def predict(
    alpha: Annotated[list[float] | None, typer.Option(help="Acceptance of a tested token, 0 to 1. Repeatable.")] = None,
    c: Annotated[list[float] | None, typer.Option(help="Seconds per draft token ÷ target step. Repeatable.")] = None,
    c_hat: Annotated[float | None, typer.Option(help="The ratio --c in operations (default: --c).")] = None,
    k: Annotated[str | None, typer.Option(help=f"Lookahead K: 4, 1,2,4, 1-12, 1-16+3 (default {DEFAULT_K}).")] = None,
    from_run: Annotated[Path | None, typer.Option(help="Run folder or results.csv: predict its cells.")] = None,
    output: Annotated[Format, typer.Option("--format", help="How to print the data.")] = "table",
) -> None:
    """Predict tokens per round, speedup and operations from alpha, c and K, without running a model.

    Tables are rounded to 3 decimals (not truncated, as in some tutorials); csv, json and jsonl carry full precision.
    """
    if from_run is not None:
        if any(option is not None for option in (alpha, c, c_hat, k)):
            raise UsageError("--from-run takes alpha, c and K from the run: leave out --alpha, --c, --c-hat and --k")
        checked = verified([from_run], samples=False)
        cells = [read_cell(row, where) for where, row in read_results(from_run, NEEDED)]
        checked.tell()
        _print(cells, [_cell_table(cells)], output)
        return
    if not alpha or not c:
        raise UsageError("nothing to predict from: give --alpha and --c (such as 0.7 and 0.1), or --from-run RUN")
    ks = parse_k_list(DEFAULT_K if k is None else k)
    try:
        groups = [predictions(a, one_c, one_c if c_hat is None else c_hat, ks) for a in alpha for one_c in c]
    except ValueError as error:
        raise UsageError(str(error)) from error
    _print([row for group in groups for row in group], [_prediction_table(group) for group in groups], output)


def predictions(alpha: float, c: float, c_hat: float, ks: list[int]) -> list[Prediction]:
    """One Prediction per K. ValueError if an argument is out of range."""
    best, best_speedup = optimum.best_k(alpha, c)
    near = optimum.near_best(alpha, c)
    return [
        Prediction(
            alpha=alpha,
            c=c,
            c_hat=c_hat,
            k=k,
            expected_tokens=formulas.expected_tokens(alpha, k),
            speedup_predicted=formulas.speedup(alpha, k, c),
            operations=formulas.operations(alpha, k, c_hat),
            accepted_per_drafted=formulas.accepted_per_drafted(alpha, k) if k else None,
            break_even_alpha=optimum.break_even_alpha(k, c) if k else None,
            best_k=best,
            best_speedup=best_speedup,
            near_best_low=near[0],
            near_best_high=near[-1],
        )
        for k in ks
    ]


def read_cell(row: dict[str, str], where: str) -> Cell:
    """One row of results.csv beside its predictions. UsageError, naming the place, if a value makes no sense."""
    try:
        k, alpha, c, speedup = (number(row, name) or 0.0 for name in NEEDED)
        if not k.is_integer() or k > formulas.K_MAX:
            raise ValueError(f"k must be a whole number of at most {formulas.K_MAX}, got {k:g}")
        alpha = _as_share(alpha)
        v, overhead = number(row, "v"), number(row, "overhead")
        best, best_speedup = optimum.best_k(alpha, c)
        return Cell(
            dataset=clean(row.get("dataset", ""), 300),
            method=clean(row.get("method", "")),
            k=int(k),
            alpha=alpha,
            c=c,
            v=v,
            overhead=overhead,
            speedup=speedup,
            speedup_predicted=formulas.speedup(alpha, int(k), c),
            speedup_calibrated=_calibrated(row, int(k), c, v, overhead),
            best_k=best,
            best_speedup=best_speedup,
        )
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from error


def _calibrated(row: dict[str, str], k: int, c: float, v: float | None, overhead: float | None) -> float | None:
    measured = [number(row, f"acceptance_at_{position}") for position in range(1, k + 1)]
    tested = takewhile(lambda acceptance: acceptance is not None, measured)
    known = [_as_share(acceptance) for acceptance in tested if acceptance is not None]
    # No round gets past a position that never accepts: later ones were not tested and count for nothing.
    complete = len(known) == k or 0.0 in known
    if v is None or overhead is None or not complete:
        return None
    return formulas.speedup_calibrated([*known, *[0.0] * (k - len(known))], k, c, v, overhead)


def _as_share(value: float) -> float:
    return 1.0 if 1 < value <= 1 + ROUNDING else value


def _prediction_table(group: list[Prediction]) -> Table:
    first = group[0]
    rows = [
        (
            str(row.k),
            *map(_text, (row.expected_tokens, row.speedup_predicted, row.operations, row.accepted_per_drafted)),
            "best" if row.k == row.best_k else "within 1 %" * (row.near_best_low <= row.k <= row.near_best_high),
        )
        for row in group
    ]
    header = ("K", "expected tokens", "speedup", "operations", "accepted/drafted", "")
    return Table(f"alpha {first.alpha:g}, c {first.c:g}, c-hat {first.c_hat:g}", header, rows, _summary(first))


def _summary(row: Prediction) -> str:
    if not optimum.pays(row.alpha, row.c):
        return f"no K pays: that needs alpha above c = {row.c:g}"
    near = f"K = {row.near_best_low} to {row.near_best_high}"
    if row.best_k == formulas.K_MAX:
        return f"the speedup grows with every K, to {row.best_speedup:.3f} at K = {row.best_k}; within 1 %: {near}"
    even = _text(optimum.break_even_alpha(row.best_k, row.c))
    return (
        f"best K = {row.best_k} (speedup {row.best_speedup:.3f}), within 1 %: {near}; "
        f"break-even at alpha {even} for this K, at alpha {row.c:g} (= c) for K = 1"
    )


def _cell_table(cells: list[Cell]) -> Table:
    header = tuple(field.name.replace("_", " ") for field in fields(Cell))
    rows = [tuple(map(_text, astuple(cell))) for cell in cells]
    return Table("measured and predicted speedup", header, rows, "", keys=3)


def _text(value: object) -> str:
    return "" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


def _print(records: list[Prediction] | list[Cell], tables: list[Table], output: Format) -> None:
    """Data to stdout; the note on the formula's limits to stderr, where it spoils no pipe."""
    from rich.console import Console

    from specbench.show.fitting import sentence

    if print_data([asdict(record) for record in records], output):
        return
    for table in tables:
        (_print_markdown if output == "md" else _print_rich)(table)
    sentence(Console(stderr=True), NOTE)


def _print_markdown(table: Table) -> None:
    lines = [table.header, ("---:",) * len(table.header), *(tuple(map(literal, row)) for row in table.rows)]
    body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    typer.echo("\n\n".join(filter(None, (f"**{table.title}**", body, table.summary))) + "\n")


def _print_rich(table: Table) -> None:
    from specbench.show.fitting import screen, sentence

    best = next((number for number, row in enumerate(table.rows) if row[-1] == "best"), -1)
    print_numbers(table.title, table.header, table.rows, best, table.keys)
    sentence(screen(), table.summary + "\n" * bool(table.summary))
