"""Method files → objects: one short recursion over nested YAML. Knows the classes of the algebra and their fields."""

from collections.abc import Mapping
from copy import copy
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import yaml

from specbench.decoding.draft import ModelDrafter, NoDraft
from specbench.decoding.loop import Speculate
from specbench.decoding.schedule import Constant, Schedule
from specbench.decoding.types import Model
from specbench.decoding.verify import Rejection, TokenMatch
from specbench.errors import UsageError
from specbench.shipped import CONFIGS
from specbench.timing import Laps

PARTS: dict[str, type] = {c.__name__: c for c in (NoDraft, ModelDrafter, Speculate, Rejection, TokenMatch)}
HEADER = {"summary", "paper", "lossless", "method"}
# what a part in a field of this name can do
KINDS = {"drafter": "propose", "model": "probs", "verifier": "judge", "schedule": "lookahead"}


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


def build(
    name: str, models: Mapping[str, Model], k: int, clock: Laps | None = None, schedule: Schedule | None = None
) -> Speculate:
    """The method `name` as an object over the given models.

    `k` and `schedule` (constant unless given) stand for these words in the file; every place has a schedule of its own.
    UsageError for a wrong file, and for a schedule that is not constant where the file has no place for it.
    """
    schedule = schedule or Constant()
    values: dict[str, Any] = {**models, "k": k, "schedule": schedule}
    method = _part(read_method(name)["method"], f"{name}: method", values, clock)
    if not isinstance(schedule, Constant) and "schedule" not in words(name, "schedule"):
        raise UsageError(
            f"{name}: the method has no place for a schedule (the word `schedule` in its file): "
            "choose --schedule constant, or a method whose drafts are a chain from a model"
        )
    if not isinstance(method, Speculate):
        raise UsageError(f"{name}: method: the outermost part must be Speculate, not {type(method).__name__}")
    return method


def needs(name: str) -> set[str]:
    """The names of the models that a method file mentions."""
    return words(name, "model")


def words(name: str, field: str) -> set[str]:
    """What stands in the fields of one name anywhere in a method file, as words."""
    found: set[str] = set()

    def search(value: Any, key: str) -> None:
        if isinstance(value, dict):
            for inner_key, inner in value.items():
                search(inner, inner_key)
        elif isinstance(value, list):
            for inner in value:
                search(inner, key)
        elif key == field:
            found.add(str(value))

    search(read_method(name)["method"], "")
    return found


def _part(value: Any, where: str, values: Mapping[str, Any], clock: Laps | None) -> Any:
    """An object from `Name`, `{Name: {field: part}}`, a word of `values`, or a plain number or list."""
    if isinstance(value, dict):
        if len(value) != 1:
            raise UsageError(
                f"{where}: expected one part as {{Name: {{...}}}}, found the keys {', '.join(map(str, value))}"
            )
        (name, arguments), *_ = value.items()
        return _object(str(name), arguments or {}, f"{where}.{name}", values, clock)
    if isinstance(value, str):
        if value in values:
            # a schedule has a state: two drafters of one method must not share it
            return copy(values[value]) if value == "schedule" else values[value]
        return _object(value, {}, where, values, clock)
    if isinstance(value, list):
        return [_part(part, f"{where}[{i}]", values, clock) for i, part in enumerate(value)]
    return value


def _object(name: str, arguments: Any, where: str, values: Mapping[str, Any], clock: Laps | None) -> Any:
    if name not in PARTS:
        raise UsageError(f"{where}: unknown part {name!r}; known are {', '.join([*sorted(PARTS), *values])}")
    known = {f.name: f for f in fields(PARTS[name])}
    timed = known.pop("clock", None) is not None and clock is not None
    if not isinstance(arguments, dict) or set(arguments) - set(known):
        wrong = ", ".join(map(str, set(arguments) - set(known))) if isinstance(arguments, dict) else repr(arguments)
        raise UsageError(f"{where}: unknown field {wrong}; {name} takes {', '.join(known) or 'no fields'}")
    required = {n for n, f in known.items() if f.default is MISSING and f.default_factory is MISSING}
    if missing := required - set(arguments):
        raise UsageError(f"{where}: missing field {', '.join(sorted(missing))}")
    below = clock.under("draft") if clock is not None else None  # what drafts reports its phases as parts of the draft
    clocks = {key: below if key == "drafter" else clock for key in arguments}
    built = {key: _part(part, f"{where}.{key}", values, clocks[key]) for key, part in arguments.items()}
    for key, part in built.items():
        _check(key, part, f"{where}.{key}")
    return PARTS[name](**built, **({"clock": clock} if timed else {}))


def _check(field: str, part: Any, where: str) -> None:
    """Refuse a part of the wrong kind: fields are named for what they hold, and all others hold counts."""
    if field in KINDS:
        if not hasattr(part, KINDS[field]):
            raise UsageError(
                f"{where}: expected a {field}, found {part if isinstance(part, int) else type(part).__name__}"
            )
    elif isinstance(part, bool) or not isinstance(part, int) or part < 0:
        raise UsageError(f"{where}: expected a whole number from 0 on, or the word k, found {part!r}")
