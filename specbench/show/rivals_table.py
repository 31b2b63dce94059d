"""How the cells of one run compare with each other: a table per question, Markdown, JSON.

Knows duels; must not know how they were decided. Names in them come from files of results and are hostile.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict

from specbench.judge.rivals import Duel
from specbench.show.compare_table import percent
from specbench.show.number_table import NumberTable
from specbench.wording import counted, finite_or_none, formatted, grouped

HEADER = ("cell", "speedup", "change", "95 % interval", "p", "")


def rivals_tables(found: Sequence[Duel], confidence: float) -> list[NumberTable]:
    """A table for every question, what its columns mean below the last one."""
    groups = grouped(found, lambda duel: (duel.question, duel.best))
    legend = (
        "change: of the speedup, paired by prompt, with the interval of the row alone; p: two-sided, Holm-corrected "
        f"over {counted(len(found), 'pair')}, below {1 - confidence:.2g} a difference"
    )
    return [table(some, legend * (some is groups[-1])) for some in groups]


def table(duels: Sequence[Duel], legend: str) -> NumberTable:
    """All cells of a question against one."""
    first = duels[0]
    speedup = next((f" ({duel.best_speedup:.3f}×)" for duel in duels if duel.best_speedup is not None), "")
    return NumberTable(
        title=f"{first.question} · against {first.best}{speedup}",
        header=HEADER,
        lines=[line(duel) for duel in duels],
        left=1,
        legend=legend,
    )


def line(duel: Duel) -> list[str]:
    bounds = "–" if duel.low is None else f"{percent(duel.low)} … {percent(duel.high)}"
    return [
        duel.other,
        formatted(duel.other_speedup) + "×" * (duel.other_speedup is not None),
        percent(duel.change),
        bounds,
        formatted(duel.p),
        duel.reason or duel.outcome,
    ]


def as_json(found: Sequence[Duel]) -> str:
    """Every pair with all its fields; a number that is not finite is null."""
    rows = [
        {key: finite_or_none(value) if isinstance(value, float) else value for key, value in asdict(duel).items()}
        for duel in found
    ]
    return json.dumps(rows, indent=2) + "\n"
