"""The part of a report about a folder of `specbench calibrate`: what passes cost by their width, and which K follows.

Reads what lies in the folder, which may have been edited: every value is text until it is a number.
"""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.errors import UsageError
from specbench.files import check_regular, read_whole
from specbench.results.reading import DESCRIPTION
from specbench.show import plots_why
from specbench.show.plots import Picture
from specbench.show.report_parts import facts
from specbench.wording import clean, first_line

POINTS, DOCUMENT = "calibration.csv", "calibration.json"
COLUMNS = ("model", "context", "width", "milliseconds", "low", "high", "v")
MOST = 2000  # lines shown; a calibration has some hundred


@dataclass(frozen=True)
class CalibrationPart:
    """A calibration: its points, what follows from them at each context, and the K to choose for a range of α."""

    name: str
    facts: Mapping[str, str]
    points: Sequence[Mapping[str, Any]]
    contexts: Sequence[Mapping[str, Any]]
    choices: Sequence[Mapping[str, Any]]
    pictures: Sequence[Picture]


def is_calibration(path: Path) -> bool:
    return (path / POINTS).is_file()


def calibration_part(path: Path) -> CalibrationPart:
    """A folder of `specbench calibrate` as a part of a report; UsageError if its points cannot be read."""
    points = read_points(path / POINTS)
    document, description = read_json(path / DOCUMENT), read_json(path / DESCRIPTION)
    models = dict.fromkeys(row["model"] for row in points)
    found = [plots_why.cost_against_width(points, model) for model in list(models)[:4]]
    return CalibrationPart(
        name=path.resolve().name,
        facts=facts(description),
        points=points,
        contexts=mappings(document.get("contexts")),
        choices=mappings(document.get("choices")),
        pictures=[picture for picture in found if picture is not None],
    )


def read_points(path: Path) -> list[dict[str, str]]:
    try:
        check_regular(path)
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file, restval="")
            rows = [row for row, _ in zip(reader, range(MOST), strict=False)]
            names = reader.fieldnames or []
    except (OSError, ValueError, csv.Error) as error:
        raise UsageError(f"cannot read {clean(path, 300)}: {first_line(error)}") from error
    if missing := [name for name in COLUMNS if name not in names]:
        raise UsageError(f"{clean(path, 300)} lacks the column(s) {', '.join(missing)}: calibrate again")
    return [{name: row[name] for name in COLUMNS} for row in rows]


def read_json(path: Path) -> Mapping[str, Any]:
    """A JSON object; empty where there is none, since the points alone make a report."""
    try:
        found = json.loads(read_whole(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def mappings(value: Any) -> list[Mapping[str, Any]]:
    found = value if isinstance(value, list) else []
    return [one for one in found[:MOST] if isinstance(one, dict)]
