"""The sources named by `--data`: data sets by their `--dataset` names, files and folders of text.

Text files are read part by part, never whole; unreadable ones are counted by reason.
"""

import glob
import hashlib
import io
import os
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from specbench.data.longtext import Encode, is_long
from specbench.data.prompts import Prompt, PromptSet
from specbench.data.sources import READERS, unpacked
from specbench.errors import UsageError
from specbench.files import PART
from specbench.training.recipe import HELP
from specbench.wording import clean, counted

TEXT = "text:"
PROSE = (".txt", ".text", ".md", ".markdown", ".rst", ".tex", ".html")
CODE = (".py", ".js", ".ts", ".java", ".c", ".h", ".cc", ".cpp", ".hpp", ".rs", ".go", ".rb", ".php", ".sh", ".sql")
MOST = 1_000_000  # files
LARGEST = 1 << 40  # bytes of a file, which is never held in memory
LENGTH = 1 << 18  # characters of a part, about 64 thousand tokens
DAMAGED = (OSError, EOFError, zlib.error)
NOT_UTF8, UNREADABLE = "not UTF-8 (files, from the first such byte on)", "unreadable (files)"


# --- files of text ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TextFiles:
    """Files in a fixed order, by names independent of their location. left_out counts unread ones."""

    files: tuple[tuple[str, Path], ...]
    left_out: Counter[str] = field(default_factory=Counter)

    @cached_property
    def sha256(self) -> str:
        """The digest of names and contents; every file is read for it."""
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
    """The files of a path or a pattern; UsageError if none exist."""
    shown, path = clean(name, 300), Path(os.path.expanduser(name))
    if "\0" in name or not name:
        raise UsageError(f"--data text:{shown} names no file: write text:FILE, text:FOLDER or text:'FOLDER/**/*.md'")
    folder = os.path.isdir(path)  # unlike Path's methods, this returns false for impossible names
    if folder:
        found, root = sorted(below(path)), path
    elif os.path.exists(path):
        found, root = [path], path.parent
    else:
        # the common folder of all files of the pattern
        root = next((place for place in path.parents if not glob.has_magic(str(place))), Path())
        found = sorted(Path(one) for one in glob.iglob(str(path), recursive=True) if os.path.isfile(one))
    if not found:
        endings = f" with one of the endings {' '.join(PROSE + CODE)}" if folder else ""
        raise UsageError(f"--data text:{shown}: no such file{endings}; a pattern names others, as text:'DIR/**/*.log'")
    if len(found) > MOST:
        raise UsageError(f"--data text:{shown} has more than {counted(MOST, 'file')}: give a part of them")
    return TextFiles(tuple((clean(one.relative_to(root).as_posix(), 200), one) for one in found))


def below(folder: Path) -> Iterator[Path]:
    """The text files in a folder and its subfolders, without hidden ones and without following links to folders."""
    for place, folders, files in os.walk(folder):
        folders[:] = [one for one in folders if not one.startswith(".")]
        for one in files:
            if not one.startswith(".") and one.lower().removesuffix(".gz").endswith(PROSE + CODE):
                yield Path(place, one)


def parts_of(path: Path) -> Iterator[str]:
    """The text of a file in parts that end with a line if possible.

    UnicodeDecodeError as soon as it is not UTF-8, OSError or EOFError if it cannot be read.
    """
    with io.TextIOWrapper(io.BufferedReader(unpacked(path, LARGEST)), encoding="utf-8-sig") as file:  # type: ignore[type-var]
        text = file.read(LENGTH)
        while more := file.read(LENGTH):
            end = text.rfind("\n") + 1 or len(text)
            yield text[:end]
            text = text[end:] + more
        yield text


# --- sources ----------------------------------------------------------------------------------------------------------


Load = Callable[[str, Encode], PromptSet]  # the prompts of a data set, see `load_prompts`


