"""The requirements of a run, as rows for programs and for readers. Loads nothing heavy."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from specbench.show.text import Format, print_records
from specbench.theory.memory import Fit
from specbench.wording import Row, formatted, gigabytes, number_in, text_in


class Thing(Protocol):
    """A required item: see `specbench.measure.fit`."""

    @property
    def what(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def size(self) -> int | None: ...
    @property
    def command(self) -> str: ...


def needed_rows(things: Iterable[Thing]) -> list[dict[str, Any]]:
    """Rows for programs: sizes in bytes."""
    return [
        {"kind": "needed", "what": one.what, "name": one.name, "state": one.state, "bytes": one.size,
         "command": one.command}
        for one in things
    ]  # fmt: skip


def needed_table(things: Iterable[Thing]) -> list[dict[str, Any]]:
    return [
        {"name": one.name, "what": one.what, "state": one.state,
         "files": "" if one.size is None else gigabytes(one.size), "from": one.source if one.source != one.name else ""}
        for one in things
    ]  # fmt: skip


def memory_rows(fit: Fit) -> list[dict[str, Any]]:
    """Rows for programs: the memory of every role, the total, and the free memory."""
    parts = [{"kind": "memory", "what": part.kind, "name": part.role, "bytes": part.size} for part in fit.demand.parts]
    total = {"kind": "memory", "what": "total", "name": fit.device, "bytes": fit.total}
    return [*parts, total, {"kind": "memory", "what": "free", "name": fit.device, "bytes": fit.free}]


def memory_table(fit: Fit) -> Sequence[dict[str, Any]]:
    rows = [{"role": part.role, "takes": part.kind, "memory": gigabytes(part.size)} for part in fit.demand.parts]
    rows.append({"role": "all", "takes": "", "memory": gigabytes(fit.total)})
    if fit.used:
        rows.append({"role": "this process", "takes": "already", "memory": gigabytes(fit.used)})
    if fit.free is not None:
        rows.append({"role": fit.device, "takes": "free", "memory": gigabytes(fit.free)})
    if fit.host is not None:
        rows.append({"role": "host", "takes": "while reading weights", "memory": gigabytes(fit.demand.loading)})
        rows.append({"role": "host", "takes": "free", "memory": gigabytes(fit.host)})
    return rows


# --- design table -----------------------------------------------------------------------------------------------------

COUNTED = {"all": "all parameters, embedding included", "layers": "parameters in layers, without the embedding"}


def print_design(rows: Sequence[Row], style: Format) -> None:
    """Print the shapes of a design on stdout: one line each for readers, every column for programs."""
    print_records(rows, {title(rows): [line(row) for row in rows]}, style)


def title(rows: Sequence[Row]) -> str:
    """The title of the table."""
    return (
        "Shapes within each parameter budget (1M-2x128: 1M, 2 layers, width 128; counted are "
        f"{COUNTED[rows[0]['budget_counts']]}), the fastest measured one first; predicted and measured: "
        "tokens per second at the best K"
    )


def line(row: Row) -> dict[str, Any]:
    """A row for readers."""
    return {
        "shape": text_in(row, "name"),
        "depth": text_in(row, "layers"),
        "width": text_in(row, "hidden"),
        "heads": text_in(row, "heads"),
        "parameters": number(row, "parameters", ",.0f"),
        "in layers": number(row, "parameters_in_layers", ",.0f"),
        "latency_ms": spread(row, "latency_ms", ("latency_low_ms", "latency_high_ms"), ".3g"),
        "c": number(row, "c", ".3f"),
        "alpha": number(row, "alpha", ".3f"),
        "K": text_in(row, "k") or "–",
        "tokens/round": number(row, "tokens_per_round", ".2f"),
        "predicted": number(row, "tokens_per_second_predicted", ".1f"),
        "measured": number(row, "tokens_per_second", ".1f"),
        "speedup": spread(row, "speedup", ("speedup_low", "speedup_high"), ".3f"),
        "front": {"True": "yes", "False": "no"}.get(str(row.get("on_front")), "–"),
        "training": text_in(row, "reached"),
    }


def number(row: Mapping[str, Any], column: str, form: str) -> str:
    """A number of a row; a dash if missing."""
    return formatted(number_in(row, column), form)


def spread(row: Mapping[str, Any], column: str, bounds: tuple[str, str], form: str) -> str:
    """A number with its bounds."""
    low, high = (number(row, name, form) for name in bounds)
    value = number(row, column, form)
    return value if "–" in (low, high) else f"{value} [{low}, {high}]"
