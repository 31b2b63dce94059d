"""Tables as files, with cells that no program executes.

Knows CSV and file systems; must not know what a column means.
"""

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from specbench.files import open_text
from specbench.replacing import replacing
from specbench.wording import clean

LONGEST = 10_000  # characters of a text in a CSV cell; spreadsheets cut at 32,767
FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")  # the wide forms, too: East Asian spreadsheets read them alike


def column_names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """All keys of the rows in the order in which they appear; rows with more positions extend the list at its end."""
    return list(dict.fromkeys(key for row in rows for key in row))


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Replace `path` by a CSV of the rows."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        write_rows(file, rows)


def write_rows(file: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """CSV with a header; what `plain` says of a cell. The journal and JSON keep texts as they are."""
    writer = csv.DictWriter(file, column_names(rows), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: csv_cell(value) for key, value in row.items()} for row in rows)


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file as text. OSError, ValueError or csv.Error where it cannot be read as one."""
    with open_text(path, "utf-8-sig") as file:
        return list(csv.DictReader(file, restkey="a cell too many", restval=""))


def csv_cell(value: Any) -> Any:
    """A value as a CSV cell: empty for NaN and None; text that no terminal and no spreadsheet executes."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if not isinstance(value, str):
        return value
    text = clean(value, LONGEST)
    return "'" + text if text.lstrip().startswith(FORMULA) else text  # CWE-1236


def json_rows(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows with NaN and infinities as None, as JSON wants them."""
    return [{k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()} for row in rows]
