"""Values as words, table columns as values, and text without credentials. Pure: every layer may import it.

A credential is recognised in URLs, as a parameter or an option, by its form, or as a key in this process's
environment. If the end of a password is unclear, more is removed.
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
Row = Mapping[str, Any]  # a row of a results table: columns by name, numbers or CSV text


def near(name: str, known: Iterable[str]) -> str:
    """A suggestion for a mistyped name, in brackets after a blank; empty without a close match."""
    found = get_close_matches(name.lower(), list(known), n=2)
    return f" (did you mean {' or '.join(found)}?)" if found else ""


def ranges(numbers: Sequence[int]) -> str:
    """Ascending integers in the notation of `--k`, such as `2-4,7`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)


def counted(number: int, thing: str) -> str:
    """A count with its noun; plural unless 1."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def some(names: Collection[str]) -> str:
    """The first names in alphabetical order, and the number of further ones."""
    first = ", ".join(sorted(names)[:3])
    return first if len(names) <= 3 else f"{first} and {len(names) - 3} more"


def rows_said(batch: int, arrivals: float | None) -> str:
    """The number of sequences decoded at once, or how requests arrive."""
    return f"batch {batch}" if arrivals is None else f"{arrivals:g} requests a second, at most {batch} under way"


def pair_said(target: str, draft: str | None) -> str:
    """A target and its draft, as `demo ← demo-draft`."""
    return f"{clean(target)} ← {clean(draft or 'no draft')}"


def formatted(value: float | None, form: str = ".3f") -> str:
    """A number in a sentence; a dash for None."""
    return "–" if value is None else format(value, form)


def gigabytes(size: int) -> str:
    """Bytes for readers, in the hub's decimal units."""
    if size < 1e9:
        return f"{size / 1e6:.0f} MB"
    return f"{size / 1e9:.2f} GB" if size < 1e10 else f"{size / 1e9:.1f} GB"


def interval_text(low: float | None, high: float | None) -> str:
    unknown = low is None or high is None or math.isnan(low + high)
    return "[no interval]" if unknown else f"[{low:.3f}, {high:.3f}]"


def finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def number_in(row: Row, name: str) -> float | None:
    """A column as a finite number; None if it is absent, blank or not a number."""
    try:
        return finite_or_none(float(row[name]))
    except (KeyError, TypeError, ValueError):
        return None


def text_in(row: Row, name: str) -> str:
    """A column as text; empty if it is absent or NaN."""
    value = row.get(name)
    return "" if value is None or value != value else str(value)


def verbatim(text: str) -> str:
    """Text as a Markdown code span to copy, between more backticks than it contains in a row."""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if "`" in (text[:1], text[-1:]) else ""
    return f"{fence}{space}{text}{space}{fence}"


def literal(text: str) -> str:
    """Text escaped for Markdown: no markup, HTML, images, links or table borders."""
    return re.sub(r"^[-+]|[\\`*_\[\]|~$!#]|(?<=:)/(?=/)|(?<=www)\.", r"\\\g<0>", html.escape(text, quote=False))


RUNNER = re.compile(r"(?<!\S)::(?=[a-z])|##\[", re.IGNORECASE)  # `::error::` starts a line; `##[error]` may be anywhere


READ = 1 << 16  # characters of text searched for credentials; the search is quadratic


def clean(value: object, most: int = 80) -> str:
    """Fit for a terminal, a CSV cell and an id: one line of printable characters, no escapes, no credentials.

    Text that GitHub's runner would read as a command in a job log is broken up, too.
    """
    line = "".join(c if c.isprintable() else "\ufffd" for c in redact(str(value)[:READ])[:most])
    return RUNNER.sub(lambda found: found[0][:-1] + "\ufffd", line)


def clean_path(path: Path) -> str:
    return clean(path, 300)


def resume_command(run: Path) -> str:
    """The resume command for use in a sentence, with the folder quoted for the shell."""
    return f"`specbench run --resume {quote(clean_path(run))}`"


