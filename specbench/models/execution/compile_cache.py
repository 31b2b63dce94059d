"""The folder in which compiled code is kept. All of it may be deleted at any time. It is
run later, so nothing is taken from a folder or a file that another user may have written.
"""

import atexit
import errno
import os
import shutil
import stat
import sys
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO

from platformdirs import user_cache_path

from specbench.files import FLAGS, OWN, writing
from specbench.wording import clean_path, first_line

NAME = "SPECBENCH_CACHE"  # in the environment: another place for caches, where others may lie as well
OURS = "specbench"  # so only what lies in a folder of this name is ever deleted
BOUND = 4 << 30  # bytes
OFTEN = 24 * 3600.0  # seconds between two looks at the bound
LOOKED = "looked"  # the file whose age says when that was
INSIDE = ("regions", "products", "machine", "gguf")  # the folders in it
ALONE, ALONE_FILE = 0o700, 0o600  # permissions


def place() -> Path:
    """The folder; it need not exist."""
    given = os.environ.get(NAME)
    return Path(given).expanduser() / OURS if given else user_cache_path(OURS, appauthor=False)


def own_place() -> Path:
    """The folder, made for this user alone; another one where it may hold what others wrote, as `own` says."""
    return own(place())


def own(folder: Path) -> Path:
    """A folder that only this user can write to, made with those inside it if it is not there. Where others
    can, and where it cannot be used, stderr says so, and it is an empty one that ends with this process."""
    try:
        reason = distrusted(folder)
    except OSError as error:
        reason = f"cannot be used ({error.strerror or first_line(error)})"
    return private(folder, reason) if reason else folder


def private(folder: Path, reason: str) -> Path:
    """An empty folder in place of one that is not used. The processes that this one starts use it as well."""
    with writing("compiled code", f"name a folder of your own in {NAME}"):
        parent = tempfile.mkdtemp(prefix="specbench-")
        for name in ("", *INSIDE):
            (made := Path(parent) / OURS).joinpath(name).mkdir(ALONE)
    atexit.register(shutil.rmtree, parent, ignore_errors=True)
    if folder == place():
        os.environ[NAME] = parent
    say_once(f"{clean_path(folder)} {reason}: no compiled code of it is run, and all is compiled anew; "
             f"name a folder of your own in {NAME}")  # fmt: skip
    return made


@cache
def say_once(line: str) -> None:
    print(f"note: {line}", file=sys.stderr)


def distrusted(folder: Path) -> str:
    """Why others may have written what is in a folder, empty where they cannot,
    which this sees to. OSError where it cannot be made or opened, or is a link."""
    folder.mkdir(ALONE, parents=True, exist_ok=True)
    if not hasattr(os, "geteuid"):
        return ""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | OWN)
    try:
        if reason := of_others(os.fstat(opened)) or exchangeable(folder):
            return reason
        os.fchmod(opened, ALONE)
    finally:
        os.close(opened)
    for name in INSIDE:
        (folder / name).mkdir(ALONE, exist_ok=True)
    return next(filter(None, (of_others((folder / name).lstat()) for name in INSIDE)), "")


def of_others(about: os.stat_result) -> str:
    """Why a file or folder may hold what another user wrote; empty where it cannot."""
    if about.st_uid != os.geteuid():
        return f"belongs to another user (uid {about.st_uid})"
    if stat.S_ISLNK(about.st_mode):
        return "holds links"
    return "can be written by other users" if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else ""


def exchangeable(folder: Path) -> str:
    """Why everybody could put another folder in the place of this one; empty where nobody can."""
    modes = [(parent, parent.stat().st_mode) for parent in (*folder.absolute().parents, *folder.resolve().parents)]
    found = [parent for parent, mode in modes if mode & stat.S_IWOTH and not mode & stat.S_ISVTX]
    return f"is in {clean_path(found[0])}, which everybody can write to" if found else ""


def open_ours(file: Path) -> BinaryIO:
    """A file that nobody else can have written, opened for reading and marked as used. OSError for any other."""
    opened = os.open(file, FLAGS | OWN)
    try:
        about = os.fstat(opened)
        if hasattr(os, "geteuid") and (reason := of_others(about)):
            say_once(f"a file in {clean_path(file.parent)} {reason}: its compiled code is not run, but compiled anew")
            raise PermissionError(errno.EPERM, reason, str(file))
        with suppress(OSError):
            os.utime(opened if os.utime in os.supports_fd else file)
        return open(opened, "rb")
    except BaseException:
        os.close(opened)
        raise


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
