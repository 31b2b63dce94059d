"""The part of a report about a folder of `specbench calibrate`: what passes cost by their width, and which K follows.

What lies in the folder may have been edited: every value is text until it is a number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.results.reading import DESCRIPTION
from specbench.results.writing import MOST, read_json, read_table
from specbench.show.report import plots_why
from specbench.show.report.parts import facts
from specbench.show.report.plots import Picture

POINTS, DOCUMENT = "calibration.csv", "calibration.json"
COLUMNS = ("model", "context", "width", "milliseconds", "low", "high", "v")


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
    points = [{name: row[name] for name in COLUMNS} for row in read_table(path / POINTS, COLUMNS, "calibrate again")]
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


def mappings(value: Any) -> list[Mapping[str, Any]]:
    """The mappings in a list of JSON."""
    return [one for one in value[:MOST] if isinstance(one, dict)] if isinstance(value, list) else []
