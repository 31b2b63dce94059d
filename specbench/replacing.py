"""Files that are written whole or not at all, and what is said where they cannot be.

Pure; must not know what a file holds.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specbench.errors import UsageError
from specbench.files import check_regular
from specbench.wording import first_line


def replace_text(path: Path, text: str) -> None:
    """Replace `path` by a text."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to be written, which replaces `path` at once when it is whole and on disk, or never.

    OSError for a path that is a folder, a pipe or a device: it would be replaced, too.
    """
    if path.exists():
        check_regular(path)
    temporary = path.with_suffix(path.suffix + ".tmp")  # left over by a kill, it is overwritten the next time
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)  # on a full disk it takes the space that would let others go on
        raise


@contextmanager
def writing(what: str, advice: str) -> Iterator[None]:
    """Turns a full disk or a place that cannot be written into a UsageError of one line."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot write {what}: {error.strerror or first_line(error)}; {advice}") from error
