"""Tables as files, with cells that no program executes, and JSON objects."""

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from specbench.errors import UsageError
from specbench.files import open_text, read_whole
from specbench.replacing import replacing
from specbench.wording import clean, first_line

MOST = 2000  # rows of a table that a report shows
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


def read_table(path: Path, columns: Sequence[str], remedy: str) -> list[dict[str, str]]:
    """The first rows of a CSV file that has these columns; UsageError, ending in `remedy`, where it lacks one."""
    try:
        rows = read_csv(path)[:MOST]
    except (OSError, ValueError, csv.Error) as error:
        raise UsageError(f"cannot read {clean(path, 300)}: {first_line(error)}") from error
    if missing := [name for name in columns if name not in (rows or [{}])[0]]:
        raise UsageError(f"{clean(path, 300)} lacks the column(s) {', '.join(missing)}: {remedy}")
    return rows


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is none."""
    try:
        found = json.loads(read_whole(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def as_text(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The rows as `read_csv` reads them after `write_csv`."""
    names = column_names(rows)
    return [{name: str(csv_cell(row.get(name))) for name in names} for row in rows]


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
