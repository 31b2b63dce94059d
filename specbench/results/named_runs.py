"""The runs of a folder by name: `latest`, `previous`, `latest~2`, or the first letters of a name or of its key."""

import re
from pathlib import Path

from specbench.errors import UsageError
from specbench.wording import clean, clean_path, counted, near

DESCRIPTION = "run.json"  # its readers take a moment to load, which a name need not
TABLE = "results.csv"  # means the run that it lies in
USUAL = Path("results")  # where commands leave runs that are told nothing else
LATEST, PREVIOUS = "latest", "previous"
BACK = re.compile(rf"{LATEST}(?:~(\d{{1,4}}))?|({PREVIOUS})", re.ASCII)  # how many runs before the latest
TIMED = re.compile(r"\d{8}T\d{6}Z_")
SHOWN = 3  # names in an error


def runs_in(parent: Path) -> list[Path]:
    """The folders of runs, the oldest first; those that were given another name, as a baseline, before them."""
    try:
        found = [path for path in parent.iterdir() if (path / DESCRIPTION).is_file()]
    except OSError:
        return []
    return sorted(found, key=lambda path: (bool(TIMED.match(path.name)), path.name[:16], began(path), path.name))


def began(path: Path) -> float:
    """When run.json was written: two runs of one second have the same time in their names."""
    return (path / DESCRIPTION).stat().st_mtime


def found_run(given: Path) -> Path:
    """The folder of the run that is meant, by its path, its name or its results.csv; others are returned as they are.

    A name alone is looked for in `results`. UsageError where several runs begin with it.
    """
    found = resolved(given)
    return found.parent if found.name == TABLE else found


def resolved(given: Path) -> Path:
    """The path as it is where it exists, else with the run that a part of it names."""
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
            check_spelling(given)
            return given
    return place


def check_spelling(given: Path) -> None:
    """UsageError where a lone name is nearly that of a run."""
    hint = near(str(given), names_of_runs()) if len(given.parts) == 1 else ""
    if hint:
        raise UsageError(f"no run is called {clean(given, 100)}{hint}: specbench list shows them all")


def names_of_runs() -> list[str]:
    """Names by which commands find the runs in `results`."""
    runs = runs_in(USUAL)
    timed = sum(bool(TIMED.match(run.name)) for run in runs)
    return [*[LATEST, PREVIOUS][:timed], *(name for run in runs for name in (key_of(run), run.name) if name)]


def run_called(name: str, parent: Path) -> Path | None:
    """The run of a folder that a name means; None where it means none. UsageError where it means several."""
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
        raise UsageError(f"{clean(name, 100)} is how {len(meant)} runs in {parent} begin: {names}; write more of it")
    return meant[0] if meant else None


def key_of(run: Path) -> str:
    """The key at the end of a run's name; empty where its name has none."""
    return run.name.rpartition("_")[2] if TIMED.match(run.name) else ""


def short_name(run: Path) -> str:
    """What a command may call a run: the key at the end of its name, or as much of the path as it takes."""
    if run.parent == USUAL and (key := key_of(run)):
        same = [other for other in runs_in(USUAL) if other.name.startswith(key) or key_of(other).startswith(key)]
        return key if len(same) == 1 else run.name
    return str(run)


def resumed_as(run: Path) -> Path:
    """What --resume may call a run: latest, where that means this one."""
    return Path(LATEST) if not Path(LATEST).exists() and run_called(LATEST, USUAL) == run else run
