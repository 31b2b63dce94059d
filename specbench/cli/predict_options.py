"""The options of `specbench predict`, as Typer reads them. Must not know what they do."""

from pathlib import Path
from typing import Annotated, Any

import typer

from specbench.cli import completion

DEFAULT_KS = "1-12"

Alphas = Annotated[list[float] | None, typer.Option(help="Acceptance of a tested token, 0 to 1. Repeatable.")]
Cs = Annotated[list[float] | None, typer.Option(help="Seconds per draft token ÷ target step. Repeatable.")]
CRounds = Annotated[
    list[float] | None,
    typer.Option(help="In the place of --c: seconds of a round's drafts ÷ target step, where one pass makes them."),
]
CHat = Annotated[float | None, typer.Option(help="The ratio --c, or --c-round, in operations (default: the same).")]
Ks = Annotated[str | None, typer.Option(help=f"Lookahead K: 4, 1,2,4, 1-12, 1-16+3 (default {DEFAULT_KS}).")]
Run = Annotated[
    Path | None,
    typer.Option(
        help="Run folder or results.csv: predict its cells.", autocompletion=completion.beginning(completion.runs)
    ),
]

FLEET = "A fleet under load (--fleet)"


def of_fleet(flag: str, text: str, least: float | None = None) -> Any:
    return typer.Option(flag, help=text, rich_help_panel=FLEET, min=least)


Fleet = Annotated[
    bool,
    of_fleet("--fleet", "Servers under load, from --from-run, a run at several --batch: throughput, latency, cost."),
]
Arrivals = Annotated[
    list[float] | None, of_fleet("--arrivals", "Requests a second at random times, of all devices. Repeatable.", 0)
]
Users = Annotated[
    list[int] | None,
    of_fleet("--users", "So many users, who send their next request when they have the answer. Repeatable.", 1),
]
Devices = Annotated[int | None, of_fleet("--devices", "Servers that share the requests. Default: 1.", 1)]
Slots = Annotated[
    int | None, of_fleet("--slots", "Rows that a server decodes at most. Default: the largest measured batch.", 1)
]
OutputTokens = Annotated[
    float | None,
    of_fleet("--output-tokens", "Mean tokens of an answer: measured lengths are stretched. Default: as they are.", 1),
]
Requests = Annotated[int | None, of_fleet("--requests", "How many requests are played through. Default: 1000.", 10)]
Price = Annotated[float | None, of_fleet("--price", "What a device costs an hour, for the cost of tokens.", 0)]
Seed = Annotated[int | None, of_fleet("--seed", "Seed for arrivals, lengths and tokens. Default: 0.", 0)]
