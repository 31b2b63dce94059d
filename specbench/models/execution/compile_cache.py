"""The cache folder of compiled code. All of it may be deleted at any time. Its code is
executed, so folders and files that another user may have written are not used."""

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

NAME = "SPECBENCH_CACHE"  # environment variable: another location for caches, which may contain other data
OURS = "specbench"  # only folders of this name are ever deleted
BOUND = 4 << 30  # bytes
OFTEN = 24 * 3600.0  # seconds between two checks of the bound
LOOKED = "looked"  # a file whose age is the time of the last check
INSIDE = ("regions", "products", "machine", "gguf")  # its subfolders
ALONE, ALONE_FILE = 0o700, 0o600  # permissions


def place() -> Path:
    """The folder; it need not exist."""
    given = os.environ.get(NAME)
    return Path(given).expanduser() / OURS if given else user_cache_path(OURS, appauthor=False)


def own_place() -> Path:
    """The folder, private to this user; another one if it may contain files of others, see `own`."""
    return own(place())


def own(folder: Path) -> Path:
    """A folder that only this user can write to, created with its subfolders if missing. If others can write
    to it, or it is unusable, a warning goes to stderr and an empty folder is used that ends with this process."""
    try:
        reason = distrusted(folder)
    except OSError as error:
        reason = f"cannot be used ({error.strerror or first_line(error)})"
    return private(folder, reason) if reason else folder


def private(folder: Path, reason: str) -> Path:
    """An empty replacement for an unused folder. Child processes use it as well."""
    with writing("compiled code", f"name a folder of your own in {NAME}"):
        parent = tempfile.mkdtemp(prefix="specbench-")
        for name in ("", *INSIDE):
            (made := Path(parent) / OURS).joinpath(name).mkdir(ALONE)
    atexit.register(shutil.rmtree, parent, ignore_errors=True)
    if folder == place():
        os.environ[NAME] = parent
    say_once(f"{clean_path(folder)} {reason}: its compiled code is not run, and everything is compiled again; "
             f"name a folder of your own in {NAME}")  # fmt: skip
    return made


@cache
def say_once(line: str) -> None:
    print(f"note: {line}", file=sys.stderr)


def distrusted(folder: Path) -> str:
    """Why others may have written to a folder; empty if they cannot, for which its permissions
    are set. OSError if it cannot be created or opened, or is a link."""
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
    """Why a file or folder may contain data of another user; empty if it cannot."""
    if about.st_uid != os.geteuid():
        return f"belongs to another user (uid {about.st_uid})"
    if stat.S_ISLNK(about.st_mode):
        return "holds links"
    return "can be written by other users" if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else ""


def exchangeable(folder: Path) -> str:
    """Why any user could replace this folder; empty if none can."""
    modes = [(parent, parent.stat().st_mode) for parent in (*folder.absolute().parents, *folder.resolve().parents)]
    found = [parent for parent, mode in modes if mode & stat.S_IWOTH and not mode & stat.S_ISVTX]
    return f"is in {clean_path(found[0])}, which everybody can write to" if found else ""


def open_ours(file: Path) -> BinaryIO:
    """A file that only this user can have written, opened for reading and marked as used. OSError for any other."""
    opened = os.open(file, FLAGS | OWN)
    try:
        about = os.fstat(opened)
        if hasattr(os, "geteuid") and (reason := of_others(about)):
            say_once(f"a file in {clean_path(file.parent)} {reason}: its compiled code is not run, but compiled again")
            raise PermissionError(errno.EPERM, reason, str(file))
        with suppress(OSError):
            os.utime(opened if os.utime in os.supports_fd else file)
        return open(opened, "rb")
    except BaseException:
        os.close(opened)
        raise


def files_of(folder: Path) -> list[tuple[float, int, Path]]:
    """(time of last use, bytes, path) of every file in a folder, the least recently used first."""
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
    """Once a day, delete the least recently used files until the folder is within the bound."""
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
    """Delete the folder; returns the number of bytes freed."""
    before = size_of(folder)
    shutil.rmtree(folder, ignore_errors=True)
    return before - size_of(folder)
