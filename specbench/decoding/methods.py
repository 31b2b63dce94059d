"""The parts that a method file may name, and the checks of a part in its place: by kind and by declarations."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, is_dataclass, replace
from inspect import Parameter, isfunction, signature
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from specbench import plugins
from specbench.decoding.divergences import JSD, Divergence, ForwardKL, Hybrid, Overlap, ReverseKL, TotalVariation
from specbench.decoding.drafters.cascade import Relay, cascade
from specbench.decoding.drafters.chain import ModelDrafter, NoDraft
from specbench.decoding.drafters.distilled import Distilled
from specbench.decoding.drafters.dynamic import Dynamic
from specbench.decoding.drafters.jacobi import Jacobi, Lookahead
from specbench.decoding.drafters.lookup import Lookup, Maxgram, PromptLookup, Suffix, SuffixLookup
from specbench.decoding.drafters.recycling import Recycling
from specbench.decoding.drafters.schedule import Constant, Schedule
from specbench.decoding.drafters.select import Finder, Select
from specbench.decoding.drafters.swift import Skippable, Swift
from specbench.decoding.drafters.tree import Branching, Distinct, Expand, Independent, Merge, Planned, Top
from specbench.decoding.loop import Speculate
from specbench.decoding.method_files import OF_A_FILE, path_of, read_code, read_method, words
from specbench.decoding.protocols import Apprentice, Drafter, Model, Network, Ranker, Verifier
from specbench.decoding.timing import EVERYWHERE, Laps, Spans
from specbench.decoding.tokens import ROOT, Parent
from specbench.decoding.verifiers.block import Block, Traversal
from specbench.decoding.verifiers.lossy import Lenient, Relaxed, Typical
from specbench.decoding.verifiers.rejection import Rejection, TokenMatch
from specbench.decoding.views import Retrieval, Streaming
from specbench.errors import UsageError
from specbench.wording import first_line

# --- build ------------------------------------------------------------------------------------------------------------
# Compositions → objects: one short recursion over nested YAML.

Around = Mapping[str, Callable[[Drafter], Drafter]]


@dataclass(frozen=True)
class Place:
    """The place of a part in a file. `path` is that of its field; a part with fields adds its name.

    around: wrappers of drafters by the name of their model. judge: the model, as named in the file, that
    judges the drafts of this place. folder: the file's folder, to which its Python files are relative.
    """

    path: str
    clock: Laps | None
    name: str = ""
    outermost: bool = False
    around: Around = field(default_factory=dict)
    judge: Any = None
    folder: Path = Path()

    @property
    def where(self) -> str:
        return f"{self.path}.{self.name}" if self.name else self.path

    def field(self, key: str, fields: Collection[str]) -> "Place":
        """The place of one field of this part. A drafter inside a part that judges reports its
        phases as parts of the draft."""
        drafts = key == "drafter" and "verifier" in fields
        below = self.clock.under("draft") if self.clock is not None and drafts else self.clock
        return replace(self, path=f"{self.where}.{key}", clock=below, name="", outermost=False)


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

    `k` and `schedule` (constant by default) replace these words in the file; every place has its own schedule. `around`
    wraps drafters that draw from models of these names. `thinking` replaces this word by the target's reasoning spans.
    UsageError for an invalid file, and for a schedule that is not constant if the file has no place for it.
    """
    schedule = schedule or Constant()
    values: dict[str, Any] = {**models, "k": k, "schedule": schedule, "thinking": thinking}
    place = Place(f"{name}: method", clock, outermost=True, around=around or {}, folder=path_of(name).parent)
    method = _part(read_method(name)["method"], place, values)
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
            # a schedule has state: two drafters of one method must not share it
            return copy(values[value]) if value == "schedule" else values[value]
        return _object(value, {}, place, values)
    if isinstance(value, list):
        return [_part(part, replace(place, path=f"{place.path}[{i}]"), values) for i, part in enumerate(value)]
    return value


