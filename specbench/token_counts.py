"""Numbers of tokens as people write them: 4k is 4096. Pure; every layer may read it."""

import re
from typing import Any

_IN_THOUSANDS = re.compile(r"(\d{1,6})k", re.ASCII | re.IGNORECASE)


def in_thousands(given: Any) -> Any:
    """The number that a text such as 4k or 16K stands for; anything else as it is."""
    found = _IN_THOUSANDS.fullmatch(given.strip()) if isinstance(given, str) else None
    return int(found[1]) * 1024 if found else given


def said(tokens: int) -> str:
    """A number of tokens in few characters: 4096 is 4k, 1000 stays."""
    return f"{tokens // 1024}k" if tokens % 1024 == 0 else str(tokens)
