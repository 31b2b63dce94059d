"""Requests to servers: throughput and waits of every cell, the method below its baseline.

Knows rows of results.csv; must not know how requests are sent.
"""

from collections.abc import Iterator, Sequence

from specbench.results.cells import MEASURED
from specbench.results.latency import POINTS
from specbench.show.cell_text import NOTHING
from specbench.show.cells_table import LABELS, named, naming
from specbench.show.number_table import NumberTable
from specbench.spec import BASELINE
from specbench.wording import Row, number_in

RATES = (("tokens\n/s", "served_tokens_per_second"), ("requests\n/s", "served_requests_per_second"))
WAITS = (("first\ntoken", "ttft"), ("per\ntoken", "per_token"), ("whole\nanswer", "latency"))
COLUMNS = (*RATES, *((f"{label}\n{point}", f"{name}_{point}_ms") for label, name in WAITS for point in POINTS))
LEGEND = (
    "waits in milliseconds, from when a request came; per token from the first piece of an answer to its last; tokens "
    "and requests a second over whole turns, prompts and waits included"
)


def served_tables(rows: Sequence[Row]) -> Iterator[NumberTable]:
    """A table of the cells that servers decoded, if there are any."""
    found = [row for row in rows if row["status"] in MEASURED and number_in(row, "served_tokens_per_second")]
    if not found:
        return
    keys = [key for key in naming(found) if key not in ("method", "k")]
    yield NumberTable(
        title="requests · throughput and waits",
        header=[*(LABELS.get(key, key) for key in keys), "arm", *(label for label, _ in COLUMNS)],
        lines=[line for row in found for line in lines(row, keys)],
        left=len(keys) + 1,
        keys=len(keys) + 1,
        legend=LEGEND,
    )


def lines(row: Row, keys: Sequence[str]) -> Iterator[list[str]]:
    """The baseline of a cell, and its method."""
    names = [named(row, key) for key in keys]
    yield [*names, BASELINE, *(told(row, f"baseline_{column}") for _, column in COLUMNS)]
    if row["method"] != BASELINE:
        yield [*names, f"{named(row, 'method')} K{named(row, 'k')}", *(told(row, column) for _, column in COLUMNS)]


def told(row: Row, column: str) -> str:
    """A number with three digits, a whole one where it has more."""
    value = number_in(row, column)
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
