"""Files that are written whole or not at all, in the folder where they belong and nowhere else.

Folders come from strangers as well: what is written there follows no link and waits for no reader. Pure; must not know
what a file holds.
"""

import errno
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specbench.errors import UsageError
from specbench.files import check_regular
from specbench.wording import clean_path, first_line

# Not every system knows all of these; where links cannot be refused by an open, they are looked for.
OWN = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
LONGEST = 40  # characters of a file's name in that of its temporary file, which has to fit into 255 bytes
RANDOM = 8  # bytes in the name of a temporary file


def replace_text(path: Path, text: str, mode: int = 0o666) -> None:
    """Replace `path` by a text."""
    with replacing(path, mode) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """A new file to be written, which replaces `path` at once when it is whole and on disk, or never.

    mode: its permissions, less the umask. A link at `path` is replaced itself. OSError for a path that is a folder, a
    pipe or a device: it would be replaced, too.
    """
    if path.exists():
        check_regular(path)
    temporary = path.with_name(f".{path.name[:LONGEST]}.{secrets.token_hex(RANDOM)}.tmp")
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | OWN, mode))  # nobody can have put a link there
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)  # on a full disk it takes the space that would let others go on
        raise


def clear_unfinished(folder: Path, *names: str) -> None:
    """Delete what killed processes left of files of these names, or of all. No other process may be writing them."""
    for name in names or ("*",):
        for left in folder.glob(f".{name}.{'[0-9a-f]' * 2 * RANDOM}.tmp"):
            if stat.S_ISREG(left.lstat().st_mode):
                left.unlink(missing_ok=True)


@contextmanager
def filling(folder: Path, last: str = "") -> Iterator[Path]:
    """An empty folder to be filled, whose files then replace those of `folder` one by one; all others stay.

    last: the name of the file that appears last: where it is, the others are.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unfinished.", dir=folder) as scratch:
        yield Path(scratch)
        files = [file for file in Path(scratch).rglob("*") if file.is_file()]
        for file in sorted(files, key=lambda file: (file.name == last, file.name)):
            place = folder / file.relative_to(scratch)
            os.replace(file, place if place.parent == folder else own_folder(place.parent) / file.name)


def open_own(path: Path, flags: int = 0) -> int:
    """The descriptor of a file that is read, and written in its place, made if it is not there.

    UsageError for a link: it may lead to any file of the user; and for all else that is no regular file.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise UsageError(f"{clean_path(path)} is a link, or no file: put the file itself there, which is written to")
    return os.open(path, os.O_RDWR | os.O_CREAT | OWN | flags, 0o666)


def own_folder(path: Path) -> Path:
    """A folder inside one that is written to, made if it is not there. OSError for a link, which may lead anywhere."""
    if path.is_symlink():
        raise NotADirectoryError(errno.ENOTDIR, "it is a link, not a folder", str(path))
    path.mkdir(parents=True, exist_ok=True)
    return path


def refuse_links(path: Path) -> None:
    """UsageError for a folder in which a run goes on, with links inside: they may lead anywhere."""
    if link := next((inner for inner in path.rglob("*") if inner.is_symlink()), None):
        raise UsageError(f"{clean_path(link)} is a link: put the file or the folder itself there, which is written to")


@contextmanager
def writing(what: str, advice: str) -> Iterator[None]:
    """Turns a full disk or a place that cannot be written into a UsageError of one line."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot write {what}: {error.strerror or first_line(error)}; {advice}") from error
