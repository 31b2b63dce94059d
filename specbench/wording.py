"""Values as words, columns of a table as values, and text without credentials. Pure: every layer may read it.

A credential is recognised in URLs, as a parameter or an option, by its form, or as a
key of this process. Where it is not clear how far a password reaches, more is removed.
"""

import html
import math
import os
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar

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


def pair_said(target: str, draft: str | None) -> str:
    """A target and its draft, as `demo ← demo-draft`."""
    return f"{clean(target)} ← {clean(draft or 'no draft')}"


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


_IN_THOUSANDS = re.compile(r"(\d{1,6})k", re.ASCII | re.IGNORECASE)


def in_thousands(given: Any) -> Any:
    """The number that a text such as 4k or 16K stands for; anything else as it is."""
    found = _IN_THOUSANDS.fullmatch(given.strip()) if isinstance(given, str) else None
    return int(found[1]) * 1024 if found else given


def tokens_said(tokens: int) -> str:
    """A number of tokens in few characters: 4096 is 4k, 1000 stays."""
    return f"{tokens // 1024}k" if tokens % 1024 == 0 else str(tokens)


# --- credentials ------------------------------------------------------------------------------------------------------

HIDDEN = "***"
OWN_KEYS = ("OPENAI_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")  # variables that hold a key
SHORTEST = 8  # letters of a key; a shorter one could be any word of a text

_WORD = re.compile(r"\S+")
# What may stand before the password, or before the host: quotes, commas and brackets would be another value's.
_USER = re.compile(r"""://([^\s/?#:@"'`<>,()\[\]{}]*)([:@])""")
# A name and a colon, and what follows is no port: it is a user with a password, or the end of a user's e-mail address.
_PASSWORD = re.compile(r"""[^\s/?#:@"'`<>,()\[\]{}]*:(?!\d+[/?#"'`]|\d*[)\]}>.,:;]*$)""")
_AUTHORITY = re.compile(r"[^/?#]*")
_SECRET = (
    r"token|secret|passw(?:or)?d|pwd|sig|signature|credentials?|auth|authorization|api[-_]?key|access[-_]?key(?:id)?"
)
_PARAMETER = re.compile(
    rf"""(?<=[?&;#])((?:[\w.-]{{0,40}}(?:{_SECRET}|key[-_]pair[-_]id|policy)|(?:[\w.-]{{0,40}}[-_.])?key)=)"""
    r"""([^\s&"'`<>]+)""",
    re.IGNORECASE,
)
_OPTION = re.compile(  # ENGINE.NAME=VALUE, as engines get theirs
    rf"""((?:(?<=\.)(?:[\w-]{{0,40}}[-_])?(?:{_SECRET}|key)|(?<![A-Za-z0-9])(?:api[-_]?key|passw(?:or)?d))=)"""
    r"""([^\s,&"'`<>]+)""",
    re.IGNORECASE,
)
_HEADER = re.compile(r"""(authorization["']?\s*[:=]\s*["']?(?:bearer|basic|token)\s+)[^\s"']+""", re.IGNORECASE)
_TOKEN = re.compile(r"(?<![A-Za-z0-9_])(hf_(?:[a-z]{1,12}_)?|api_org_)[A-Za-z0-9]{16,}")  # those of the hub
_KEY = re.compile(r"(?<![A-Za-z0-9_-])sk-([A-Za-z0-9_*-]+)")  # those of servers, or what a server shows of one
_RANDOM = re.compile(r"[A-Za-z0-9]{16}|\w\*{3}|\*{3}\w")


def redact(text: str) -> str:
    """The text with every credential as `***`; other text is returned unchanged. Idempotent."""
    text = without_own(text)
    if "://" in text:
        text = _WORD.sub(lambda word: _without_user(word[0]), text)
    if "=" in text:
        text = _OPTION.sub(_without_value, _PARAMETER.sub(_without_value, text))
    if "sk-" in text:
        text = _KEY.sub(lambda key: f"sk-{HIDDEN}" if _RANDOM.search(key[1]) else key[0], text)
    return _TOKEN.sub(rf"\1{HIDDEN}", _HEADER.sub(rf"\1{HIDDEN}", text))


def without_own(text: str) -> str:
    """The text without the values of the variables `OWN_KEYS`, which a server may repeat, word by word."""
    if len(text) < SHORTEST:
        return text
    parts = {part for name in OWN_KEYS for part in os.environ.get(name, "").split() if len(part) >= SHORTEST}
    for part in sorted(parts, key=len, reverse=True):
        text = text.replace(part, HIDDEN)
    return text


def _without_value(found: re.Match[str]) -> str:
    """A parameter or an option without its value; a bracket or a full stop after it belongs to the sentence."""
    return found[1] + HIDDEN + found[2][len(found[2].rstrip(")]}.,:;")) :]


def _without_user(word: str) -> str:
    """A text without spaces, without what stands between :// and the @ before a host."""
    parts, done = [], 0
    for found in _USER.finditer(word):
        ends = _ends(word, found)
        if found.start() >= done and ends > 0:
            parts += [word[done : found.start(1)], HIDDEN]  # what is left begins with the @
            done = ends
    return "".join([*parts, word[done:]])


def _ends(word: str, found: re.Match[str]) -> int:
    """Where the user and the password of a URL end; 0 or less where it has none.

    A password may hold an @ or a / that should have been escaped: with one, the last @ ends it.
    """
    if found[2] == "@" and word.endswith("ssh", 0, found.start()):  # ssh://git@host names a user and no secret
        return 0
    if _PASSWORD.match(word, found.start(1) if found[2] == ":" else found.end()):
        last = word.rfind("@", found.end())
        return last if last >= 0 else len(word)  # without an @ the text was cut off within the password
    authority = _AUTHORITY.match(word, found.end(1))
    return word.rfind("@", found.end(1), authority.end()) if authority and found[2] == "@" else 0
