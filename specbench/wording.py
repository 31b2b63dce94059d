"""Values as words, and columns of a table as values, whether they come from Python or from a CSV file.

Pure; must not know what a column means.
"""

import html
import math
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar

from specbench.redact import redact

T = TypeVar("T")
Row = Mapping[str, Any]  # of a table of results: its columns by name, numbers or the text of a CSV file


def near(name: str, known: Iterable[str]) -> str:
    """What a mistyped name may have been meant as, in brackets after a blank; empty where nothing is near."""
    found = get_close_matches(name.lower(), list(known), n=2)
    return f" (did you mean {' or '.join(found)}?)" if found else ""


def ranges(numbers: Sequence[int]) -> str:
    """Ascending whole numbers as in `2-4,7`, the notation of `--k`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)


def counted(number: int, thing: str) -> str:
    """A number of things; one thing has no s."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def some(names: Collection[str]) -> str:
    """The first of some names, in the order of the alphabet, and how many there are besides."""
    first = ", ".join(sorted(names)[:3])
    return first if len(names) <= 3 else f"{first} and {len(names) - 3} more"


def rows_said(batch: int, arrivals: float | None) -> str:
    """How many sequences are decoded at once: as many as there are rows, or as come at times of their own."""
    return f"batch {batch}" if arrivals is None else f"{arrivals:g} requests a second, at most {batch} under way"


def formatted(value: float | None, form: str = ".3f") -> str:
    """A number in a sentence; a dash for None."""
    return "–" if value is None else format(value, form)


def gigabytes(size: int) -> str:
    """Bytes for readers, in the decimal units of the hub."""
    if size < 1e9:
        return f"{size / 1e6:.0f} MB"
    return f"{size / 1e9:.2f} GB" if size < 1e10 else f"{size / 1e9:.1f} GB"


def interval_text(low: float | None, high: float | None) -> str:
    """The bounds of an interval."""
    return "[no interval]" if low is None or high is None else f"[{low:.3f}, {high:.3f}]"


def finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def number_in(row: Row, name: str) -> float | None:
    """A column as a finite number; None where it is absent, blank or not a number."""
    try:
        return finite_or_none(float(row[name]))
    except (KeyError, TypeError, ValueError):
        return None


def text_in(row: Row, name: str) -> str:
    """A column as text; empty where it is absent or NaN."""
    value = row.get(name)
    return "" if value is None or value != value else str(value)


def verbatim(text: str) -> str:
    """Text as a code span of Markdown, to be copied: between more backticks than it has in a row."""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if "`" in (text[:1], text[-1:]) else ""
    return f"{fence}{space}{text}{space}{fence}"


def literal(text: str) -> str:
    """Text that Markdown shows as it is: without markup, HTML, images, links or borders of table cells."""
    return re.sub(r"^[-+]|[\\`*_\[\]|~$!#]|(?<=:)/(?=/)|(?<=www)\.", r"\\\g<0>", html.escape(text, quote=False))


RUNNER = re.compile(r"(?<!\S)::(?=[a-z])|##\[", re.IGNORECASE)  # `::error::` opens a line, `##[error]` may stand in one


READ = 1 << 16  # characters of a text in which credentials are looked for, which takes the square of their number


def clean(value: object, most: int = 80) -> str:
    """Fit for a terminal, a CSV cell and an id: one line of printable characters, no escapes, no credentials.

    What GitHub's runner would read as a command in the log of a job is broken, too.
    """
    line = "".join(c if c.isprintable() else "\ufffd" for c in redact(str(value)[:READ])[:most])
    return RUNNER.sub(lambda found: found[0][:-1] + "\ufffd", line)


def clean_path(path: Path) -> str:
    return clean(path, 300)


def resume_command(run: Path) -> str:
    """What goes on with a run, in a sentence; the shell reads the name of its folder as one word."""
    return f"`specbench run --resume {quote(clean_path(run))}`"


def first_line(error: BaseException) -> str:
    """What an error says, in one line: the first of its own, with the next where that only announces it."""
    if isinstance(error, KeyError):
        return clean(f"no {error}", 200)  # it says the key alone
    first, *others = str(error).strip().splitlines() or [type(error).__name__]
    return clean(f"{first} {others[0].strip()}" if others and first.endswith(":") else first, 200)


def grouped(items: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    """Items of one key together, in the order of their first ones."""
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())
