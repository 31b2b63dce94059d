"""Settings as users write them, as values: texts and lists of K, of batches and contexts. Loads nothing heavy."""

from collections.abc import Mapping
from typing import Any

from specbench.errors import UsageError
from specbench.jobs.parsing import parse_counts, parse_k_list

# Of runs whose numbers are to be the machine's: Python is no part of them where it need not be.
USUAL = {"tier": "auto"}


def with_lists(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with what may be a list as values, or as lists of them."""
    return with_words(with_batches(with_ks(settings)))


def with_ks(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with K as numbers or the word auto, one or a list of them."""
    found = dict(settings)
    if "k" in found:
        parts = items(found["k"])
        numbers = [k for part in parts if part != "auto" for k in ks_of(part)]
        ks: list[Any] = sorted(set(numbers)) + ["auto"] * ("auto" in parts)
        found["k"] = ks[0] if len(ks) == 1 else ks
    return found


def with_batches(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with the batch as a number, or as a list of them."""
    found = dict(settings)
    if "batch" in found:
        sizes = sorted({n for part in items(found["batch"]) for n in parse_counts(part, "--batch", "1,4,16")})
        found["batch"] = sizes[0] if len(sizes) == 1 else sizes
    return found


def with_words(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with context, backend and arrivals as they are written, or as lists of such texts; engine options as
    one."""
    found = dict(settings)
    if isinstance(found.get("engine_option"), list):
        found["engine_option"] = ",".join(map(str, found["engine_option"]))  # all of them are one value
    for name in ("context", "backend", "arrivals"):
        if found.get(name) is not None:
            parts = items(found[name])
            found[name] = parts[0] if len(parts) == 1 else parts
    return found


def items(value: Any) -> list[str]:
    """What a list, or a text with commas, consists of."""
    return [part.strip() for item in (value if isinstance(value, list) else [value]) for part in str(item).split(",")]


def ks_of(text: str) -> list[int]:
    """The numbers of one item; an error says which option it was."""
    try:
        return parse_k_list(text)
    except UsageError as error:
        raise UsageError(f"--k: {error}, or auto") from None
