"""Tables and documents that a report is made from, and that anybody may have edited: read within bounds, as text.

Knows CSV and JSON; must not know what they are about.
"""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specbench.errors import UsageError
from specbench.files import open_text, read_whole
from specbench.wording import clean, first_line

MOST = 2000  # lines read


def read_table(path: Path, columns: Sequence[str], remedy: str) -> list[dict[str, str]]:
    """The rows of a CSV file with all of its columns; UsageError, ending in `remedy`, where it lacks one of these."""
    try:
        with open_text(path) as file:
            reader = csv.DictReader(file, restval="")
            rows = [row for row, _ in zip(reader, range(MOST), strict=False)]
            names = reader.fieldnames or []
    except (OSError, ValueError, csv.Error) as error:
        raise UsageError(f"cannot read {clean(path, 300)}: {first_line(error)}") from error
    if missing := [name for name in columns if name not in names]:
        raise UsageError(f"{clean(path, 300)} lacks the column(s) {', '.join(missing)}: {remedy}")
    return [{name: row[name] for name in names} for row in rows]


def read_json(path: Path) -> Mapping[str, Any]:
    """A JSON object; empty where there is none, since a table alone makes a report."""
    try:
        found = json.loads(read_whole(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def mappings(value: Any) -> list[Mapping[str, Any]]:
    """What of a list are mappings."""
    found = value if isinstance(value, list) else []
    return [one for one in found[:MOST] if isinstance(one, dict)]
