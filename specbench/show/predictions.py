"""Predictions as tables, with the measurements of a run if given; and simulated servers under load."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from typing import Any

import typer
from rich.console import Console

from specbench.judge.fleet import Arm
from specbench.judge.predictions import Measured, Prediction
from specbench.show.fitting import draw, screen, sentence
from specbench.show.table import Numbers, Records, Table, print_data
from specbench.show.text import Format
from specbench.theory import formulas, optimum
from specbench.theory.fleet import SHARES, Load, Served
from specbench.wording import counted, formatted, grouped, tokens_said

NOTE = (
    "The formula assumes one alpha for all positions, a verify pass as cheap as one decode step (v = 1) and no "
    "overhead. It misleads where acceptance changes with position, v > 1 (CPU, small GPUs, quantised kernels), "
    "overhead dominates (tiny models), or c was taken at another context length or batch size. A run measures these "
    "terms; --from-run puts them in."
)

OTHER_K = (
    "Positions that were not tested accept with the mean alpha, and texts stay as long. The cost of a round is a line "
    "through the two nearest K of the run. With one K every drafted token costs the same, which is not so on a CPU: "
    "measure two."
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
    """The costs of a round, at the best K of the highest alpha; and the best K for every alpha."""
    levels = list(grouped(rows, lambda row: (row["tier"], row["batch"], row["context"])))
    keys = ("tier", "context", "batch")
    costs = {name: words for name, words in COSTS.items() if name in rows[0]}
    highest = [max(some, key=lambda row: row["alpha"]) for some in levels]
    lines = [(*level_of(row), str(row["k"]), *(short(row[name]) for name in costs)) for row in highest]
    choices = [(*level_of(some[0]), *map(choice, some)) for some in levels]
    alphas = [f"alpha {row['alpha']:g}" for row in levels[0]]
    title = f"{rows[0]['hardware']}: costs of a round, {basis}"
    tables = [
        Numbers(title, (*keys, "K", *costs.values()), lines, keys=3),
        Numbers("best K and speedup", (*keys, *alphas), choices, keys=3),
    ]
    print_tables(rows, tables, style, f"note: {basis}. {FORECAST}")


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
    header = tuple(field.name.replace("_", " ") for field in fields(Measured))
    lines = [tuple(map(text, astuple(cell))) for cell in cells]
    table = Numbers("measured and predicted speedup", header, lines, "", keys=3)
    print_tables(list(map(asdict, cells)), [table], style, NOTE)


def print_other_k(records: Records, style: Format) -> None:
    """A line for every cell and K; None: it cannot be predicted."""
    header = tuple(name.replace("_", " ") for name in records[0])
    lines = [tuple(map(text, one.values())) for one in records]
    print_tables(
        records, [Numbers("measured at one K, predicted at others", header, lines, "", keys=3)], style, OTHER_K
    )


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
    whole = " of a round" * first.at_once
    costs = f"c{whole} {first.c:g}, c-hat{whole} {first.c_hat:g}"
    return Numbers(f"alpha {first.alpha:g}, {costs}", header, rows, _summary(first, [row.k for row in group]))


def _summary(row: Prediction, lookaheads: Sequence[int]) -> str:
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
    beyond = "" if row.best_k in lookaheads else ", not among those of --k"
    return (
        f"best K = {row.best_k} (speedup {row.best_speedup:.3f}{beyond}), within 1 %: {near}; "
        f"break-even at alpha {even} for this K, at alpha {row.c:g} (= c) for K = 1"
    )


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


# --- servers under load -----------------------------------------------------------------------------------------------
# A table per data set and load with the methods and their baseline.

NAMES = ("median", *(f"p{share:.0%}".rstrip("%") for share in SHARES[1:]))
SECONDS = {"first_token": "first\ntoken", "per_token": "per\ntoken", "latency": "whole\nanswer"}
SIMULATED = (
    "simulated with the measured seconds of steps, rounds and prompts: continuous batching, first come, first served, "
    "a prompt read whole between two steps; no network, and no limit of memory but the slots"
)


@dataclass(frozen=True)
class Line:
    """One arm under one load; capacity: the requests per second that all devices can answer."""

    arm: Arm
    load: Load
    devices: int
    capacity: float
    served: Served

    @property
    def overloaded(self) -> bool:
        """Whether the load exceeds the capacity: then latencies depend only on the simulated duration."""
        return self.load.rate is not None and self.load.rate > self.capacity


def print_fleet(lines: Sequence[Line], price: float | None, style: Format) -> None:
    """Print a table for every data set and load, or rows for programs."""
    if print_data([record(line, price) for line in lines], style):
        return
    groups = grouped(lines, lambda line: (line.arm.dataset, line.load.rate, line.load.users))
    for group in groups:
        found = fleet_table(group, price, SIMULATED * (group is groups[-1]))
        if style == "md":
            typer.echo(found.markdown())
        else:
            draw(screen(), found.drawn())


def record(line: Line, price: float | None) -> dict[str, Any]:
    """All values in full precision."""
    served = line.served
    waits = {
        f"{column}_seconds_{name}": value
        for column in SECONDS
        for name, value in zip(NAMES, getattr(served, column) or (None,) * len(NAMES), strict=True)
    }
    return {
        "dataset": line.arm.dataset,
        "method": line.arm.name,
        "arrivals_per_second": line.load.rate,
        "users": line.load.users,
        "devices": line.devices,
        "slots": line.arm.engine.slots,
        "capacity_requests_per_second": line.capacity,
        "overloaded": line.overloaded,
        "tokens_per_second": served.tokens_per_second,
        "tokens_per_second_per_device": served.tokens_per_second / line.devices,
        "requests_per_second": served.requests_per_second,
        "busy": served.busy,
        "rows": served.rows,
        **waits,
        "cost_per_million_tokens": million(line, price, served.tokens_per_second),
    }


def million(line: Line, price: float | None, tokens_per_second: float) -> float | None:
    """The cost of the devices, which cost the same when idle, while they emit a million tokens."""
    return None if price is None else price * line.devices / 3600 / tokens_per_second * 1e6


def fleet_table(lines: Sequence[Line], price: float | None, legend: str) -> Table:
    """The methods under one load."""
    first = lines[0]
    load = f"{first.load.rate:g} requests a second" if first.load.rate else counted(first.load.users or 0, "user")
    waits = [f"{label}\n{name}" for label in SECONDS.values() for name in NAMES[:2]]
    header = ["method", "tokens/s\nper device", "busy", "rows", *waits, *["cost of 1 M\ntokens"] * (price is not None)]
    return Table(
        title=f"{first.arm.dataset} · {load} · {counted(first.devices, 'device')} of {first.arm.engine.slots} slots",
        header=header,
        lines=[fleet_line(line, price) for line in lines],
        left=1,
        findings=[finding(line, lines[0], price) for line in lines],
        legend=legend,
    )


def fleet_line(line: Line, price: float | None) -> list[str]:
    served = line.served
    waits = [value for column in SECONDS for value in (*getattr(served, column), None, None)[:2]]
    paid = million(line, price, served.tokens_per_second)
    return [
        line.arm.name,
        f"{served.tokens_per_second / line.devices:.1f}",
        f"{served.busy:.0%}",
        f"{served.rows:.1f}",
        *("–" if value is None else seconds(value) for value in waits),
        *([] if paid is None else [f"{paid:.2f}"]),
    ]


def seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"


def finding(line: Line, baseline: Line, price: float | None) -> str:
    """The capacity against the baseline's, and whether it suffices."""
    ratio = f", {line.capacity / baseline.capacity:.2f}× the baseline" * (line is not baseline)
    most = line.capacity * sum(line.load.lengths) / len(line.load.lengths)  # tokens per second
    least = f", at {formatted(million(line, price, most), '.2f')} a million tokens" * (price is not None)
    over = "; overloaded, so waits grow for as long as it goes on" * line.overloaded
    return f"{line.arm.name}: at most {line.capacity:.3g} requests a second{ratio}{least}{over}"
