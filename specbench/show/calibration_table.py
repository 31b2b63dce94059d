"""A calibration as tables: passes by their width, the costs of a round, and the K to choose.

Knows what a calibration found; must not know how it was measured, or where a table is printed.
"""

from dataclasses import dataclass

from specbench.results.calibration import Calibration
from specbench.show import markdown


@dataclass(frozen=True)
class Table:
    """A table ready to print: text only."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]
    together: int = 1  # columns of a length of the context, which stay beside each other


def as_markdown(table: Table) -> str:
    lines = markdown.table(table.header, table.rows, "r" * len(table.header))
    return "\n".join([f"**{table.title}**", "", *lines]) + "\n"


def tables(found: Calibration) -> list[Table]:
    """Passes by width, the costs of a round, and the K to choose; one or a few columns per length of the context."""
    return [passes(found), costs(found), choices(found)]


def passes(found: Calibration) -> Table:
    header = ["tokens"]
    for one in found.contexts:
        header += [f"ms at {one.context}", "quartiles", "v"]
    rows = [
        (str(points[0].width), *(t for p in points for t in (ms(p.milliseconds), f"{ms(p.low)}–{ms(p.high)}", n(p.v))))
        for points in zip(*(one.target for one in found.contexts), strict=True)
    ]
    title = "One pass of the target over so many tokens, by length of the context (v: ÷ one token)"
    return Table(title, tuple(header), rows, together=3)


def costs(found: Calibration) -> Table:
    header = ("context", "baseline step ms", "first drafted ms", "later ms", "c first", "c later", "overhead",
              "free width", "break-even α")  # fmt: skip
    rows = []
    for one in found.contexts:
        context, step, first, later, *shares, free, even = one.summary().values()
        times = (ms(step), ms(first), ms(later))
        rows.append((str(context), *times, *map(n, shares), str(free), "none" if even is None else n(even)))
    return Table("What a round costs; passes up to the free width cost at most 1.10 × one token", header, rows)


def choices(found: Calibration) -> Table:
    header = ["α"]
    for one in found.contexts:
        header += [f"best K at {one.context}", "within 1 %", "speedup"]
    rows = [
        (f"{at[0]['alpha']:g}", *(t for c in at for t in (str(c["best_k"]), c["near_best"], f"{c['speedup']:.2f}×")))
        for at in zip(*(one.choices() for one in found.contexts), strict=True)
    ]
    return Table("The K to choose for an acceptance α, with these costs", tuple(header), rows, together=3)


def ms(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def n(value: float) -> str:
    return f"{value:.3f}"
