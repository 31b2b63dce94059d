"""Files of text, a folder of them, or those that a pattern matches: read part by part, never as a whole.

Knows file systems and UTF-8; must not know tokens. What cannot be read is counted with its reason, and said.
"""

import glob
import hashlib
import io
import os
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from specbench.data.readers import unpacked
from specbench.errors import UsageError
from specbench.files import PART
from specbench.wording import clean, counted

PROSE = (".txt", ".text", ".md", ".markdown", ".rst", ".tex", ".html")
CODE = (".py", ".js", ".ts", ".java", ".c", ".h", ".cc", ".cpp", ".hpp", ".rs", ".go", ".rb", ".php", ".sh", ".sql")
MOST = 1_000_000  # files
LARGEST = 1 << 40  # bytes of a file, which is never held in memory
LENGTH = 1 << 18  # characters of a part, about 64 thousand tokens
DAMAGED = (OSError, EOFError, zlib.error)
NOT_UTF8, UNREADABLE = "not UTF-8 (files, from the first such byte on)", "unreadable (files)"


@dataclass(frozen=True)
class TextFiles:
    """Some files in a fixed order, by names that do not depend on where they lie. left_out counts what was not read."""

    shown: str
    files: tuple[tuple[str, Path], ...]
    left_out: Counter[str] = field(default_factory=Counter)

    @cached_property
    def sha256(self) -> str:
        """Of names and contents; every file is read for it."""
        digest = hashlib.sha256()
        for name, path in self.files:
            digest.update(f"{len(name)}\0{name}\0".encode(errors="surrogatepass"))
            try:
                with unpacked(path, LARGEST) as file:
                    while part := file.read(PART):
                        digest.update(part)
            except DAMAGED as error:
                digest.update(f"\0{type(error).__name__}".encode())
        return digest.hexdigest()

    def parts(self) -> Iterator[tuple[str, str]]:
        """The name and the text of every part; a part is a whole file unless that is long."""
        self.left_out.clear()
        for name, path in self.files:
            try:
                for number, text in enumerate(parts_of(path), 1):
                    yield (name if number == 1 else f"{name}#{number}"), text
            except UnicodeDecodeError:
                self.left_out[NOT_UTF8] += 1
            except DAMAGED:
                self.left_out[UNREADABLE] += 1


def text_files(name: str) -> TextFiles:
    """The files that a path or a pattern stands for; UsageError where there are none."""
    shown, path = clean(name, 300), Path(os.path.expanduser(name))
    if "\0" in name or not name:
        raise UsageError(f"--data text:{shown} names no file: write text:FILE, text:FOLDER or text:'FOLDER/**/*.md'")
    folder = os.path.isdir(path)  # which, unlike those of a Path, says no of names that cannot be
    if folder:
        found, root = sorted(below(path)), path
    elif os.path.exists(path):
        found, root = [path], path.parent
    else:
        found, root = sorted(matching(path)), fixed_part(path)
    if not found:
        endings = f" with one of the endings {' '.join(PROSE + CODE)}" if folder else ""
        raise UsageError(f"--data text:{shown}: no such file{endings}; a pattern names others, as text:'DIR/**/*.log'")
    if len(found) > MOST:
        raise UsageError(f"--data text:{shown} has more than {counted(MOST, 'file')}: give a part of them")
    return TextFiles(shown, tuple((clean(one.relative_to(root).as_posix(), 200), one) for one in found))


def below(folder: Path) -> Iterator[Path]:
    """The files of text in a folder and its folders; nothing hidden, and no link to a folder is followed."""
    for place, folders, files in os.walk(folder):
        folders[:] = [one for one in folders if not one.startswith(".")]
        yield from (Path(place, one) for one in files if is_text(one))


def is_text(name: str) -> bool:
    """Whether a file is text, by its name; .gz is unpacked."""
    return not name.startswith(".") and name.lower().removesuffix(".gz").endswith(PROSE + CODE)


def matching(pattern: Path) -> Iterator[Path]:
    """The files that a pattern matches; ** stands for any folders."""
    return (Path(one) for one in glob.iglob(str(pattern), recursive=True) if os.path.isfile(one))


def fixed_part(pattern: Path) -> Path:
    """The folder that all files of a pattern lie in."""
    return next((place for place in pattern.parents if not glob.has_magic(str(place))), Path())


def parts_of(path: Path) -> Iterator[str]:
    """The text of a file in parts that end with a line where there is an end of a line.

    UnicodeDecodeError as soon as it is not UTF-8, OSError or EOFError where it cannot be read.
    """
    with io.TextIOWrapper(io.BufferedReader(unpacked(path, LARGEST)), encoding="utf-8-sig") as file:  # type: ignore[type-var]
        text = file.read(LENGTH)
        while more := file.read(LENGTH):
            end = text.rfind("\n") + 1 or len(text)
            yield text[:end]
            text = text[end:] + more
        yield text
