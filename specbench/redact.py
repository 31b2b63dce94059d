"""Passwords and tokens taken out of text, before it is shown or kept: in URLs, as parameters and options, by their
form, and the very keys of this process.

Imports nothing of specbench: whatever shows or keeps a text can call it. Where it is not clear how far a password
reaches, more is removed. Any other password outside of a URL cannot be recognised.
"""

import os
import re

HIDDEN = "***"
OWN = ("OPENAI_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")  # variables that hold a key
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
    """The text without the values of the variables `OWN`, which a server may repeat; words of a value by themselves."""
    if len(text) < SHORTEST:
        return text
    parts = {part for name in OWN for part in os.environ.get(name, "").split() if len(part) >= SHORTEST}
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
