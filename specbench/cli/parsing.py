"""Option values with a grammar of their own, read into Python values. Knows nothing of what they are for."""

import re

from specbench.errors import UsageError
from specbench.theory import K_MAX

# llama-bench's notation for ranges, which users of this field know.
_ITEM = re.compile(r"(?P<first>\d+)(?:-(?P<last>\d+)(?:\+(?P<step>\d+))?)?", re.ASCII)
_FORMS = "write 4, or 1,2,4, or 1-12, or 1-16+3 (from 1 to 16 in steps of 3)"


def parse_k_list(text: str) -> list[int]:
    """The lookahead values K named by `4`, `1,2,4`, `1-12` or `1-16+3` (or such items joined by commas), ascending, each once.

    UsageError if the text cannot be read, a range is empty, or a K is above 1000.
    """
    return sorted({k for item in text.split(",") for k in _parse_item(item.strip(), text)})


def _parse_item(item: str, text: str) -> range:
    match = _ITEM.fullmatch(item)
    if match is None:
        raise UsageError(f"cannot read {text!r} as a list of K, whole numbers of 0 or more: {_FORMS}")
    if max(len(digits) for digits in match.groups(default="")) > len(str(K_MAX)):
        raise UsageError(f"{item!r} in the list of K is too large: K is at most {K_MAX}")
    first, step = int(match["first"]), int(match["step"] or 1)
    last = int(match["last"] or first)
    if max(first, last) > K_MAX:
        raise UsageError(f"{item!r} in the list of K is too large: K is at most {K_MAX}")
    if last < first or step < 1:
        raise UsageError(f"the range {item!r} in the list of K is empty: put the smaller K first, with a step of 1 or more")
    return range(first, last + 1, step)
