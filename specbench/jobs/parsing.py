"""What a user hands over as text, read into Python values: lists of K and of sizes, models."""

import re
from collections.abc import Mapping
from typing import Any

from specbench.errors import UsageError
from specbench.theory.formulas import K_MAX

# llama-bench's notation for ranges, which users of this field know.
_ITEM = re.compile(r"(?P<first>\d+)(?:-(?P<last>\d+)(?:\+(?P<step>\d+))?)?", re.ASCII)
_FORMS = "write 4, or 1,2,4, or 1-12, or 1-16+3 (from 1 to 16 in steps of 3)"


def parse_k_list(text: str) -> list[int]:
    """The lookaheads K named by `4`, `1,2,4`, `1-12`, `1-16+3`, or such items joined by commas; ascending, each once.

    UsageError if the text cannot be read, a range is empty, or a K is above 1000.
    """
    return sorted({k for item in text.split(",") for k in _parse_item(item.strip(), text)})


def _parse_item(item: str, text: str) -> range:
    match = _ITEM.fullmatch(item)
    if match is None:
        raise UsageError(f"cannot read {text!r} as a list of K, whole numbers of 0 or more: {_FORMS}")
    # The length is looked at first: int() itself refuses thousands of digits, with a traceback.
    if any(len(digits) > 9 or int(digits) > K_MAX for digits in match.groups(default="1")):
        raise UsageError(f"{item[:40]!r} in the list of K is too large: K is at most {K_MAX}")
    first, last, step = int(match["first"]), int(match["last"] or match["first"]), int(match["step"] or 1)
    if last < first or step < 1:
        raise UsageError(
            f"the range {item!r} in the list of K is empty: put the smaller K first, with a step of 1 or more"
        )
    return range(first, last + 1, step)


def parse_counts(text: str, option: str, example: str) -> list[int]:
    """Whole numbers from 1 to a million, joined by commas; ascending, each once. UsageError, naming the option."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 8 and 0 < int(part) <= 10**6 for part in parts):
        raise UsageError(f"cannot read {option} {text[:60]!r}: write whole numbers from 1 on, such as {example}")
    return sorted({int(part) for part in parts})


UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9}
_SIZE = re.compile(r"(?P<number>\d{1,12}(?:\.\d{1,6})?)(?P<unit>[KMBG]?)", re.ASCII)


def parse_size(text: str, option: str) -> int:
    """A number of parameters as `1500000`, `1.5M`, `7B`. UsageError, naming the option, for anything else."""
    match = _SIZE.fullmatch(text.strip().upper())
    size = round(float(match["number"]) * UNITS[match["unit"]]) if match else 0
    if not 0 < size <= 10**13:
        raise UsageError(f"cannot read {option} {text[:60]!r}: write a number of parameters, such as 15M or 1.1B")
    return size


def with_models(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with `model` as names and checkpoints: one value, though --model is repeatable.

    In a file it may also be a mapping of names to checkpoints, or a list of these, which is an axis of a grid.
    UsageError if it cannot be read.
    """
    from specbench.named_models import named_models

    found = dict(settings)
    if "model" not in found:
        return found
    given = found["model"]
    axis = isinstance(given, list) and given != [] and all(isinstance(one, Mapping) for one in given)
    try:
        found["model"] = [named_models(one) for one in given] if axis else named_models(given)
    except ValueError as error:
        raise UsageError(f"--model: {error}") from None
    return found
