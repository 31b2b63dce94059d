"""Options that go to an engine as they are: ENGINE.NAME=VALUE as text, and back.

Knows the notation; must not know any engine or what its options mean.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

OPTION = re.compile(r"(?P<name>[a-z][\w.]*\.[A-Za-z][\w-]*)=(?P<value>[^,]+)", re.ASCII)
Options = tuple[tuple[str, str], ...]


def engine_options(given: Any) -> Options:
    """Options as they are written, in the order of their names: ENGINE.NAME=VALUE, some of these, or a mapping.

    One text may hold several, joined by commas, as results.csv has them. ValueError, in one line, for anything else.
    """
    if isinstance(given, Mapping):
        given = [f"{name}={value}" for name, value in given.items()]
    items = given.split(",") if isinstance(given, str) else given
    if not isinstance(items, Iterable | None):
        raise ValueError("write ENGINE.NAME=VALUE, such as vllm.tensor_parallel_size=2")
    found = sorted(_option(item) for item in items or ())
    names = [name for name, _ in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"the engine option {twice[0]} has two values: give it one")
    return tuple(found)


def _option(item: Any) -> tuple[str, str]:
    text = item if isinstance(item, str) else "=".join(map(str, item)) if isinstance(item, tuple | list) else ""
    if (found := OPTION.fullmatch(text)) is None:
        raise ValueError(f"{str(item)[:60]!r} is no ENGINE.NAME=VALUE, such as vllm.tensor_parallel_size=2")
    return found["name"], found["value"]


def written(options: Options) -> str:
    """Options as one text."""
    return ",".join(f"{name}={value}" for name, value in options)


def engines(options: Options) -> list[str]:
    """The engines that some options are for."""
    return list(dict.fromkeys(name.rpartition(".")[0] for name, _ in options))


def of_engine(options: Options, engine: str) -> dict[str, Any]:
    """The options of an engine by their names there, numbers and true and false as such."""
    mine = [(name.rpartition("."), value) for name, value in options]
    return {name: read(value) for (whose, _, name), value in mine if whose == engine}


def read(value: str) -> Any:
    """A value: what it is as JSON, else the text."""
    try:
        return json.loads(value)
    except ValueError:
        return value
