"""Files that somebody hands over, read within bounds: only regular ones, none that blocks and none without an end.

Pure; must not know what a file holds.
"""

import errno
import os
import stat
from io import TextIOWrapper
from pathlib import Path
from typing import BinaryIO, TextIO

ANY = 1 << 60  # bytes of a file that is never read as a whole
PART = 1 << 20  # bytes that are read at once
LARGEST = 1 << 30  # bytes of a file that is read into memory, where nothing smaller is said
# Some files of /proc are regular and block. Not every system knows all of these.
FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))


def read_whole(path: Path, most: int = LARGEST) -> bytes:
    """The content of a regular file of at most so many bytes; OSError, saying why, where there is none to be had."""
    parts: list[bytes] = []
    with open_regular(path, most) as file:
        while part := file.read(PART):
            parts.append(part)
            if len(parts) * PART > most + PART:  # it grows, or it is one whose size the system does not know
                raise too_large(path, most)
    return b"".join(parts)


def open_regular(path: Path, most: int = LARGEST) -> BinaryIO:
    """A regular file for reading; it never waits for what is not there."""
    check_regular(path, most)
    return open(path, "rb", opener=lambda name, _: os.open(name, FLAGS))


def open_text(path: Path, encoding: str = "utf-8", most: int = LARGEST) -> TextIO:
    """A regular file of text for reading, its line ends as they are."""
    return TextIOWrapper(open_regular(path, most), encoding=encoding, newline="")


def check_regular(path: Path, most: int = LARGEST) -> None:
    """OSError for a folder, a pipe, a device, a socket, and for a file of more than so many bytes."""
    found = path.stat()
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a file", str(path))
    if found.st_size > most:
        raise too_large(path, most)


def too_large(path: Path, most: int) -> OSError:
    return OSError(errno.EFBIG, f"it is larger than {in_units(most)}", str(path))


def in_units(size: int) -> str:
    """A number of bytes, as whole units where it is that."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >> shift << shift == size > 0:
            return f"{size >> shift} {unit}"
    return f"{size:,} bytes"