@dataclass(frozen=True)
class Source:
    """One source of `--data`: the prompts of a data set, or text files to be read one by one.

    label: the name of its prompts and documents, independent of a file's location.
    """

    name: str
    label: str
    prompts: PromptSet | None = None
    files: TextFiles | None = None

    @property
    def sha256(self) -> str:
        """The digest of its contents. Files are read completely for it."""
        return self.prompts.sha256 if self.prompts else self.files.sha256 if self.files else ""

    def known_as(self, prompt: Prompt) -> str:
        """The name of a prompt among those of several sources."""
        return f"{self.label}/{prompt.id}"

    @property
    def title(self) -> str:
        """Its default category: the name of the data set or file, without the kind of the file."""
        kind, _, file = self.label.partition(":")
        return file.removesuffix(".gz").removesuffix(f".{kind}") if kind in READERS else self.label

    def category(self, prompt: Prompt) -> str:
        return self.title if prompt.category == "all" else prompt.category


@dataclass(frozen=True)
class Sources:
    each: tuple[Source, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(clean(source.name, 300) for source in self.each)

    @property
    def sets(self) -> list[PromptSet]:
        return [source.prompts for source in self.each if source.prompts]

    @property
    def sha256(self) -> str:
        """The digest of all contents in order, including the answers in the data."""
        digest = hashlib.sha256()
        for source in self.each:
            digest.update(f"{source.label}\0{source.sha256}\0".encode())
            for prompt in source.prompts.prompts if source.prompts else ():
                digest.update(f"{prompt.text}\0{prompt.reference}\0".encode())
        return digest.hexdigest()

    @property
    def template_sha256(self) -> str:
        """The digest of its prompts' chat template; empty if all are plain text."""
        found = sorted({one.applied.sha256 for one in self.sets if one.applied})
        return found[0] if len(found) == 1 else hashlib.sha256("".join(found).encode()).hexdigest() if found else ""

    @property
    def longest(self) -> int:
        """The maximum number of tokens of a prompt, later turns included."""
        return max((one.longest for one in self.sets), default=0)

    def rows(self, names: Collection[str]) -> dict[str, list[dict[str, Any]]]:
        """The prompts of some names, as rows that can be read again: chat prompts as turns, the
        others as plain prompts, in two files."""
        found: dict[str, list[dict[str, Any]]] = {}
        for source, prompts, prompt in self.questions:
            if source.known_as(prompt) in names:
                plain = not prompts.applied and not prompt.later
                column, said = ("prompt", prompt.text) if plain else ("turns", [prompt.text, *prompt.later])
                about = {"id": source.known_as(prompt), "category": source.category(prompt)}
                found.setdefault(column, []).append({**about, column: said})
        return found

    @property
    def questions(self) -> Iterator[tuple[Source, PromptSet, Prompt]]:
        sets = ((source, source.prompts) for source in self.each if source.prompts)
        return ((source, prompts, prompt) for source, prompts in sets for prompt in prompts.prompts)

    @property
    def left_out(self) -> Counter[str]:
        """The unused rows, by reason."""
        found = Counter[str]()
        for source in self.each:
            found.update(source.prompts.rejected if source.prompts else source.files.left_out if source.files else {})
        return found


def sources(names: Sequence[str], load: Load, encode: Encode, *, answered: bool) -> Sources:
    """The sources of some names; answered: the target will answer them, so all of them must have prompts.

    UsageError, in one line, for an unknown name, a missing file, and data without text.
    """
    if not names:
        raise UsageError(f"there is nothing to learn from: name some data with --data ({HELP})")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise UsageError(f"--data {clean(twice[0], 300)} is named twice: name it once")
    return Sources(tuple(source(name, load, encode, answered) for name in names))


def source(name: str, load: Load, encode: Encode, answered: bool) -> Source:
    if name.startswith(TEXT) and not answered:
        return Source(name, label_of(name), files=text_files(name.removeprefix(TEXT)))
    if name.startswith(TEXT) and os.path.isdir(os.path.expanduser(name.removeprefix(TEXT))):
        raise UsageError(f"--data {clean(name, 300)} is a folder of text, which has no prompts: add --as-it-is")
    # a text's tokens are made when it is written, and never all in memory
    made = encode if answered or is_long(name) else (lambda text: [0])
    return Source(name, label_of(name), prompts=load(name, made))


def label_of(name: str) -> str:
    """The name of a source without a file's folders."""
    kind, colon, path = name.partition(":")
    return clean(f"{kind}{colon}{Path(path).name or path}")