def _object(name: str, arguments: Any, place: Place, values: Mapping[str, Any]) -> Any:
    where = place.where
    made = known_part(name, place, values)
    refused = Exception if OF_A_FILE.fullmatch(name) else ValueError
    known = dict(signature(made).parameters)
    timed = known.pop("clock", None) is not None and place.clock is not None
    _check_fields(name, arguments, known, where)
    if "verifier" in arguments:
        place = replace(place, judge=arguments.get("model"))
    elif "judge" in arguments and arguments["judge"] != place.judge:
        raise UsageError(f"{where}.judge: expected the model that judges its drafts, {place.judge}")
    built = {key: _part(part, place.field(key, known), values) for key, part in arguments.items()}
    types = types_of(made, where)
    for key, part in built.items():
        if key not in types:
            raise UsageError(f"{where}.{key}: its type is not known: write it in the class, as in `{key}: int`")
        check(types[key], part, f"{where}.{key}")
    if "verifier" in built:
        check_judged(built["verifier"], built["drafter"], where)
        if not place.outermost:
            check_honest(built["verifier"], place.path)
    try:
        part = made(**built, **({"clock": place.clock} if timed else {}))
        drafts = "verifier" not in arguments and isinstance(arguments.get("model"), str)  # it does not judge
        return place.around[arguments["model"]](part) if drafts and arguments["model"] in place.around else part
    except refused as error:  # a number refused by the part itself
        raise UsageError(f"{where}: {first_line(error)}") from None


def known_part(name: str, place: Place, values: Mapping[str, Any]) -> Callable[..., Any]:
    """The part of this name: ours, another package's, or a class of a Python file. UsageError if unknown."""
    if found := OF_A_FILE.fullmatch(name):
        file = place.folder / found[1]
        return plugins.class_of(file, read_code(file), found[2])
    if name in PARTS:
        return PARTS[name]
    if name in added():
        theirs: Callable[..., Any] = plugins.load(plugins.PARTS, name)
        return theirs
    known = ", ".join([*sorted(PARTS), *added(), *values])
    raise UsageError(f"{place.where}: unknown part {name!r}; known are {known}, and FILE.py:CLASS")


def types_of(made: Callable[..., Any], where: str) -> dict[str, Any]:
    """The types of the fields of a part, from its class or factory."""
    plain = isinstance(made, type) and not is_dataclass(made)
    try:
        return get_type_hints(made.__init__ if plain else made)
    except Exception as error:  # a name missing from a user's file
        raise UsageError(f"{where}: the types of its fields: {first_line(error)}") from None


def _check_fields(name: str, arguments: Any, known: Mapping[str, Parameter], where: str) -> None:
    """UsageError for unknown and for missing fields of a part."""
    if not isinstance(arguments, dict) or set(arguments) - set(known):
        wrong = ", ".join(map(str, set(arguments) - set(known))) if isinstance(arguments, dict) else repr(arguments)
        raise UsageError(f"{where}: unknown field {wrong}; {name} takes {', '.join(known) or 'no fields'}")
    required = {key for key, one in known.items() if one.default is Parameter.empty}
    if missing := required - set(arguments):
        raise UsageError(f"{where}: missing field {', '.join(sorted(missing))}")


# --- parts ------------------------------------------------------------------------------------------------------------

# A new class goes into the tuple of its kind: a missing declaration is a type error here.
DRAFTERS: tuple[type[Drafter], ...] = (
    *(NoDraft, ModelDrafter, PromptLookup, SuffixLookup, Suffix, Maxgram, Jacobi),
    *(Expand, Planned, Dynamic, Lookahead, Recycling),
    *(Merge, Relay, Select, Speculate, Distilled, Swift),
)
VERIFIERS: tuple[type[Verifier], ...] = (Rejection, TokenMatch, Block, Traversal, Lenient, Typical, Relaxed)
MODELS: tuple[type[Model], ...] = (Streaming, Retrieval)
BRANCHINGS: tuple[type[Branching], ...] = (Top, Independent, Distinct)
LOSSES: tuple[type[Divergence], ...] = (ForwardKL, ReverseKL, JSD, TotalVariation, Overlap, Hybrid)

# by their names in a file; a function builds the composition that it returns
PARTS: dict[str, Callable[..., Any]] = {
    part.__name__: part for part in (*DRAFTERS, *VERIFIERS, *MODELS, *BRANCHINGS, *LOSSES)
}
PARTS |= {"Cascade": cascade, "Spans": Spans}


