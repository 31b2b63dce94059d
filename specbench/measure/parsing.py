"""Parse user text into Python values: lists of K and of sizes, models."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specbench.errors import UsageError
from specbench.files import replace_text
from specbench.theory.formulas import K_MAX

# --- settings -------------------------------------------------------------------------------------------------------
# Settings as users write them, parsed into values: texts and lists of K, batches and contexts. Loads nothing heavy.

# For measurements that should reflect the hardware, with as little Python overhead as possible.
USUAL = {"tier": "auto"}


def with_lists(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with list-valued options parsed into values or lists."""
    found = dict(with_batches(with_ks(settings)))
    if found.get("temperature") is not None:
        parts = items(found["temperature"])
        try:
            numbers = sorted(set(map(float, parts)))
        except ValueError:
            text = ",".join(parts)[:60]
            raise UsageError(f"cannot read --temperature {text!r}: write numbers, such as 0 or 0,0.7,1") from None
        found["temperature"] = numbers[0] if len(numbers) == 1 else numbers
    return with_words(found)


def with_ks(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with K as numbers or the word auto, one or a list."""
    found = dict(settings)
    if "k" in found:
        parts = items(found["k"])
        numbers = [k for part in parts if part != "auto" for k in ks_of(part)]
        ks: list[Any] = sorted(set(numbers)) + ["auto"] * ("auto" in parts)
        found["k"] = ks[0] if len(ks) == 1 else ks
    return found


def with_batches(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with the batch as a number or a list."""
    found = dict(settings)
    if "batch" in found:
        sizes = sorted({n for part in items(found["batch"]) for n in parse_counts(part, "--batch", "1,4,16")})
        found["batch"] = sizes[0] if len(sizes) == 1 else sizes
    return found


def with_words(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with method, context, backend and arrivals as texts or lists; engine options as one text."""
    found = dict(settings)
    if isinstance(found.get("engine_option"), list):
        found["engine_option"] = ",".join(map(str, found["engine_option"]))  # together they are one value
    for name in ("chat_template_kwargs", "request_field"):  # likewise
        if isinstance(found.get(name), list | dict):
            found[name] = json.dumps(found[name])
    if (config := found.get("spec_config")) is not None:  # each is an arm
        arms = [json.dumps(one) if isinstance(one, dict) else one for one in listed(config)]
        found["spec_config"] = arms[0] if len(arms) == 1 else arms
    for name in ("method", "context", "backend", "arrivals"):
        if found.get(name) is not None:
            parts = items(found[name])
            found[name] = parts[0] if len(parts) == 1 else parts
    if isinstance(sets := found.get("dataset"), list):
        found["dataset"] = [name for one in sets for name in datasets_in(one)]
    return found


def datasets_in(text: Any) -> list[Any]:
    """The data sets of a list; file names may contain commas."""
    return [text] if not isinstance(text, str) or Path(text.partition(":")[2] or text).exists() else items(text)


def items(value: Any) -> list[str]:
    """The items of a list or of a comma-separated text."""
    return [part.strip() for item in listed(value) for part in str(item).split(",")]


def listed(value: Any) -> list[Any]:
    """A list; of a single value if it is none."""
    return value if isinstance(value, list) else [value]


def ks_of(text: str) -> list[int]:
    """The numbers of one item; errors name the option."""
    try:
        return parse_k_list(text)
    except UsageError as error:
        raise UsageError(f"--k: {error}, or auto") from None


# --- parsing ----------------------------------------------------------------------------------------------------------

# Range notation of llama-bench.
_ITEM = re.compile(r"(?P<first>\d+)(?:-(?P<last>\d+)(?:\+(?P<step>\d+))?)?", re.ASCII)
_FORMS = "write 4, or 1,2,4, or 1-12, or 1-16+3 (from 1 to 16 in steps of 3)"


def parse_k_list(text: str) -> list[int]:
    """Parse lookaheads such as `4`, `1,2,4`, `1-12`, `1-16+3`, or these joined by commas; ascending, distinct.

    UsageError if the text cannot be read, a range is empty, or a K is above 1000.
    """
    return sorted({k for item in text.split(",") for k in _parse_item(item.strip(), text)})


def _parse_item(item: str, text: str) -> range:
    match = _ITEM.fullmatch(item)
    if match is None:
        raise UsageError(f"cannot read {text!r} as a list of K, whole numbers of 0 or more: {_FORMS}")
    # Check the length first: int() raises an unfriendly error for thousands of digits.
    if any(len(digits) > 9 or int(digits) > K_MAX for digits in match.groups(default="1")):
        raise UsageError(f"{item[:40]!r} in the list of K is too large: K is at most {K_MAX}")
    first, last, step = int(match["first"]), int(match["last"] or match["first"]), int(match["step"] or 1)
    if last < first or step < 1:
        raise UsageError(
            f"the range {item!r} in the list of K is empty: put the smaller K first, with a step of 1 or more"
        )
    return range(first, last + 1, step)


def parse_counts(text: str, option: str, example: str) -> list[int]:
    """Parse integers from 1 to a million, joined by commas; ascending, distinct. UsageError, naming the option."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 8 and 0 < int(part) <= 10**6 for part in parts):
        raise UsageError(f"cannot read {option} {text[:60]!r}: write whole numbers from 1 on, such as {example}")
    return sorted({int(part) for part in parts})


UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9}
_SIZE = re.compile(r"(?P<number>\d{1,12}(?:\.\d{1,6})?)(?P<unit>[KMBG]?)", re.ASCII)


def parse_size(text: str, option: str) -> int:
    """Parse a parameter count such as `1500000`, `1.5M`, `7B`; otherwise UsageError, naming the option."""
    match = _SIZE.fullmatch(text.strip().upper())
    size = round(float(match["number"]) * UNITS[match["unit"]]) if match else 0
    if not 0 < size <= 10**13:
        raise UsageError(f"cannot read {option} {text[:60]!r}: write a number of parameters, such as 15M or 1.1B")
    return size


def with_models(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with `model` as names and checkpoints: one value, though --model is repeatable.

    In a file it may also be a mapping of names to checkpoints, or a list of these, which is an axis of a
    grid. UsageError if it cannot be read.
    """
    from specbench.spec import named_models

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


# --- method file ------------------------------------------------------------------------------------------------------
# Method files written by commands: the check before writing, and their text. Loads no model.


def check_free(file: Path | None, overwrite: bool) -> None:
    """Raise UsageError if the file cannot or must not be written; called before anything is measured."""
    if file is None:
        return
    if file.is_dir():
        raise UsageError(f"cannot write {file}: it is a folder; name a file in it")
    if file.exists() and not overwrite:
        raise UsageError(f"{file} already exists: choose another --output, or add --overwrite")
    if not file.absolute().parent.is_dir():
        raise UsageError(f"cannot write {file}: there is no folder {file.parent}")


def write_method(file: Path, content: Mapping[str, Any]) -> str:
    """Write a method file for `--method`; returns a line describing it."""
    import yaml

    from specbench.results import folder  # needs numpy, which --help does not

    replaced = file.exists()
    with folder.writing_to(file.absolute().parent):
        replace_text(file, yaml.safe_dump(dict(content), sort_keys=False, default_flow_style=None, allow_unicode=True,
                                          width=120))  # fmt: skip
    return f"{'replaced' if replaced else 'wrote'} {file}: specbench run --method {file}"
