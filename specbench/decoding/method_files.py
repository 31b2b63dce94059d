"""Method files: where they are, what they say, and the words in them. Must not know torch: a list of them is quick."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from specbench.errors import UsageError
from specbench.shipped import CONFIGS

HEADER = {"summary", "paper", "lossless", "method"}
OPTIONS = ("k", "schedule")  # words that stand for --k and --schedule


def methods() -> dict[str, Path]:
    """The method files that ship with specbench, by name."""
    return {path.stem: path for path in sorted((CONFIGS / "methods").glob("*.yaml"))}


def read_method(name: str) -> dict[str, Any]:
    """The content of a method file: one that ships, by name, or any other, by its path."""
    path = methods().get(name, Path(name))
    if not path.is_file():
        raise UsageError(
            f"unknown method {name!r}: choose one of {', '.join(methods())}, or give the path of a YAML file"
        )
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not readable as YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict) or set(content) != HEADER:
        raise UsageError(f"{path}: a method file has exactly the keys {', '.join(sorted(HEADER))}")
    return content


def needs(name: str) -> set[str]:
    """The names of the models that a method file mentions."""
    return words(name, "model")


def words(name: str, field: str) -> set[str]:
    """What stands in the fields of one name anywhere in a method file, as words."""
    return {str(value) for key, value in leaves(read_method(name)["method"]) if key == field}


def leaves(value: Any, field: str = "") -> Iterator[tuple[str, Any]]:
    """Every word, number and list of numbers of a composition with the field it stands in."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, str(key))
    elif isinstance(value, list) and not all(isinstance(inner, int) for inner in value):
        for inner in value:
            yield from leaves(inner, field)
    else:
        yield field, value


def parameters(name: str) -> list[str]:
    """What a method depends on besides its models: options that it takes, and numbers that stand in its file."""
    found = list(leaves(read_method(name)["method"]))
    options = [str(value) for _, value in found if value in OPTIONS]
    numbers = [f"{field} {value}" for field, value in found if isinstance(value, int | float | list)]
    return list(dict.fromkeys([*options, *numbers]))
