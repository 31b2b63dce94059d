"""The journal of a run: JSON lines with a checksum, written to disk first; the source of truth of a folder.

A line is `{"crc32":"<8 hex digits>","body":{…}}`, with the checksum over the body's text as in the file.
Texts are escaped to ASCII, so that any prompt (lone surrogates, NUL, line ends) is restored exactly.
"""

import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from specbench.errors import UsageError
from specbench.files import open_own, read_whole
from specbench.wording import clean_path

FILE = "journal.jsonl"
LARGEST = 8 << 30  # bytes; it is read into memory
HEAD = b'{"crc32":"'  # of every line
_LINE = re.compile(rb'\{"crc32":"([0-9a-f]{8})","body":(\{.*\})\}', re.DOTALL)


class Journal:
    """Appends to a journal; opening it drops an incomplete last line of a killed process.

    UsageError for anything else, such as a link or other content, which would be lost.
    """

    def __init__(self, path: Path) -> None:
        self._file = open_own(path, os.O_APPEND)
        self._end = sum(len(line) for line, _ in _sound(path))
        # a torn first line may be shorter, or empty
        if not self._end and not HEAD.startswith(os.pread(self._file, len(HEAD), 0)):
            self.close()
            raise UsageError(
                f"{clean_path(path)} is not the journal of a run, and continuing would empty it: start a new run"
            )
        os.ftruncate(self._file, self._end)
        # without this a new file is not safely on disk
        if os.name == "posix":
            handle = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def append(self, body: Mapping[str, Any]) -> None:
        """Write one line and wait until it is on disk; after an OSError the journal is unchanged."""
        line = encode(body)
        try:
            left = memoryview(line)
            while left:  # if only a part fits, the next write raises the reason
                left = left[os.write(self._file, left) :]
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, self._end)
            raise
        self._end += len(line)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


def encode(body: Mapping[str, Any]) -> bytes:
    """One line of the journal, including its line end."""
    text = json.dumps(body, separators=(",", ":")).encode("ascii")
    return b'{"crc32":"%08x","body":%s}\n' % (zlib.crc32(text), text)


def read_bodies(path: Path) -> list[dict[str, Any]]:
    """The bodies of all complete lines. UsageError if a line before the last is damaged: then none can be trusted."""
    try:
        return [body for _, body in _sound(path)]
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; give the folder of a specbench run") from error


def _sound(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """The complete lines of a journal with their bodies; a damaged last line is dropped as an interrupted write."""
    lines = read_whole(path, LARGEST).splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        body = _body(line)
        if body is not None:
            yield line, body
        elif number < len(lines):
            raise UsageError(
                f"{path}:{number}: a damaged line (its checksum does not fit): the journal was edited or the disk "
                "failed; start a new run"
            )


def _body(line: bytes) -> dict[str, Any] | None:
    found = _LINE.fullmatch(line[:-1]) if line.endswith(b"\n") else None
    if found is None or int(found[1], 16) != zlib.crc32(found[2]):
        return None
    try:
        body: dict[str, Any] = json.loads(found[2])
    except (ValueError, RecursionError):  # invalid content with a valid checksum was forged
        return None
    return body
