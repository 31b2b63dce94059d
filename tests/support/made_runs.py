"""Runs of which a test gives the rows: commands read them by the path of a folder (fixture `made_runs`)."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specbench.results.named_runs import as_text
from specbench.results.reading import Run

MADE: dict[Path, Run] = {}


def made_run(
    path: Path, rows: str | Sequence[Mapping[str, Any]], samples: Sequence[Sequence[Any]] = (), command: Any = ""
) -> Path:
    """A folder that stands for a run with these rows, as CSV or as mappings, and the samples of each."""
    path.mkdir(exist_ok=True)
    given = list(csv.DictReader(io.StringIO(rows), restval="")) if isinstance(rows, str) else as_text(rows)
    nothing: list[Any] = [None] * len(given)
    run = Run(path, {"command": command}, nothing, nothing, frozenset(map(str, range(len(given)))))
    vars(run).update(rows=given, table=given, samples=samples or [[] for _ in given])
    MADE[path] = run
    return path
