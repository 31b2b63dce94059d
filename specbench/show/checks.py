"""What a run needs and takes, as rows for programs and for readers. Loads nothing heavy."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from specbench.theory.memory import Fit
from specbench.wording import gigabytes


class Thing(Protocol):
    """Something that is needed: see `specbench.measure.fit`."""

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
    """For programs: sizes in bytes."""
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
    """For programs: what every role takes, all of it, and what is free."""
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
