"""The metadata of a setting beyond its type, and the lists of settings that are derived from it."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from specbench.chat import read

Panel = Literal["Pair", "Method", "Data", "Sampling", "Measuring", "Training"]
Group = Literal["pair", "revisions", "precision", "device", "method", "lookahead", "acceptance", "execution", "data",
                "excerpt", "chat", "limit", "stopping", "length", "sampling", "draws", "training"]  # fmt: skip
BOUNDS = {"ge": "from", "gt": "above", "le": "to", "lt": "below"}  # pydantic's words for bounds, and ours
Part = Literal["identity", "question", "compared", "further", "heading", "loading"]

# Run descriptions list these groups in this order; others follow in order of declaration.
ORDER: dict[Part, tuple[Group, ...]] = {
    "question": ("pair", "acceptance", "data", "excerpt", "chat", "sampling", "length", "execution", "precision"),
    "compared": ("pair", "method", "lookahead", "acceptance", "data", "sampling", "length", "precision", "execution",
                 "excerpt", "chat", "limit"),
    "heading": ("pair", "method", "lookahead", "acceptance", "precision", "sampling", "length", "excerpt", "chat",
                "limit", "stopping", "draws", "execution", "device"),
}  # fmt: skip
MEANING: dict[Part, str] = {
    "identity": "cells that differ in it are never lines of one sweep over the lookahead",
    "question": "cells that differ in it are no answers to the same question of `specbench verdict`",
    "compared": "`specbench compare` matches the cells of two runs by it",
    "further": "so it does where the requested settings leave several cells",
    "heading": "it is named above the tables where cells differ in it",
    "loading": "cells that differ in it need the models loaded again",
}
QUESTION: tuple[Part, ...] = ("identity", "question", "compared", "heading")
# Roles of a setting's value that differ from plain `question` (see Setting).
PAIR: tuple[Part, ...] = (*QUESTION, "loading")
ANSWER: tuple[Part, ...] = ("identity", "compared", "heading")  # the question may be answered with any value
LOOKAHEAD: tuple[Part, ...] = ("compared", "heading")  # varied by a sweep
NAMED: tuple[Part, ...] = ("identity", "question", "compared")  # always named in tables
CELL: tuple[Part, ...] = ("identity", "compared")
DETAIL: tuple[Part, ...] = ("identity", "further")
LOADED: tuple[Part, ...] = (*DETAIL, "loading")


@dataclass(frozen=True)
class Setting:
    """How a setting is shown and what its value is part of; used in the annotation of the field.

    panel, help: where and how `--help` and the documentation explain it; `usual` is the default in words if the field's
    own value is unclear, and "" to omit it. flags: the names of its option, if not just the field's name. typed: the
    type of its option, if not the field's own. group: settings of a command come in groups. column: where results.csv
    has the resolved value. late: the field was added later; a spec that leaves it at its default keeps its older key.

    of: what the value is part of; see MEANING. within: the option that gives it, where it has none of its own.
    """

    panel: Panel
    group: Group
    help: str
    of: tuple[Part, ...] = QUESTION
    usual: str | None = None
    flags: tuple[str, ...] = ()
    typed: Any = None
    column: str = ""
    within: str = ""
    late: bool = False


@dataclass(frozen=True)
class Declared:
    """A setting as its field declares it: type without None, default, and bounds in pydantic's words."""

    name: str
    type: Any
    default: Any
    bounds: Mapping[str, float]  # ge, gt, le, lt
    setting: Setting

    @property
    def column(self) -> str:
        """The column of results.csv that distinguishes cells."""
        return self.setting.column or self.name

    @property
    def flags(self) -> tuple[str, ...]:
        """The names of its option; a pair such as --on/--off counts as one."""
        return self.setting.flags or (f"--{self.name.replace('_', '-')}",)

    @property
    def usual(self) -> str:
        """The default as a sentence; empty if it is omitted."""
        said = self.setting.usual
        if said is None:
            said = (
                "" if self.default in (None, ()) else f"{self.default:g}" if is_number(self.default) else self.default
            )
        return said and f"Default: {said}."


@cache
def declared(model: type[BaseModel]) -> Mapping[str, Declared]:
    """The settings of a model by name, in order of declaration. TypeError for a field without a Setting."""
    found = {}
    for name, field in model.model_fields.items():
        notes = [note for note in field.metadata if isinstance(note, Setting)]
        if len(notes) != 1:
            raise TypeError(f"{model.__name__}.{name} needs one Setting in its annotation")
        bounds = {word: getattr(note, word) for note in field.metadata for word in BOUNDS if hasattr(note, word)}
        found[name] = Declared(name, without_none(field.annotation), field.default, bounds, notes[0])
    return found


def part(name: Part, model: type[BaseModel]) -> tuple[Declared, ...]:
    """The settings with this role, in its order; groups not listed in the order come last."""
    place = {group: i for i, group in enumerate(ORDER.get(name, ()))}
    found = [one for one in declared(model).values() if name in one.setting.of]
    return tuple(sorted(found, key=lambda one: place.get(one.setting.group, len(place))))


def group(name: str, model: type[BaseModel]) -> tuple[Declared, ...]:
    """The settings of a group, in order of declaration."""
    return tuple(one for one in declared(model).values() if one.setting.group == name)


def without_none(annotation: Any) -> Any:
    """A type without None and annotations: int of `int | None`."""
    if get_origin(annotation) is Annotated:
        return without_none(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        (only,) = (one for one in get_args(annotation) if one is not NoneType)
        return without_none(only)
    return annotation


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# --- engine options ---------------------------------------------------------------------------------------------------
# Options that go to an engine unchanged: ENGINE.NAME=VALUE as text, and back.

OPTION = re.compile(r"(?P<name>[a-z][\w.]*\.[A-Za-z][\w-]*)=(?P<value>[^,]+)", re.ASCII)
Options = tuple[tuple[str, str], ...]


def engine_options(given: Any) -> Options:
    """Parse engine options, sorted by name: ENGINE.NAME=VALUE, several of these, or a mapping.

    One text may hold several, joined by commas, as in results.csv. ValueError, in one line, for anything else.
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
        raise ValueError(f"{str(item)[:60]!r} is not ENGINE.NAME=VALUE, such as vllm.tensor_parallel_size=2")
    return found["name"], found["value"]


def written_options(options: Options) -> str:
    return ",".join(f"{name}={value}" for name, value in options)


def engines(options: Options) -> list[str]:
    return list(dict.fromkeys(name.rpartition(".")[0] for name, _ in options))


def of_engine(options: Options, engine: str) -> dict[str, Any]:
    """The options of an engine by their names there, with numbers and booleans converted."""
    mine = [(name.rpartition("."), value) for name, value in options]
    return {name: read(value) for (whose, _, name), value in mine if whose == engine}
