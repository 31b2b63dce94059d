"""The folder in which compiled code is kept: where it is, how much there may be, and how it is cleared.

Knows files, their sizes and ages; must not know what is in them. All of it may be deleted at any time.
"""

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from platformdirs import user_cache_path

NAME = "SPECBENCH_CACHE"  # in the environment: another place for caches, where others may lie as well
OURS = "specbench"  # so only what lies in a folder of this name is ever deleted
BOUND = 4 << 30  # bytes
OFTEN = 24 * 3600.0  # seconds between two looks at the bound
LOOKED = "looked"  # the file whose age says when that was


def place() -> Path:
    """The folder; it need not exist."""
    given = os.environ.get(NAME)
    return Path(given).expanduser() / OURS if given else user_cache_path(OURS, appauthor=False)


def files_of(folder: Path) -> list[tuple[float, int, Path]]:
    """(when it was last used, bytes, path) of every file in a folder, that of longest ago first."""
    found = []
    for path in folder.rglob("*"):
        with suppress(OSError):
            if path.is_file():
                about = path.stat()
                found.append((about.st_mtime, about.st_size, path))
    return sorted(found)


def size_of(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(size for _, size, _ in files_of(folder))


def tidy(folder: Path, bound: int = BOUND) -> None:
    """Once a day, delete what was not used for longest until no more than the bound is kept."""
    looked = folder / LOOKED
    if looked.exists() and 0 <= time.time() - looked.stat().st_mtime < OFTEN:
        return
    looked.touch()
    found = files_of(folder)
    total = sum(size for _, size, _ in found)
    for _, size, path in found:
        if total <= bound:
            return
        with suppress(OSError):
            path.unlink()
            total -= size


def clear(folder: Path) -> int:
    """Delete it; returns how many bytes less there are."""
    before = size_of(folder)
    shutil.rmtree(folder, ignore_errors=True)
    return before - size_of(folder)
