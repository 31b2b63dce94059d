"""What a process writes besides its data: warnings and logs of libraries, which quote URLs with the passwords in them.

Knows streams; must not know who writes to them.
"""

from typing import Any, TextIO

from specbench.redact import redact


class Discreet:
    """A text stream that lets no credential through; in everything else the stream behind it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Every text by itself: nobody writes a URL in parts."""
        return self._stream.write(redact(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
