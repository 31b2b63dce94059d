"""What a process writes to: streams that let no credential through and outlive their readers.

Knows streams and terminals; must not know who writes to them.
"""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any, TextIO

from specbench.redact import redact

WIDEST = 10_000  # columns; a terminal of 0 columns would show nothing at all


class Discreet:
    """A text stream that lets no credential through, such as those in URLs that warnings and logs of libraries quote.

    In everything else it is the stream that it wraps.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Every text by itself: nobody writes a URL in parts."""
        return self._stream.write(redact(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Lasting:
    """A text stream that takes more after its reader has gone: it drops what nobody can read, and is no error.

    `gone` are the errors by which that is known. In everything else it is the stream that it wraps.
    """

    def __init__(self, stream: TextIO, *gone: type[OSError]) -> None:
        self._stream, self._gone = stream, gone

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except self._gone:
            self._drop()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except self._gone:
            self._drop()

    def _drop(self) -> None:
        """Let the file of the stream lead nowhere: what stands in its buffer is written when the process ends."""
        with suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def streams() -> Iterator[None]:
    """Stdout and stderr as commands may use them.

    A reader of stdout that has seen enough (`| head`) is no error. Of an error on stderr nobody could be told.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that has no α, a file name that is no text
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        out: Any = Lasting(sys.stdout or nowhere, BrokenPipeError)
        err: Any = Discreet(Lasting(sys.stderr or nowhere, OSError))  # type: ignore[arg-type]
        with redirect_stdout(out), redirect_stderr(err):
            yield


def fit_columns() -> None:
    """Forget a width of the terminal that it cannot have."""
    given = os.environ.get("COLUMNS", "")
    if given.isdigit() and not 0 < int(given[:9]) <= WIDEST:
        del os.environ["COLUMNS"]
