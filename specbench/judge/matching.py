"""Match the cells of several runs that answer the same question, and compare their exact numbers."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specbench.errors import UsageError
from specbench.judge.significance import TOTALLED, Outcome
from specbench.results.cells import MEASURED
from specbench.results.reading import Run
from specbench.settings import part
from specbench.spec import RunSpec
from specbench.wording import Row, clean, grouped

COMPARED = tuple(setting.name for setting in part("compared", RunSpec))
# Used only if a run has several cells that agree in all of the above.
FURTHER = tuple(setting.name for setting in part("further", RunSpec))
NAMED_ALWAYS = ("dataset", "method", "k", "schedule")  # settings in the name of every cell

COUNTS = ("rounds", "drafted", "tested", "accepted", "tokens", "baseline_tokens")
HASHES = ("output_sha256", "baseline_output_sha256")
OF_THE_BASELINE = ("baseline_tokens", "baseline_output_sha256")
SAME = ("seed", "prompts_sha256", "method_sha256", "dtype_resolved", "draft_dtype_resolved", "torch", "transformers")
RENEW = "if it is meant, make NEW the new baseline"

Key = tuple[str, ...]


@dataclass(frozen=True)
class Record:
    """One cell of a run: its row of results.csv as text, and its rows of samples.csv."""

    run: Path
    row: Mapping[str, str]
    samples: Sequence[Row]

    def __getitem__(self, column: str) -> str:
        return self.row.get(column, "")

    @property
    def measured(self) -> bool:
        return self["status"] in MEASURED

    def number(self, column: str) -> float:
        """A number of results.csv; NaN if the value is blank or infinite. UsageError for text."""
        text = self[column].strip()
        try:
            found = float(text or math.nan)
        except ValueError:
            raise UsageError(
                f"{clean(self.run, 300)}: {clean(column)} is {clean(text)!r}, not a number; measure the run again"
            ) from None
        return found if math.isfinite(found) else math.nan

    @cached_property
    def totals(self) -> dict[str, NDArray[np.float64]]:
        """Seconds and counts (`TOTALLED`) of every independent draw, summed over its repetitions."""
        return {
            str(some[0]["cluster"]): np.array([math.fsum(one[name] for one in some) for name in TOTALLED])
            for some in grouped(self.samples, lambda one: one["cluster"])
        }


RecordPair = tuple[Record, Record]  # (of BASE, of NEW)


def records_of(run: Run) -> list[Record]:
    return [Record(run.path, row, samples) for row, samples in zip(run.rows, run.samples, strict=True)]


@dataclass(frozen=True)
class Match:
    """One cell in one or more pairs of runs."""

    cell: str
    pairs: tuple[RecordPair, ...]


# --- the same question ------------------------------------------------------------------------------------------------


def matched(bases: Sequence[Sequence[Record]], news: Sequence[Sequence[Record]]) -> tuple[list[Match], list[str]]:
    """The cells that both runs of a pair have, in the order of BASE, and a sentence on every other cell.

    The i-th of `news` belongs to the i-th of `bases`, or to the last. UsageError if a run has a cell twice.
    """
    unique = all(len({tuple(one[c] for c in COMPARED) for one in run}) == len(run) for run in (*bases, *news))
    columns = COMPARED if unique else COMPARED + FURTHER
    befores = [_by_settings(run, columns) for run in bases]
    afters = [_by_settings(run, columns) for run in news]
    couples = [(befores[min(i, len(befores) - 1)], after) for i, after in enumerate(afters)]
    names = _names(dict.fromkeys(key for run in (*befores, *afters) for key in run), columns)
    matches, missing = [], []
    for key, name in names.items():
        pairs = tuple((before[key], after[key]) for before, after in couples if key in before and key in after)
        if pairs:
            matches.append(Match(name, pairs))
        for here, there, where in ((befores, afters, "BASE"), (afters, befores, "NEW")):
            lacking = sum(key not in run for run in there)
            if any(key in run for run in here) and lacking:
                among = f" (missing in {lacking} of {len(there)} runs)" if len(there) > 1 else ""
                missing.append(f"{name}: only in {where}{among}")
    return matches, missing


def _by_settings(run: Sequence[Record], columns: Sequence[str]) -> dict[Key, Record]:
    found: dict[Key, Record] = {}
    for record in run:
        key = tuple(record[c] for c in columns)
        if key in found:
            raise UsageError(f"{clean(record.run, 300)} has two rows for one cell: cell {clean(record['cell'], 20)}")
        found[key] = record
    return found


def _names(keys: Iterable[Key], columns: Sequence[str]) -> dict[Key, str]:
    """Data set, method and K, and every other setting in which the cells differ."""
    keys = list(keys)
    varying = [i for i, c in enumerate(columns) if c not in NAMED_ALWAYS and len({key[i] for key in keys}) > 1]
    found = {}
    for key in keys:
        dataset, method, k, schedule = (key[columns.index(name)] for name in NAMED_ALWAYS)
        lookahead = f"K{k}" if schedule in {"", "constant"} else f"{schedule} K≤{k}"
        parts = [clean(f"{dataset} {method} {lookahead}", 120)]
        found[key] = " · ".join([*parts, *(clean(f"{columns[i]} {key[i] or 'none'}", 60) for i in varying)])
    return found


# --- exact numbers ----------------------------------------------------------------------------------------------------


def compare_counts(base: Record, new: Record) -> tuple[Outcome, str]:
    """Counts and outputs prompt by prompt: ok, REGRESSION with the first difference, or not judged with the reason."""
    if reason := hindrance(base, new):
        return "not judged", reason
    auto = base["schedule"] == "auto"  # its lookahead follows from costs measured before the run
    columns = OF_THE_BASELINE if auto else (*COUNTS, *HASHES)
    before, after = _by_prompt(base.samples), _by_prompt(new.samples)
    both = [(one, after[key]) for key, one in before.items() if key in after]
    if not both:
        return "not judged", "no prompt was measured in both"
    remarks = ["only the baseline's: the lookahead follows measured costs"] if auto else []
    if len(both) < max(len(before), len(after)):
        remarks.append(f"{len(both)} of {max(len(before), len(after))} samples are in both")
    if difference := first_difference(both, columns):
        return "REGRESSION", "; ".join([difference, *remarks, RENEW])
    return "ok", "; ".join(remarks)


def hindrance(base: Record, new: Record) -> str:
    """Why two cells need not agree; empty if they must."""
    for name in SAME:
        # the tag after a plus is torch's accelerator build: device and dtype are compared below
        if base[name].split("+")[0] != new[name].split("+")[0]:
            return f"{name} {clean(base[name], 40)} ≠ {clean(new[name], 40)}"
    sources = [column for record in (base, new) for column in record.row if column.endswith("_source")]
    for role in dict.fromkeys(("target", "draft", *(column.removesuffix("_source") for column in sources))):
        name = f"{role}_commit" if base[f"{role}_commit"] and new[f"{role}_commit"] else f"{role}_source"
        before, after = (_source(record[name]) for record in (base, new))
        if before != after:
            return f"{name} {clean(before)} ≠ {clean(after)}"
    if base["dtype_resolved"] == "float64" and base["draft_dtype_resolved"] in {"", "float64"}:
        return ""  # near-ties are too rare there to flip between machines
    for name in ("device_name", "threads"):
        if base[name] != new[name]:
            return f"{name} {clean(base[name], 40)} ≠ {clean(new[name], 40)}, and the dtype is not float64"
    return ""


def _source(source: str) -> str:
    """A checkpoint that ships inside the package is the same wherever the package is installed."""
    _, shipped, name = f"/{source}".replace("\\", "/").partition("/specbench/assets/")
    return f"specbench/assets/{name}" if shipped else source


def _by_prompt(samples: Sequence[Row]) -> dict[tuple[str, int, int], Row]:
    """The samples by prompt and repetition; those that agree in both (the turns of a conversation) are numbered."""
    seen, found = Counter[tuple[str, int]](), {}
    for one in samples:
        key = (one["prompt"], one["repeat"])
        found[(*key, seen[key])] = one
        seen[key] += 1
    return found


def first_difference(both: Sequence[tuple[Row, Row]], columns: Sequence[str]) -> str:
    """The first prompt and column in which two runs differ, with both values, and the number of such samples; or ""."""
    differing = [
        (before, after, unequal)
        for before, after in both
        if (unequal := [name for name in columns if before[name] != after[name]])
    ]
    if not differing:
        return ""
    before, after, (name, *_) = differing[0]
    return (
        f"prompt {clean(before['prompt'], 40)}, repeat {clean(before['repeat'], 9)}: {name} {clean(before[name], 20)} "
        f"→ {clean(after[name], 20)}; {len(differing)} of {len(both)} samples differ"
    )