def first_line(error: BaseException) -> str:
    """An error message in one line: its first line, plus the next if the first only introduces it."""
    if isinstance(error, KeyError):
        return clean(f"no {error}", 200)  # the message is the key alone
    first, *others = str(error).strip().splitlines() or [type(error).__name__]
    return clean(f"{first} {others[0].strip()}" if others and first.endswith(":") else first, 200)


def grouped(items: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    """Group items by key, in order of first appearance."""
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


_IN_THOUSANDS = re.compile(r"(\d{1,6})k", re.ASCII | re.IGNORECASE)


def in_thousands(given: Any) -> Any:
    """The number of a text such as 4k or 16K; other values unchanged."""
    found = _IN_THOUSANDS.fullmatch(given.strip()) if isinstance(given, str) else None
    return int(found[1]) * 1024 if found else given


def tokens_said(tokens: int) -> str:
    """A short form of a token count: 4096 is 4k, 1000 stays."""
    return f"{tokens // 1024}k" if tokens % 1024 == 0 else str(tokens)


# --- credentials ------------------------------------------------------------------------------------------------------

HIDDEN = "***"
OWN_KEYS = ("OPENAI_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")  # environment variables that hold a key
SHORTEST = 8  # characters of a key; a shorter one could be any word of a text

_WORD = re.compile(r"\S+")
# Possible text before the password or the host: quotes, commas and brackets would belong to another value.
_USER = re.compile(r"""://([^\s/?#:@"'`<>,()\[\]{}]*)([:@])""")
# A name and a colon not followed by a port: a user with a password, or the end of an e-mail address.
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
_OPTION = re.compile(  # ENGINE.NAME=VALUE, for engine options
    rf"""((?:(?<=\.)(?:[\w-]{{0,40}}[-_])?(?:{_SECRET}|key)|(?<![A-Za-z0-9])(?:api[-_]?key|passw(?:or)?d))=)"""
    r"""([^\s,&"'`<>]+)""",
    re.IGNORECASE,
)
_HEADER = re.compile(r"""(authorization["']?\s*[:=]\s*["']?(?:bearer|basic|token)\s+)[^\s"']+""", re.IGNORECASE)
_TOKEN = re.compile(r"(?<![A-Za-z0-9_])(hf_(?:[a-z]{1,12}_)?|api_org_)[A-Za-z0-9]{16,}")  # hub tokens
_KEY = re.compile(r"(?<![A-Za-z0-9_-])sk-([A-Za-z0-9_*-]+)")  # server keys, possibly masked
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
    """The text without the values of the variables `OWN_KEYS`, which a server may repeat verbatim."""
    if len(text) < SHORTEST:
        return text
    parts = {part for name in OWN_KEYS for part in os.environ.get(name, "").split() if len(part) >= SHORTEST}
    for part in sorted(parts, key=len, reverse=True):
        text = text.replace(part, HIDDEN)
    return text


def _without_value(found: re.Match[str]) -> str:
    """A parameter or an option without its value; a bracket or full stop after it stays."""
    return found[1] + HIDDEN + found[2][len(found[2].rstrip(")]}.,:;")) :]


def _without_user(word: str) -> str:
    """A word without what is between :// and the @ before a host."""
    parts, done = [], 0
    for found in _USER.finditer(word):
        if found[2] == "@" and word.endswith("ssh", 0, found.start()):
            ends = 0
        elif _PASSWORD.match(word, found.start(1) if found[2] == ":" else found.end()):
            last = word.rfind("@", found.end())
            ends = last if last >= 0 else len(word)
        else:
            authority = _AUTHORITY.match(word, found.end(1))
            ends = word.rfind("@", found.end(1), authority.end()) if authority and found[2] == "@" else 0
        if found.start() >= done and ends > 0:
            parts += [word[done : found.start(1)], HIDDEN]  # the rest starts with the @
            done = ends
    return "".join([*parts, word[done:]])
