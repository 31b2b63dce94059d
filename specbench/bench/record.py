"""What a run leaves behind: a folder with run.json, the journal, and the tables rendered from what was measured.

run.json is written before anything is measured, the journal gets one fsynced line per finished prompt, and every
table is replaced atomically, so that whatever ends the run loses no finished measurement.
"""

import csv
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specbench.bench.files import clean, first_line
from specbench.bench.samples import Cell, Sample
from specbench.errors import UsageError

LONGEST = 10_000  # characters of a text in a CSV cell; spreadsheets cut at 32,767


def slug(name: str) -> str:
    """A model's name as part of a folder name: its last component, only letters, digits, dot and dash, at most 40."""
    return re.sub(r"[^A-Za-z0-9.-]+", "-", name.rstrip("/").rsplit("/", 1)[-1]).strip("-.")[:40] or "model"


class RunFolder:
    """`<parent>/<time>_<target>_<draft>_<hash>/`, made with run.json in it; UsageError where it cannot be written."""

    def __init__(self, parent: Path, name: str, description: Mapping[str, Any]) -> None:
        with writing_to(parent):
            self.path = self._make(parent, name)
            _replace(self.path / "run.json", json.dumps(description, indent=2, sort_keys=True) + "\n")
            self._journal = (self.path / "journal.jsonl").open("a", encoding="utf-8")
        self._cells: list[Cell] = []
        self._rendered = 0

    @staticmethod
    def _make(parent: Path, name: str) -> Path:
        for attempt in range(1, 1000):
            path = parent / (name if attempt == 1 else f"{name}-{attempt}")
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                if not path.is_dir():
                    raise
                continue
            return path
        raise UsageError(f"{parent} holds too many runs of one second; choose another --output-dir")

    def add(self, cell: str, sample: Sample) -> None:
        """Append one finished prompt to the journal and wait until it is on disk."""
        self._write({"cell": cell, "sample": asdict(sample)})

    def end(self, cell: Cell) -> None:
        """Append how a cell ended, and render the tables with it: a later cell may take hours, or the process."""
        self._cells.append(cell)
        self._write({"cell": cell.spec.key, "status": cell.status, "error": cell.error})
        self.render()

    def _write(self, line: Mapping[str, Any]) -> None:
        with writing_to(self.path):
            self._journal.write(json.dumps(line, separators=(",", ":")) + "\n")
            self._journal.flush()
            os.fsync(self._journal.fileno())

    def render(self) -> None:
        """Write results.csv, samples.csv and rounds.parquet anew from every cell that has ended."""
        cells = list(self._cells)
        samples = [{"cell": c.spec.key, "dataset": c.spec.dataset, **s.row()} for c in cells for s in c.samples]
        with writing_to(self.path):
            write_csv(self.path / "results.csv", [cell.row() for cell in cells])
            write_csv(self.path / "samples.csv", samples)
            write_rounds(self.path / "rounds.parquet", cells)
        self._rendered = len(cells)

    def close(self) -> None:
        """Render what an interrupt may have kept from the tables; the folder is complete."""
        if self._rendered < len(self._cells):
            self.render()
        with writing_to(self.path):
            self._journal.close()


@contextmanager
def writing_to(place: Path) -> Iterator[None]:
    """A full disk or a folder that cannot be written is told in one line."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"cannot write results to {place}: {error.strerror or first_line(error)}; choose another --output-dir"
        ) from error


def write_rounds(path: Path, cells: Sequence[Cell]) -> None:
    """One row per round of every method: counts, and the chance of acceptance at each tested position."""
    import pandas as pd

    rows = [
        {"cell": c.spec.key, **r, "prompt": clean(s.prompt, LONGEST)}
        for c in cells
        for s in c.samples
        for r in s.round_rows()
    ]
    if rows:
        temporary = path.with_suffix(".tmp")
        pd.DataFrame(rows).to_parquet(temporary, index=False)
        os.replace(temporary, path)


def columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """All keys of the rows in the order in which they appear; rows with more positions extend the list at its end."""
    return list(dict.fromkeys(key for row in rows for key in row))


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Replace `path` by a CSV of the rows."""
    temporary = path.with_suffix(path.suffix + ".tmp")
    with temporary.open("w", encoding="utf-8", newline="") as file:
        write_rows(file, rows)
    os.replace(temporary, path)


def write_rows(file: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """CSV with a header; what `plain` says of a cell. The journal and JSON keep texts as they are."""
    writer = csv.DictWriter(file, columns(rows), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: plain(value) for key, value in row.items()} for row in rows)


def plain(value: Any) -> Any:
    """A value as a CSV cell: empty for NaN and nothing, text that no terminal and no spreadsheet would run."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if not isinstance(value, str):
        return value
    text = clean(value, LONGEST)
    return "'" + text if text.startswith(("=", "+", "-", "@")) else text  # CWE-1236


def _replace(path: Path, text: str) -> None:
    temporary = path.with_suffix(path.suffix + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def finite(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows with NaN and infinities as None, as JSON wants them."""
    return [{k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()} for row in rows]
