"""The runs of a folder by name: `latest`, `previous`, `latest~2`, or the first letters of a name or of its key."""

import csv
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from specbench.errors import UsageError
from specbench.files import open_regular, read_whole, replacing
from specbench.wording import clean, clean_path, counted, first_line, near

# --- writing ----------------------------------------------------------------------------------------------------------
# Tables as files, with cells that no program executes, and JSON objects.

MOST = 2000  # rows of a table that a report shows
LONGEST = 10_000  # characters of a text in a CSV cell; spreadsheets cut at 32,767
FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")  # also the wide forms, which East Asian spreadsheets treat alike


def column_names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """All keys of the rows in order of appearance; rows with more positions extend the list at its end."""
    return list(dict.fromkeys(key for row in rows for key in row))


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Replace `path` by a CSV of the rows."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        write_rows(file, rows)


def write_rows(file: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write CSV with a header, with cells as in `csv_cell`. The journal and JSON keep texts unchanged."""
    writer = csv.DictWriter(file, column_names(rows), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: csv_cell(value) for key, value in row.items()} for row in rows)


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file as text. OSError, ValueError or csv.Error if it is invalid."""
    with TextIOWrapper(open_regular(path), encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file, restkey="a cell too many", restval=""))


def read_table(path: Path, columns: Sequence[str], remedy: str) -> list[dict[str, str]]:
    """The first rows of a CSV file. UsageError, ending in `remedy`, if one of these columns is missing."""
    try:
        rows = read_csv(path)[:MOST]
    except (OSError, ValueError, csv.Error) as error:
        raise UsageError(f"cannot read {clean(path, 300)}: {first_line(error)}") from error
    if missing := [name for name in columns if name not in (rows or [{}])[0]]:
        raise UsageError(f"{clean(path, 300)} lacks the column(s) {', '.join(missing)}: {remedy}")
    return rows


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; empty if missing."""
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
    """A value as a CSV cell: empty for NaN and None; text that terminals and spreadsheets do not execute."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if not isinstance(value, str):
        return value
    text = clean(value, LONGEST)
    return "'" + text if text.lstrip().startswith(FORMULA) else text  # CWE-1236


def json_rows(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows with NaN and infinities as None, as JSON requires."""
    return [{k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()} for row in rows]


# --- named runs -------------------------------------------------------------------------------------------------------

DESCRIPTION = "run.json"  # its readers are slow to import, and a name does not need them
TABLE = "results.csv"  # denotes the run in its folder
USUAL = Path("results")  # default folder of commands
LATEST, PREVIOUS = "latest", "previous"
BACK = re.compile(rf"{LATEST}(?:~(\d{{1,4}}))?|({PREVIOUS})", re.ASCII)  # runs before the latest
TIMED = re.compile(r"\d{8}T\d{6}Z_")
SHOWN = 3  # names listed in an error


def runs_in(parent: Path) -> list[Path]:
    """Run folders, oldest first, preceded by renamed ones, such as a baseline."""
    try:
        found = [path for path in parent.iterdir() if (path / DESCRIPTION).is_file()]
    except OSError:
        return []
    # runs of one second have equal times in their names
    times = {path: (path / DESCRIPTION).stat().st_mtime for path in found}
    return sorted(found, key=lambda path: (bool(TIMED.match(path.name)), path.name[:16], times[path], path.name))


def found_run(given: Path) -> Path:
    """The folder of a run given by path, name or its results.csv; other paths are returned unchanged.

    A bare name is looked up in `results`. UsageError if several runs begin with it.
    """
    found = resolved(given)
    return found.parent if found.name == TABLE else found


def resolved(given: Path) -> Path:
    """The path unchanged if it exists, else with the run that a part of it names."""
    if given.exists():
        return given
    place = Path(given.anchor)
    for number, name in enumerate(given.parts[bool(given.anchor) :]):
        there = place / name
        if there.exists():
            place = there
        elif (run := run_called(name, USUAL if number == 0 and not given.anchor else place)) is not None:
            place = run
        else:
            hint = near(str(given), names_of_runs()) if len(given.parts) == 1 else ""
            if hint:
                raise UsageError(f"no run is called {clean(given, 100)}{hint}: specbench list shows them all")
            return given
    return place


def names_of_runs() -> list[str]:
    """Names of the runs in `results`, as commands accept them."""
    runs = runs_in(USUAL)
    timed = sum(bool(TIMED.match(run.name)) for run in runs)
    return [*[LATEST, PREVIOUS][:timed], *(name for run in runs for name in (key_of(run), run.name) if name)]


def run_called(name: str, parent: Path) -> Path | None:
    """The run of a folder with a name; None if missing. UsageError if there are several."""
    runs = runs_in(parent)
    if (back := BACK.fullmatch(name)) and not (parent / name / DESCRIPTION).is_file():
        timed = [run for run in runs if TIMED.match(run.name)]
        number = 1 if back[2] else int(back[1] or 0)
        if timed and number >= len(timed):
            found = f"{clean_path(parent)} has {counted(len(timed), 'run')} with a time in the name"
            raise UsageError(f"there is no {name}: {found}; specbench list shows them")
        return timed[-1 - number] if timed else None
    meant = [run for run in runs if name and (run.name.startswith(name) or key_of(run).startswith(name))]
    if len(meant) > 1:
        names = ", ".join(clean(run.name, 100) for run in meant[:SHOWN]) + ", …" * (len(meant) > SHOWN)
        raise UsageError(f"{clean(name, 100)} matches {len(meant)} runs in {parent}: {names}; write more of it")
    return meant[0] if meant else None


def key_of(run: Path) -> str:
    """The key at the end of a run's name; empty if missing."""
    return run.name.rpartition("_")[2] if TIMED.match(run.name) else ""


def short_name(run: Path) -> str:
    """The shortest name for commands: the key at the end of the run's name, or as much of the path as needed."""
    if run.parent == USUAL and (key := key_of(run)):
        same = [other for other in runs_in(USUAL) if other.name.startswith(key) or key_of(other).startswith(key)]
        return key if len(same) == 1 else run.name
    return str(run)


def resumed_as(run: Path) -> Path:
    """The name for --resume: latest, if that is this run."""
    return Path(LATEST) if not Path(LATEST).exists() and run_called(LATEST, USUAL) == run else run
