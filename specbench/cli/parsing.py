"""What a user hands over as text, read into Python values: lists of K and of sizes, the rows of a results.csv.

Knows the notation and its errors; must not know what the values are for.
"""

import csv
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from specbench.errors import UsageError
from specbench.theory.formulas import K_MAX

# llama-bench's notation for ranges, which users of this field know.
_ITEM = re.compile(r"(?P<first>\d+)(?:-(?P<last>\d+)(?:\+(?P<step>\d+))?)?", re.ASCII)
_FORMS = "write 4, or 1,2,4, or 1-12, or 1-16+3 (from 1 to 16 in steps of 3)"


def parse_k_list(text: str) -> list[int]:
    """The lookaheads K named by `4`, `1,2,4`, `1-12`, `1-16+3`, or such items joined by commas; ascending, each once.

    UsageError if the text cannot be read, a range is empty, or a K is above 1000.
    """
    return sorted({k for item in text.split(",") for k in _parse_item(item.strip(), text)})


def _parse_item(item: str, text: str) -> range:
    match = _ITEM.fullmatch(item)
    if match is None:
        raise UsageError(f"cannot read {text!r} as a list of K, whole numbers of 0 or more: {_FORMS}")
    # The length is looked at first: int() itself refuses thousands of digits, with a traceback.
    if any(len(digits) > 9 or int(digits) > K_MAX for digits in match.groups(default="1")):
        raise UsageError(f"{item[:40]!r} in the list of K is too large: K is at most {K_MAX}")
    first, last, step = int(match["first"]), int(match["last"] or match["first"]), int(match["step"] or 1)
    if last < first or step < 1:
        raise UsageError(
            f"the range {item!r} in the list of K is empty: put the smaller K first, with a step of 1 or more"
        )
    return range(first, last + 1, step)


def parse_counts(text: str, option: str, example: str) -> list[int]:
    """Whole numbers from 1 to a million, joined by commas; ascending, each once. UsageError, naming the option."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 8 and 0 < int(part) <= 10**6 for part in parts):
        raise UsageError(f"cannot read {option} {text[:60]!r}: write whole numbers from 1 on, such as {example}")
    return sorted({int(part) for part in parts})


def with_models(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with `model` as names and checkpoints: one value, though --model is repeatable.

    In a file it may also be a mapping of names to checkpoints, or a list of these, which is an axis of a grid.
    UsageError if it cannot be read.
    """
    from specbench.named_models import named_models

    found = dict(settings)
    if "model" not in found:
        return found
    given = found["model"]
    axis = isinstance(given, list) and given != [] and all(isinstance(one, Mapping) for one in given)
    try:
        found["model"] = [named_models(one) for one in given] if axis else named_models(given)
    except ValueError as error:
        raise UsageError(f"--model: {error}") from None
    return found


def read_results(path: Path, needed: Sequence[str]) -> list[tuple[str, dict[str, str]]]:
    """The rows of a run folder's results.csv, or of that file, that have all `needed` values, each with its place.

    Rows without them (failed cells, baselines) are left out, and stderr says how many. UsageError if none is usable.
    """
    file = path / "results.csv" if path.is_dir() else path
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream, restval="")
            rows, columns = list(reader), reader.fieldnames or []
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or "not a CSV text file"
        raise UsageError(f"cannot read {file}: {reason}; give a run folder or its results.csv") from error
    if missing := [name for name in needed if name not in columns]:
        raise UsageError(f"{file} lacks the column(s) {', '.join(missing)}: give the results.csv of a specbench run")
    measured = [(f"{file}, row {n}", row) for n, row in enumerate(rows, start=1) if all(row[x].strip() for x in needed)]
    if not measured:
        raise UsageError(
            f"{file} has no row with {', '.join(needed)}: give a run in which at least one cell was measured"
        )
    if len(measured) < len(rows):
        typer.echo(f"left out {len(rows) - len(measured)} of {len(rows)} rows, without {', '.join(needed)}", err=True)
    return measured


def number(row: dict[str, str], name: str) -> float | None:
    """The value of a column; None if it is absent or blank. ValueError if it is not a finite number."""
    text = row.get(name, "").strip()
    try:
        value = float(text or 0)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{name} is {text!r}, not a finite number")
    return value if text else None
