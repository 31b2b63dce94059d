"""Read shipped files and untrusted files within bounds; YAML as plain values.

Only regular files are read, so that no read blocks or runs forever. YAML may not repeat a key or contain itself.
"""

import errno
import os
import secrets
import stat
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from specbench.errors import UsageError
from specbench.wording import clean_path, first_line

if TYPE_CHECKING:
    from yaml.nodes import Node

T = TypeVar("T")
PACKAGE = Path(__file__).parent
ASSETS = PACKAGE / "assets"
CONFIGS = PACKAGE / "configs" if (PACKAGE / "configs").is_dir() else PACKAGE.parent / "configs"
ANY = 1 << 60  # bytes; for a file that is never read as a whole
PART = 1 << 20  # bytes per read
LARGEST = 1 << 30  # largest file in bytes that is read into memory, by default
# Some files of /proc are regular and block. Not every system has all of these flags.
FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
LARGEST_YAML = 128 << 10  # bytes of a file; parsing takes a second
MOST_VALUES = 20_000  # values in it, counting alias repeats: a few lines can expand to billions
MOST_DIGITS = 40  # digits of an integer; Python refuses to print very long ones
INTEGER = "tag:yaml.org,2002:int"


def read_whole(path: Path, most: int = LARGEST) -> bytes:
    """Read a regular file of at most `most` bytes. OSError, with the reason, if that is not possible."""
    parts: list[bytes] = []
    with open_regular(path, most) as file:
        while part := file.read(PART):
            parts.append(part)
            if len(parts) * PART > most + PART:  # the file grows, or the system does not know its size
                raise too_large(path, most)
    return b"".join(parts)


def open_regular(path: Path, most: int = LARGEST) -> BinaryIO:
    """Open a regular file for reading, without blocking."""
    check_regular(path, most)
    return open(path, "rb", opener=lambda name, _: os.open(name, FLAGS))


def check_regular(path: Path, most: int = LARGEST) -> None:
    """Raise OSError for a folder, pipe, device or socket, and for a file of more than `most` bytes."""
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
    """Format a number of bytes in the largest unit that divides it."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >> shift << shift == size > 0:
            return f"{size >> shift} {unit}"
    return f"{size:,} bytes"


# --- YAML -------------------------------------------------------------------------------------------------------------


def read_yaml(path: Path) -> Any:
    """Parse a YAML file. OSError if it cannot be read; ValueError, in one line, if it is invalid here."""
    return parsed_yaml(read_whole(path, LARGEST_YAML).decode("utf-8"))


def read_checked(path: Path, checked: Callable[[Any], T]) -> T:
    """A YAML file as a pydantic model. UsageError, naming the place in the file, if it cannot be read or is invalid."""
    from pydantic import ValidationError

    try:
        return checked(read_yaml(path))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError(": ".join(filter(None, (str(path), where, first["msg"])))) from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}") from error


def parsed_yaml(text: str) -> Any:
    """Parse YAML text. ValueError, in one line, if it is invalid, repeats a key, contains itself or is too large."""
    import yaml  # slow to import; not needed without a file

    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if values_in(node, set(), {}) > MOST_VALUES:
            raise ValueError(f"it expands to more than {MOST_VALUES:,} values, with those that aliases repeat")
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def values_in(node: "Node", around: set[int], known: dict[int, int]) -> int:
    """Number of values in a node, with aliases expanded; `around` are its ancestors."""
    if id(node) in around:
        raise ValueError(f"line {line_of(node)}: this value contains itself")
    if id(node) not in known:
        around.add(id(node))
        known[id(node)] = 1 + sum(values_in(one, around, known) for one in inside_node(node))
        around.discard(id(node))
    return known[id(node)]


def inside_node(node: "Node") -> "list[Node]":
    """The direct children. ValueError for a repeated key, where YAML would keep the last, and an oversized number."""
    from yaml.nodes import MappingNode, ScalarNode, SequenceNode

    if isinstance(node, MappingNode):
        names = Counter(key.value for key, _ in node.value if isinstance(key, ScalarNode))
        if twice := [name for name, count in names.items() if count > 1]:
            raise ValueError(f"line {line_of(node)}: the key {twice[0][:60]!r} occurs twice")
        return [one for pair in node.value for one in pair]
    if node.tag == INTEGER and len(node.value) > MOST_DIGITS:
        raise ValueError(f"line {line_of(node)}: a number of more than {MOST_DIGITS} digits")
    return node.value if isinstance(node, SequenceNode) else []


def line_of(node: "Node") -> int:
    """The line where a node starts, from 1."""
    return int(node.start_mark.line) + 1


# --- replacing --------------------------------------------------------------------------------------------------------
# Atomic writes: a file is written whole or not at all, in its own folder and nowhere else.
# Folders may be untrusted, so writing follows no links and waits for no reader.

# Not every system has all of these; if an open cannot refuse links, they are checked before.
OWN = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
LONGEST = 40  # characters of a file's name in its temporary name, which must fit into 255 bytes
RANDOM = 8  # random bytes in the name of a temporary file


def replace_text(path: Path, text: str, mode: int = 0o666) -> None:
    """Replace the content of `path` by a text."""
    with replacing(path, mode) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """A new file that replaces `path` atomically once it is complete and on disk, or never.

    mode: its permissions, less the umask. A link at `path` is replaced itself. OSError for a folder, pipe or
    device, which would be replaced as well.
    """
    if path.exists():
        check_regular(path)
    temporary = path.with_name(f".{path.name[:LONGEST]}.{secrets.token_hex(RANDOM)}.tmp")
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | OWN, mode))  # O_EXCL: it cannot be a link
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)  # on a full disk, free its space for others
        raise


def clear_unfinished(folder: Path, *names: str) -> None:
    """Delete temporary files left by killed processes, for these names or all. No other process may be writing them."""
    for name in names or ("*",):
        for left in folder.glob(f".{name}.{'[0-9a-f]' * 2 * RANDOM}.tmp"):
            if stat.S_ISREG(left.lstat().st_mode):
                left.unlink(missing_ok=True)


@contextmanager
def filling(folder: Path, last: str = "") -> Iterator[Path]:
    """An empty folder whose files then replace those of `folder` one by one; other files stay.

    last: the file that is moved last, so that its presence implies the others.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unfinished.", dir=folder) as scratch:
        yield Path(scratch)
        files = [file for file in Path(scratch).rglob("*") if file.is_file()]
        for file in sorted(files, key=lambda file: (file.name == last, file.name)):
            place = folder / file.relative_to(scratch)
            os.replace(file, place if place.parent == folder else own_folder(place.parent) / file.name)


def open_own(path: Path, flags: int = 0) -> int:
    """Open a file for reading and in-place writing, creating it if missing.

    UsageError for a link, which may lead to any file of the user, and for anything else that is not a regular file.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise UsageError(f"{clean_path(path)} is a link, or not a file: put the file itself there")
    return os.open(path, os.O_RDWR | os.O_CREAT | OWN | flags, 0o666)


def own_folder(path: Path) -> Path:
    """A subfolder to write to, created if missing. OSError for a link, which may lead anywhere."""
    if path.is_symlink():
        raise NotADirectoryError(errno.ENOTDIR, "it is a link, not a folder", str(path))
    path.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def writing(what: str, advice: str) -> Iterator[None]:
    """Convert a full disk or an unwritable location into a UsageError of one line."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot write {what}: {error.strerror or first_line(error)}; {advice}") from error
