"""Files that ship with specbench, and files that somebody hands over: read within bounds, YAML as plain values.

Only regular files are read, none that blocks and none without an end; YAML has every key once and never itself.
"""

import errno
import os
import secrets
import stat
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

from specbench.errors import UsageError
from specbench.wording import clean_path, first_line

if TYPE_CHECKING:
    from yaml.nodes import Node

PACKAGE = Path(__file__).parent
ASSETS = PACKAGE / "assets"
CONFIGS = PACKAGE / "configs" if (PACKAGE / "configs").is_dir() else PACKAGE.parent / "configs"
ANY = 1 << 60  # bytes of a file that is never read as a whole
PART = 1 << 20  # bytes that are read at once
LARGEST = 1 << 30  # bytes of a file that is read into memory, where nothing smaller is said
# Some files of /proc are regular and block. Not every system knows all of these.
FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
LARGEST_YAML = 128 << 10  # bytes of a file; the parser takes a second for them
MOST_VALUES = 20_000  # values in it, those that an alias repeats counted again: a few lines can stand for billions
MOST_DIGITS = 40  # of a whole number; Python refuses to print very long ones
INTEGER = "tag:yaml.org,2002:int"


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


# --- YAML -------------------------------------------------------------------------------------------------------------


def read_yaml(path: Path) -> Any:
    """What a file says. OSError where it cannot be read, ValueError, in one line, where it is no YAML of this kind."""
    return parsed_yaml(read_whole(path, LARGEST_YAML).decode("utf-8"))


def parsed_yaml(text: str) -> Any:
    """What a text says; ValueError, in one line, where it is no YAML, has a key twice, contains itself or is too much.

    The text is that of one document; of YAML's tags only the plain ones are known.
    """
    import yaml  # it takes a moment, which a command without a file need not

    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if values_in(node, set(), {}) > MOST_VALUES:
            raise ValueError(f"it stands for more than {MOST_VALUES:,} values, with those that aliases repeat")
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def values_in(node: "Node", around: set[int], known: dict[int, int]) -> int:
    """How many values a node stands for, aliases followed; `around` are the nodes that it stands in."""
    if id(node) in around:
        raise ValueError(f"line {line_of(node)}: this value contains itself")
    if id(node) not in known:
        around.add(id(node))
        check_node(node)
        known[id(node)] = 1 + sum(values_in(one, around, known) for one in inside_node(node))
        around.discard(id(node))
    return known[id(node)]


def inside_node(node: "Node") -> "list[Node]":
    """The nodes that a node directly consists of."""
    from yaml.nodes import MappingNode, SequenceNode

    if isinstance(node, MappingNode):
        return [one for pair in node.value for one in pair]
    return node.value if isinstance(node, SequenceNode) else []


def check_node(node: "Node") -> None:
    """ValueError for a mapping with a key twice, of which YAML would keep the last, and for an endless number."""
    from yaml.nodes import MappingNode, ScalarNode

    if isinstance(node, MappingNode):
        names = Counter(key.value for key, _ in node.value if isinstance(key, ScalarNode))
        if twice := [name for name, count in names.items() if count > 1]:
            raise ValueError(f"line {line_of(node)}: the key {twice[0][:60]!r} stands there twice")
    elif node.tag == INTEGER and len(node.value) > MOST_DIGITS:
        raise ValueError(f"line {line_of(node)}: a number of more than {MOST_DIGITS} digits")


def line_of(node: "Node") -> int:
    """The line in which a node begins, from 1."""
    return int(node.start_mark.line) + 1


# --- replacing --------------------------------------------------------------------------------------------------------
# Files that are written whole or not at all, in the folder where they belong and nowhere else.
# Folders come from strangers as well: what is written there follows no link and waits for no reader.

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

    mode: its permissions, less the umask. A link at `path` is replaced itself. OSError
    for a path that is a folder, a pipe or a device: it would be replaced, too.
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
