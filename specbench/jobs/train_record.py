"""What a folder of a training says of the command that began it, so that the same command goes on with it.

Knows JSON; must not know what is trained.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.errors import UsageError
from specbench.files import read_whole
from specbench.jobs.train_data import CACHE
from specbench.replacing import refuse_links, replace_text
from specbench.wording import clean, clean_path, first_line

FILE = "training.json"
MOST = 1 << 20  # bytes


@dataclass(frozen=True)
class Record:
    """identity: what was asked for; tokens: how many are learned, where that was measured and not asked for."""

    identity: Mapping[str, Any]
    tokens: int | None = None


def of(folder: Path, identity: Mapping[str, Any]) -> Record:
    """The record of a folder, begun now or before.

    UsageError for one that was begun with something else, one that cannot be read, and a folder of other things.
    """
    identity = json.loads(json.dumps(identity, default=str))
    if not (folder / FILE).exists():
        if others := sorted(path.name for path in folder.iterdir() if not path.name.startswith(".")):
            raise UsageError(
                f"{clean_path(folder)} holds other files ({clean(others[0])} …): a draft needs its own --output"
            )
        write(folder, Record(identity))
        return Record(identity)
    refuse_links(folder)
    begun = read(folder / FILE)
    if (different := next(differences(begun.identity, identity), None)) is not None:
        if not learned(folder):
            write(folder, Record(identity))
            return Record(identity)
        name, there, here = different
        raise UsageError(
            f"{clean_path(folder)} was begun with {clean(name)} {clean(there)}, not {clean(here)}: give the same to go "
            "on with it, or another --output"
        )
    return begun


def learned(folder: Path) -> bool:
    """Whether there is anything in a folder that another command must not go on with; text knows what it is made of."""
    return any(path.name not in (FILE, CACHE) and not path.name.startswith(".") for path in folder.iterdir())


def read(file: Path) -> Record:
    try:
        found = json.loads(read_whole(file, MOST))
        return Record(dict(found["identity"]), found["tokens"] if found["tokens"] is None else int(found["tokens"]))
    except OSError as error:
        raise UsageError(f"cannot read {clean_path(file)}: {error.strerror or first_line(error)}") from error
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(
            f"{clean_path(file)} is damaged ({first_line(error)}): remove its folder, or give another --output"
        ) from error


def write(folder: Path, record: Record) -> None:
    text = json.dumps({"identity": record.identity, "tokens": record.tokens}, indent=1)
    replace_text(folder / FILE, text + "\n")


def differences(there: Any, here: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two records differ: the name of the value, and both."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in sorted({*there, *here}):
            yield from differences(there.get(key), here.get(key), key)
    elif there != here:
        yield name, there, here