def added() -> list[str]:
    """The parts that other packages add."""
    return plugins.names(plugins.PARTS, PARTS)


# the abilities of a part in a field of this kind
KINDS: dict[Any, str] = {
    Drafter: "propose",
    Lookup: "of_length",
    Finder: "find",
    Model: "probs",
    Network: "twin",
    Ranker: "ranking",
    Skippable: "skipping",
    Verifier: "judge",
    Schedule: "lookahead",
    Branching: "children",
    Divergence: "nats",
    Spans: "at_nodes",
    Apprentice: "drawing_from",
}
# the declarations and other methods that it must have
DECLARED = {
    kind: [*kind.__annotations__, *(name for name, one in vars(kind).items() if isinstance(one, property))]
    for kind in KINDS
}
DOES = {kind: [name for name, one in vars(kind).items() if isfunction(one) and name[0] != "_"] for kind in KINDS}


def check(kind: Any, part: Any, where: str) -> None:
    """UsageError for a part of the wrong kind for its field, or without the declarations of that kind."""
    if get_origin(kind) is Sequence:
        if not isinstance(part, list):
            raise UsageError(f"{where}: expected a list, found {shown(part)}")
        for place, one in enumerate(part):
            check(get_args(kind)[0], one, f"{where}[{place}]")
    elif kind in KINDS:
        check_part(kind, part, where)
    elif kind is bool:
        if not isinstance(part, bool):
            raise UsageError(f"{where}: expected true or false, found {shown(part)}")
    elif kind is float:
        if isinstance(part, bool) or not isinstance(part, int | float) or not math.isfinite(part):
            raise UsageError(f"{where}: expected a number, found {shown(part)}")
    elif isinstance(part, bool) or not isinstance(part, int) or part < (ROOT if kind is Parent else 0):
        wanted = "a node's number, or -1" if kind is Parent else "a whole number from 0 on, or the word k"
        raise UsageError(f"{where}: expected {wanted}, found {shown(part)}")


def check_part(kind: Any, part: Any, where: str) -> None:
    """UsageError for a part without the methods or the declarations of this kind."""
    name = kind.__name__.lower()
    if not hasattr(part, KINDS[kind]):
        known = ", ".join(sorted(key for key, one in PARTS.items() if hasattr(one, KINDS[kind])))
        choice = f": choose one of {known}" if known else ""
        lacking = "" if repr(part) == shown(part) else f", which has no {KINDS[kind]}"
        raise UsageError(f"{where}: expected a {name}, found {shown(part)}{lacking}{choice}")
    if missing := [one for one in DECLARED[kind] if not hasattr(part, one)]:
        raise UsageError(f"{where}: {shown(part)} does not declare {', '.join(missing)}: a {name} must declare it")
    if missing := [one for one in DOES[kind] if not callable(getattr(part, one, None))]:
        raise UsageError(f"{where}: {shown(part)} has no {', '.join(missing)}, which a {name} must have")
    if kind is Apprentice:
        check_part(Network, part.model, f"{where}.model")


def check_judged(verifier: Verifier, drafter: Drafter, where: str) -> None:
    """UsageError for a verifier that cannot judge the drafter's trees, or its trees of drawn tokens."""
    if not drafter.branches:
        return
    rule, drafts = shown(verifier), shown(drafter)
    if verifier.judges == "chains":
        raise UsageError(
            f"{where}: {rule} judges chains, and {drafts} drafts trees: use Rejection, or a drafter of chains"
        )
    if verifier.judges == "point trees" and drafter.drawn:
        raise UsageError(
            f"{where}: {rule} judges chains and trees of point masses, and {drafts} drafts trees of drawn tokens: "
            "take Rejection, a drafter of chains, or branching Top"
        )


def check_honest(verifier: Verifier, where: str) -> None:
    """UsageError for a lossy verifier in a speculation that is itself a drafter."""
    if not verifier.lossless:
        raise UsageError(
            f"{where}: {shown(verifier)} is lossy, so its tokens are not drawn from the probabilities that it reports, "
            "and nothing above it would be lossless: use Rejection inside a drafter"
        )


def shown(part: Any) -> str:
    """A part in an error message: a value as written, anything else by its class name."""
    return repr(part) if isinstance(part, bool | int | float | list) else type(part).__name__
