"""A run as its CSV files hold it, for `compare`: results.csv, and samples.csv beside it where there is one.

Knows the columns and their types; must not know what is compared. Every cell is read as text first: a hash such as
1e10 is not a number, and "NA" is a name.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from specbench.errors import UsageError
from specbench.files import check_regular
from specbench.judge.holm_test import TOTALLED
from specbench.wording import clean, clean_path, first_line

COUNTS = ("rounds", "drafted", "tested", "accepted", "tokens", "baseline_tokens")
HASHES = ("output_sha256", "baseline_output_sha256")
NEEDED = ("schema_version", "status", "cell", "target", "method", "k", "dataset")
NEEDED_OF_SAMPLES = ("cell", "prompt", "repeat", *HASHES, *dict.fromkeys((*COUNTS, *TOTALLED)))


@dataclass(frozen=True)
class Record:
    """One cell of a run: its row of results.csv, and its rows of samples.csv (None where there is no such file)."""

    file: Path
    row: dict[str, str]
    samples: pd.DataFrame | None

    def __getitem__(self, column: str) -> str:
        return self.row.get(column, "")

    @property
    def measured(self) -> bool:
        return self["status"] in {"ok", "partial"}

    def number(self, column: str) -> float:
        """A number of results.csv; NaN where the cell is blank."""
        return float(as_numbers(pd.Series([self[column]]), column, self.file).iloc[0])

    @cached_property
    def totals(self) -> pd.DataFrame:
        """One row per prompt: seconds and counts summed over its repetitions; NaN where a sample lacks one."""
        if self.samples is None:
            raise ValueError("a run without samples.csv has no totals")
        columns = {name: as_numbers(self.samples[name], name, self.file) for name in TOTALLED}
        return pd.DataFrame(columns).groupby(draws(self.samples), sort=False).sum(skipna=False)


def draws(samples: pd.DataFrame) -> pd.Series:
    """The independent draw of each sample: its prompt, or the batch it was decoded in."""
    if "cluster" not in samples:  # of a run from before batches were recorded
        return samples["prompt"]
    return samples["cluster"].where(samples["cluster"] != "", samples["prompt"])


def as_numbers(texts: pd.Series, name: str, file: Path) -> pd.Series:
    """The texts of a column as floats; blank and infinite are NaN. UsageError, naming the column, for other text."""
    blank = texts.str.strip() == ""
    found = pd.to_numeric(texts.mask(blank), errors="coerce").astype(float)
    if (wrong := texts[found.isna() & ~blank & ~texts.str.lower().isin(["nan", "inf", "-inf"])]).size:
        raise UsageError(
            f"{clean_path(file)}: {clean(name)} is {clean(wrong.iloc[0])!r}, not a number; measure the run again"
        )
    return found.where(np.isfinite(found))


def read_records(path: Path) -> list[Record]:
    """The cells of a run folder or its results.csv; UsageError in one line where there is nothing to compare."""
    from specbench.spec import SCHEMA_VERSION

    file = path / "results.csv" if path.is_dir() else path
    table = _read(file, NEEDED, "give a run folder or its results.csv")
    for version in table["schema_version"]:
        if version != str(SCHEMA_VERSION):
            raise UsageError(
                f"{clean_path(file)} has schema_version {clean(version, 20)}, this specbench reads {SCHEMA_VERSION}: "
                "measure it again, or compare with the specbench that wrote it"
            )
    if table.empty:
        raise UsageError(f"{clean_path(file)} has no rows: give a run in which at least one cell was measured")
    beside = file.parent / "samples.csv"
    samples = _read(beside, NEEDED_OF_SAMPLES, "remove it, or measure the run again") if beside.exists() else None
    parts = {} if samples is None else {str(key): part for key, part in samples.groupby("cell", sort=False)}
    nothing = None if samples is None else samples.iloc[:0]
    rows = [{str(name): str(value) for name, value in row.items()} for row in table.to_dict("records")]
    return [Record(file, row, parts.get(row["cell"], nothing)) for row in rows]


def _read(file: Path, needed: Sequence[str], advice: str) -> pd.DataFrame:
    try:
        check_regular(file)
        table = pd.read_csv(file, dtype=str, keep_default_na=False, index_col=False, encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"cannot read {clean_path(file)}: {error.strerror or first_line(error)}; {advice}") from error
    except ValueError as error:  # pandas' own errors and those of the codec
        raise UsageError(f"{clean_path(file)} is not a CSV text file ({first_line(error)}); {advice}") from error
    if missing := [name for name in needed if name not in table.columns]:
        raise UsageError(f"{clean_path(file)} lacks the column(s) {', '.join(missing)}; {advice}")
    return table
