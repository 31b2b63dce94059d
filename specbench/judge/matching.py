"""Which cells of several runs are the same question, and how they are named in a table.

Knows the settings that make up a question; must not know numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specbench.errors import UsageError
from specbench.judge.compare_input import Record
from specbench.settings import part
from specbench.spec import RunSpec
from specbench.wording import clean

ASKED = tuple(setting.name for setting in part("asked", RunSpec))
# Looked at only where a run holds several cells that agree in all of the above.
FURTHER = tuple(setting.name for setting in part("further", RunSpec))
NAMED_ALWAYS = ("dataset", "method", "k", "schedule")  # what stands in the name of every cell

Key = tuple[str, ...]
RecordPair = tuple[Record, Record]  # (of BASE, of NEW)


@dataclass(frozen=True)
class Match:
    """One cell as it is found in one or more pairs of runs."""

    cell: str
    pairs: tuple[RecordPair, ...]


def matched(bases: Sequence[Sequence[Record]], news: Sequence[Sequence[Record]]) -> tuple[list[Match], list[str]]:
    """The cells that both runs of a pair have, in the order of BASE, and a sentence on every cell that only one has.

    The i-th of `news` belongs to the i-th of `bases`, or to the last. UsageError where a run has a cell twice.
    """
    columns = ASKED if all(map(_unique, (*bases, *news))) else ASKED + FURTHER
    befores = [_keyed(run, columns) for run in bases]
    afters = [_keyed(run, columns) for run in news]
    couples = [(befores[min(i, len(befores) - 1)], after) for i, after in enumerate(afters)]
    names = _names(dict.fromkeys(key for run in (*befores, *afters) for key in run), columns)
    matches, missing = [], []
    for key, name in names.items():
        pairs = tuple((before[key], after[key]) for before, after in couples if key in before and key in after)
        if pairs:
            matches.append(Match(name, pairs))
        missing += _absences(name, key, befores, afters)
    return matches, missing


def _unique(run: Sequence[Record]) -> bool:
    return len({tuple(record[c] for c in ASKED) for record in run}) == len(run)


def _keyed(run: Sequence[Record], columns: Sequence[str]) -> dict[Key, Record]:
    keyed: dict[Key, Record] = {}
    for record in run:
        key = tuple(record[c] for c in columns)
        if key in keyed:
            raise UsageError(f"{clean(record.file, 300)} has two rows for one cell: cell {clean(record['cell'], 20)}")
        keyed[key] = record
    return keyed


def _names(keys: Mapping[Key, None], columns: Sequence[str]) -> dict[Key, str]:
    """Data set, method and K, and every other setting in which the cells differ."""
    varying = [i for i, c in enumerate(columns) if c not in NAMED_ALWAYS and len({key[i] for key in keys}) > 1]
    found = {}
    for key in keys:
        dataset, method, k, schedule = (key[columns.index(name)] for name in NAMED_ALWAYS)
        lookahead = f"K{k}" if schedule in {"", "constant"} else f"{schedule} K≤{k}"
        parts = [clean(f"{dataset} {method} {lookahead}", 120)]
        found[key] = " · ".join([*parts, *(clean(f"{columns[i]} {key[i] or 'none'}", 60) for i in varying)])
    return found


def _absences(
    name: str, key: Key, befores: Sequence[dict[Key, Record]], afters: Sequence[dict[Key, Record]]
) -> list[str]:
    found = []
    for here, there, where in ((befores, afters, "BASE"), (afters, befores, "NEW")):
        lacking = sum(key not in run for run in there)
        if any(key in run for run in here) and lacking:
            among = f" (missing in {lacking} of {len(there)} runs)" if len(there) > 1 else ""
            found.append(f"{name}: only in {where}{among}")
    return found
