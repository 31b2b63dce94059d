"""Which cells of a run share a table: a sweep over the lookahead, a list of methods, a series of batches.

Knows the settings in which cells differ; must not know what a table shows of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.settings import declared, part
from specbench.show.cell_text import lookahead
from specbench.spec import RunSpec
from specbench.wording import Row, grouped

IDENTITY = tuple(setting.name for setting in part("identity", RunSpec))
LOOKAHEAD = tuple(name for name in declared(RunSpec) if name not in IDENTITY)
FEW = 4  # so many cells stand side by side, with more numbers of each


@dataclass(frozen=True)
class Arrangement:
    """The rows of a run by the kind of table that shows them, each row once."""

    sweeps: Sequence[Sequence[Row]]
    methods: Sequence[Sequence[Row]]
    alone: Sequence[Row]


def arranged(rows: Sequence[Row]) -> Arrangement:
    """Sweeps over the lookahead, groups of many methods, and all other rows."""
    groups = series(rows)
    single = [group[0] for group in groups if len(group) == 1]
    methods = by_method(single)
    taken = {id(row) for group in methods for row in group}
    sweeps = [group for group in groups if len(group) > 1]
    return Arrangement(sweeps, methods, [row for row in single if id(row) not in taken])


def series(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows that differ in their lookahead alone together."""
    return alike(rows, IDENTITY)


def by_method(rows: Sequence[Row]) -> list[list[Row]]:
    """Groups of more than a few rows that differ in their method alone."""
    same = [name for name in (*IDENTITY, *LOOKAHEAD) if name != "method"]
    return [group for group in alike(rows, same) if len(group) > FEW]


def by_batch(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of every series that has several batches, by lookahead and then by batch."""
    groups = alike(rows, [name for name in IDENTITY if name != "batch"])
    several = [group for group in groups if len({row.get("batch") for row in group}) > 1]
    return [sorted(group, key=lambda row: (row["k"], lookahead(row), row["batch"])) for group in several]


def by_context(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of every series that has several lengths of prompts, by length and then by lookahead."""
    groups = alike(rows, [name for name in IDENTITY if name != "context"])
    several = [group for group in groups if len({row.get("context") for row in group} - {None, ""}) > 1]
    return [sorted(group, key=lambda row: (row["context"] or 0, row["k"], lookahead(row))) for group in several]


def by_engine(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of every series that was measured on several engines, by lookahead."""
    groups = alike(rows, [name for name in IDENTITY if name != "backend"])
    several = [group for group in groups if len({row.get("backend") for row in group}) > 1]
    return [sorted(group, key=lambda row: (row["k"], lookahead(row))) for group in several]


def alike(rows: Sequence[Row], settings: Sequence[str]) -> list[list[Row]]:
    """Rows with equal settings together."""
    return grouped(rows, lambda row: tuple(row.get(name) for name in settings))
