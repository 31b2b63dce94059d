"""Cuts of a vocabulary as users write them, and the tokens that they keep: the most frequent ones of some text.

As in FR-Spec (Zhao et al. 2025, arXiv 2502.14856, §3): nothing is trained. Knows texts, counts and what splits text
into tokens; must not know networks, or which of them is cut.
"""

import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specbench.errors import UsageError
from specbench.files import read_whole
from specbench.models.checkpoints.frequent import most_frequent
from specbench.shipped import ASSETS
from specbench.wording import first_line

FORM = re.compile(r"(?P<size>\d+%?)(?::(?P<file>.+))?")
SHIPPED = "the texts that ship with specbench"
PIECE = 1 << 16  # characters that are split into tokens at once

Encode = Callable[[str], Sequence[int]]


@dataclass(frozen=True)
class Cut:
    """`8192` or `25%`: so many of the most frequent tokens of the texts that ship; `8192:FILE`: of a text, of the texts
    of a JSON Lines file, or of counts; `FILE`: all tokens that it has. Special tokens are always kept and count.

    A file that ends in .json has counts, {"id": count}, or ids, the most frequent first, as the lists of FR-Spec.
    """

    size: str
    file: Path | None

    @classmethod
    def read(cls, text: str) -> "Cut":
        """UsageError for what is none, and for a file that is not there."""
        found = FORM.fullmatch(text)
        named = text if found is None else found["file"]
        if named is not None and not Path(named).is_file():
            raise UsageError(
                f"--draft-vocabulary {text}: expected 8192, 25%, 8192:FILE or FILE; there is no file {named}"
            )
        return cls(found["size"] if found else "", None if named is None else Path(named))

    @property
    def source(self) -> str:
        """Where the counts come from."""
        return SHIPPED if self.file is None else self.file.name

    def kept(self, encode: Encode, width: int, always: Collection[int]) -> list[int]:
        """The ids that a vocabulary of `width` tokens keeps, in rising order; of equally frequent ones the lowest,
        which a byte-pair tokenizer made first. UsageError where they are too few."""
        counts, forced = self.counts(encode, width), {one for one in always if 0 <= one < width}
        if self.size.endswith("%"):
            size = max(math.ceil(int(self.size[:-1]) * width / 100), len(forced))
        else:
            size = int(self.size) if self.size else len(forced | set(counts.nonzero()[:, 0].tolist()))
        return most_frequent(counts, size, forced)

    def counts(self, encode: Encode, width: int) -> Tensor:
        """[width] how often every token occurs."""
        if self.file is not None and self.file.suffix == ".json":
            return stored(self.file, width)
        counts = torch.zeros(width, dtype=torch.long)
        for text in texts(self.file):
            ids = torch.tensor([*encode(text)], dtype=torch.long)
            counts += torch.bincount(ids[ids < width], minlength=width)
        return counts


def texts(file: Path | None) -> Iterator[str]:
    """The texts of a file, or of all that ship, in pieces."""
    for path in sorted((ASSETS / "prompts").glob("*.jsonl")) if file is None else [file]:
        whole = content(path)
        lines = whole.splitlines(keepends=True)
        if path.suffix == ".jsonl":
            lines = [text for line in lines if line.strip() for text in strings(parsed(path, line))]
        piece = ""
        for line in lines:
            piece += line
            if len(piece) >= PIECE:
                yield piece
                piece = ""
        yield piece


def content(path: Path) -> str:
    try:
        return read_whole(path).decode("utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is no text in UTF-8") from None


def parsed(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not readable as JSON: {first_line(error)}") from None


def strings(value: Any) -> Iterator[str]:
    """The texts of a row, names of columns and identifiers left out."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from () if name == "id" or name.endswith("_id") else strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)
    elif isinstance(value, str):
        yield value


def stored(path: Path, width: int) -> Tensor:
    """[width] the counts that a JSON file has; of a list of ids, counts that fall along it."""
    found = parsed(path, content(path))
    if isinstance(found, list):
        found = dict(zip(map(str, found), range(len(found), 0, -1), strict=True))
    counts = torch.zeros(width, dtype=torch.double)
    for name, count in found.items() if isinstance(found, dict) else [("", found)]:
        number = int(name) if str(name).isdecimal() else width
        if number >= width or not is_count(count):
            raise UsageError(
                f"{path}: expected a list of the ids 0 to {width - 1}, or counts of them as {{id: count}}, found "
                f"{str(name)[:40]!r}"
            )
        counts[number] = count
    return counts


def is_count(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
