"""Simulated servers under load: a table per data set and load with the methods and their baseline."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import typer

from specbench.judge.fleet import Arm
from specbench.show.fitting import draw, screen
from specbench.show.table import Table, print_data
from specbench.show.text import Format
from specbench.theory.fleet import SHARES, Load, Served
from specbench.wording import counted, grouped

NAMES = ("median", *(f"p{share:.0%}".rstrip("%") for share in SHARES[1:]))
SECONDS = {"first_token": "first\ntoken", "per_token": "per\ntoken", "latency": "whole\nanswer"}
NOTE = (
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
        found = fleet_table(group, price, NOTE * (group is groups[-1]))
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
        "cost_per_million_tokens": cost(line, price),
    }


def cost(line: Line, price: float | None) -> float | None:
    """The cost of a million tokens at this load: devices cost the same when idle."""
    return None if price is None else million(line, price, line.served.tokens_per_second)


def million(line: Line, price: float, tokens_per_second: float) -> float:
    """The cost of the devices while they emit a million tokens."""
    return price * line.devices / 3600 / tokens_per_second * 1e6


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
    paid = cost(line, price)
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
    least = "" if price is None else f", at {million(line, price, most):.2f} a million tokens"
    over = "; overloaded, so waits grow for as long as it goes on" * line.overloaded
    return f"{line.arm.name}: at most {line.capacity:.3g} requests a second{ratio}{least}{over}"
