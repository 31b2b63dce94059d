"""A cell of a run as data: its spec, its samples and how it ended. `row()` is the only list of CSV columns.

Knows specs and samples; must not know files or how a cell was measured.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from specbench.results import noise
from specbench.results.batches import decodes, pooled
from specbench.results.categories import numbers_by_category
from specbench.results.losslessness import Losslessness
from specbench.results.numbers import NUMBERS, numbers
from specbench.results.outputs import output_columns
from specbench.results.peaks import Peaks
from specbench.results.reliability import belief_rows
from specbench.results.samples import Sample
from specbench.spec import CHOOSING, SCHEMA_VERSION, RunSpec

Status = Literal["ok", "partial", "oom", "nan", "mismatch", "skipped", "error"]
MEASURED = ("ok", "partial")  # the statuses that come with numbers
NAMES = ("target", "draft", "method", "k", "schedule", "dataset", "temperature", "batch")  # of a line by category
UNFINISHED = ("partial", "skipped")  # the statuses that a resumed run goes on with; the others are final


@dataclass(frozen=True)
class Cell:
    """One cell of a run: its spec, what its names resolved to, the samples, and how it ended.

    ready: seconds to build, compile or capture (baseline, method); part of no other number. detail: the traceback of
    an unexpected error; the journal keeps it, no table shows it. peaks: the memory that there was at most.
    """

    spec: RunSpec
    resolved: Mapping[str, Any]
    samples: Sequence[Sample] = ()
    status: Status = "ok"
    error: str = ""
    lossless: Losslessness = field(default_factory=Losslessness)
    detail: str = ""
    ready: tuple[float, float] = field(default=(math.nan, math.nan), compare=False)
    peaks: Peaks = field(default=Peaks(), compare=False)

    @property
    def lookahead(self) -> int | None:
        """The K of a constant schedule, None for any other, and where methods are chosen."""
        return self.spec.k if self.spec.schedule == "constant" and self.spec.method != CHOOSING else None

    @property
    def rows(self) -> int:
        """How many prompts share their seconds: none where requests come at times of their own, each with its wait."""
        return self.spec.batch if self.spec.arrivals is None else 1

    def row(self) -> dict[str, Any]:
        """The columns of results.csv, in their order; the numbers of a cell that ended without them are blank."""
        row: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "status": self.status, "error": self.error}
        row |= {"cell": self.spec.key, **self.spec.model_dump(mode="json"), **acceptance_of(self.spec), **self.resolved}
        row |= dict.fromkeys(NUMBERS)
        if self.status in (*MEASURED, "mismatch"):
            row |= self.lossless.row()
        if self.samples and self.status in MEASURED:
            row |= numbers(self.samples, self.lookahead, self.rows)
            row |= output_columns(self.samples, self.spec.max_new_tokens)
            row |= {"baseline_ready_seconds": self.ready[0], "ready_seconds": self.ready[1]}
            row |= self.peaks.row()
            if self.spec.acceptance is not None:
                row["law_distance"] = None  # the synthetic acceptance follows no model's distribution
        return row

    def category_rows(self) -> list[dict[str, Any]]:
        """The lines of categories.csv; none where all prompts are of one category, or the cell has no numbers."""
        asked = (self.spec.max_new_tokens, self.lookahead)
        found = numbers_by_category(self.samples, *asked) if self.status in MEASURED else []
        named = {name: getattr(self.spec, name) for name in NAMES}
        return [{"schema_version": SCHEMA_VERSION, "cell": self.spec.key, **named, **numbers} for numbers in found]

    def belief_rows(self) -> list[dict[str, float]]:
        """The reliability curve of its schedule; none where that believes nothing, or the cell has no numbers."""
        return belief_rows([r for s in self.samples for r in s.method.rounds]) if self.status in MEASURED else []

    def sample_rows(self) -> list[dict[str, Any]]:
        """The lines of samples.csv. Outliers are marked, never dropped."""
        where = {"cell": self.spec.key, "dataset": self.spec.dataset}
        groups = zip(decodes(self.samples), noise.flags(pooled(self.samples)), strict=True)
        flags = {i: flag for together, flag in groups for i in together}
        return [{**where, **s.row(), "outlier": flags[i]} for i, s in enumerate(self.samples)]


def acceptance_of(spec: RunSpec) -> dict[str, str | None]:
    """As columns: the rates as they are written, and whether acceptance follows them or is the pair's own."""
    if spec.acceptance is None:
        return {"acceptance": None, "acceptance_mode": "real"}
    return {"acceptance": ",".join(map(str, spec.acceptance)), "acceptance_mode": "synthetic"}
