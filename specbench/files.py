"""Files that ship with specbench, and files that somebody hands over: read within bounds, YAML as plain values.

Only regular files are read, none that blocks and none without an end; YAML has every key once and never itself.
"""

import errno
import os
import stat
from collections import Counter
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

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
