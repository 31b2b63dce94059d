"""Compositions → objects: one short recursion over nested YAML. Knows the fields of parts, not what they do."""

from collections.abc import Callable, Collection, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from inspect import Parameter, signature
from typing import Any, get_type_hints

from specbench.decoding.drafters.schedule import Constant, Schedule
from specbench.decoding.loop import Speculate
from specbench.decoding.method_files import read_method, words
from specbench.decoding.parts import PARTS, added, check, check_honest, check_judged, part_named, shown
from specbench.decoding.protocols import Drafter, Model
from specbench.decoding.spans import EVERYWHERE, Spans
from specbench.decoding.timing import Laps
from specbench.errors import UsageError

Around = Mapping[str, Callable[[Drafter], Drafter]]


@dataclass(frozen=True)
class Place:
    """Where in a file a part stands. `path` is of the field that it stands in; a part with fields adds its name.

    around: what is put around a drafter by the name of its model. judge: the model, as the file names it, that judges
    what is drafted here.
    """

    path: str
    clock: Laps | None
    name: str = ""
    outermost: bool = False
    around: Around = field(default_factory=dict)
    judge: Any = None

    @property
    def where(self) -> str:
        return f"{self.path}.{self.name}" if self.name else self.path

    def field(self, key: str, fields: Collection[str]) -> "Place":
        """The place of what stands in one of the fields of this part. What drafts for a part that judges reports its
        phases as parts of the draft."""
        drafts = key == "drafter" and "verifier" in fields
        below = self.clock.under("draft") if self.clock is not None and drafts else self.clock
        return Place(f"{self.where}.{key}", below, around=self.around, judge=self.judge)


def build(
    name: str,
    models: Mapping[str, Model],
    k: int,
    clock: Laps | None = None,
    schedule: Schedule | None = None,
    around: Around | None = None,
    thinking: Spans = EVERYWHERE,
) -> Speculate:
    """The method `name` as an object over the given models.

    `k` and `schedule` (constant unless given) stand for these words in the file; every place has a schedule of its own.
    `around` is put around drafters that draw from models of these names. `thinking` stands for this word: where the
    target thinks aloud.
    UsageError for a wrong file, and for a schedule that is not constant where the file has no place for it.
    """
    schedule = schedule or Constant()
    values: dict[str, Any] = {**models, "k": k, "schedule": schedule, "thinking": thinking}
    method = _part(
        read_method(name)["method"], Place(f"{name}: method", clock, outermost=True, around=around or {}), values
    )
    if not schedule.static and "schedule" not in words(name, "schedule"):
        raise UsageError(
            f"{name}: the method has no place for a schedule (the word `schedule` in its file): "
            "choose --schedule constant, or a method whose drafts are a chain from a model"
        )
    if not isinstance(method, Speculate):
        raise UsageError(f"{name}: method: the outermost part must be Speculate, not {type(method).__name__}")
    if read_method(name)["lossless"] and not method.verifier.lossless:
        raise UsageError(f"{name}: {shown(method.verifier)} is lossy: write `lossless: false` in the file")
    return method


def _part(value: Any, place: Place, values: Mapping[str, Any]) -> Any:
    """An object from `Name`, `{Name: {field: part}}`, a word of `values`, or a plain number or list."""
    if isinstance(value, dict):
        if len(value) != 1:
            keys = ", ".join(map(str, value))
            raise UsageError(f"{place.where}: expected one part as {{Name: {{...}}}}, found the keys {keys}")
        (name, arguments), *_ = value.items()
        return _object(str(name), arguments or {}, replace(place, name=str(name)), values)
    if isinstance(value, str):
        if value in values:
            # a schedule has a state: two drafters of one method must not share it
            return copy(values[value]) if value == "schedule" else values[value]
        return _object(value, {}, place, values)
    if isinstance(value, list):
        return [_part(part, replace(place, path=f"{place.path}[{i}]"), values) for i, part in enumerate(value)]
    return value


def _object(name: str, arguments: Any, place: Place, values: Mapping[str, Any]) -> Any:
    where = place.where
    made = part_named(name)
    if made is None:
        known_parts = [*sorted(PARTS), *added(), *values]
        raise UsageError(f"{where}: unknown part {name!r}; known are {', '.join(known_parts)}")
    known = dict(signature(made).parameters)
    timed = known.pop("clock", None) is not None and place.clock is not None
    _check_fields(name, arguments, known, where)
    if "verifier" in arguments:
        place = replace(place, judge=arguments.get("model"))
    elif "judge" in arguments and arguments["judge"] != place.judge:
        raise UsageError(f"{where}.judge: expected the model that judges its drafts, {place.judge}")
    built = {key: _part(part, place.field(key, known), values) for key, part in arguments.items()}
    types = get_type_hints(made)
    for key, part in built.items():
        check(types[key], part, f"{where}.{key}")
    if "verifier" in built:
        check_judged(built["verifier"], built["drafter"], where)
        if not place.outermost:
            check_honest(built["verifier"], place.path)
    try:
        part = made(**built, **({"clock": place.clock} if timed else {}))
        return place.around[arguments["model"]](part) if wrapped(arguments, place) else part
    except ValueError as error:  # of a number that the part itself refuses
        raise UsageError(f"{where}: {error}") from None


def wrapped(arguments: Mapping[str, Any], place: Place) -> bool:
    """Whether something is put around the part: what draws from such a model, and does not judge by it."""
    return (
        "verifier" not in arguments and isinstance(arguments.get("model"), str) and arguments["model"] in place.around
    )


def _check_fields(name: str, arguments: Any, known: Mapping[str, Parameter], where: str) -> None:
    """UsageError for fields that the part of this name does not take, and for those that it lacks."""
    if not isinstance(arguments, dict) or set(arguments) - set(known):
        wrong = ", ".join(map(str, set(arguments) - set(known))) if isinstance(arguments, dict) else repr(arguments)
        raise UsageError(f"{where}: unknown field {wrong}; {name} takes {', '.join(known) or 'no fields'}")
    required = {key for key, one in known.items() if one.default is Parameter.empty}
    if missing := required - set(arguments):
        raise UsageError(f"{where}: missing field {', '.join(sorted(missing))}")
