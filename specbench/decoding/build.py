"""Compositions → objects: one short recursion over nested YAML. Knows the classes of the algebra and their fields."""

import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import MISSING, fields
from typing import Any, get_args, get_origin, get_type_hints

from specbench.decoding.drafters.cascade import Cascade, Relay
from specbench.decoding.drafters.chain import ModelDrafter, NoDraft
from specbench.decoding.drafters.dynamic import Dynamic
from specbench.decoding.drafters.jacobi import Jacobi
from specbench.decoding.drafters.lookahead import Lookahead
from specbench.decoding.drafters.lookup import PromptLookup, SuffixLookup
from specbench.decoding.drafters.maxgram import Maxgram
from specbench.decoding.drafters.merge import Merge
from specbench.decoding.drafters.schedule import Constant, Schedule
from specbench.decoding.drafters.tree import Branching, Distinct, Expand, Independent, Planned, Top
from specbench.decoding.loop import Speculate
from specbench.decoding.method_files import read_method, words
from specbench.decoding.timing import Laps
from specbench.decoding.tokens import ROOT, Parent
from specbench.decoding.types import Drafter, Model, Network, Verifier
from specbench.decoding.verifiers.block import Block
from specbench.decoding.verifiers.lossy import Lenient, Typical
from specbench.decoding.verifiers.rejection import Rejection, TokenMatch
from specbench.decoding.views.retrieval import Retrieval
from specbench.decoding.views.streaming import Streaming
from specbench.errors import UsageError

PARTS: dict[str, type] = {
    part.__name__: part
    for part in (
        *(NoDraft, ModelDrafter, Expand, Planned, Dynamic, PromptLookup, SuffixLookup, Merge, Speculate),
        *(Maxgram, Relay, Cascade),
        *(Jacobi, Lookahead),
        *(Streaming, Retrieval),
        *(Rejection, TokenMatch, Block),
        *(Lenient, Typical),
        *(Top, Independent, Distinct),
    )
}
# what a part can do that stands in a field of this type
KINDS: dict[Any, str] = {Drafter: "propose", Model: "probs", Network: "twin", Verifier: "judge", Schedule: "lookahead",
                         Branching: "children"}  # fmt: skip


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
    if read_method(name)["lossless"] and not method.verifier.lossless:
        raise UsageError(f"{name}: {type(method.verifier).__name__} is lossy: write `lossless: false` in the file")
    return method


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
    known = {f.name: f for f in fields(PARTS[name]) if f.init}
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
    types = get_type_hints(PARTS[name])
    for key, part in built.items():
        _check(types[key], part, f"{where}.{key}")
    _judged(built.get("verifier"), built.get("drafter"), where)
    try:
        part = PARTS[name](**built, **({"clock": clock} if timed else {}))
        return part.composition() if isinstance(part, Cascade) else part
    except ValueError as error:  # of a number that the part itself refuses
        raise UsageError(f"{where}: {error}") from None


def _judged(verifier: Any, drafter: Any, where: str) -> None:
    """Refuse a verifier that cannot judge trees, or trees of drawn tokens, where the drafter drafts them."""
    if not getattr(drafter, "branches", False):
        return
    rule, drafts = type(verifier).__name__, type(drafter).__name__
    if getattr(verifier, "chains_only", False):
        raise UsageError(
            f"{where}: {rule} judges chains, and {drafts} drafts trees: take Rejection, or a drafter of chains"
        )
    drawn = getattr(getattr(drafter, "branching", drafter), "drawn", True)
    if getattr(verifier, "trees_of_points_only", False) and drawn:
        raise UsageError(
            f"{where}: {rule} judges chains and trees of point masses, and {drafts} drafts trees of drawn tokens: "
            "take Rejection, a drafter of chains, or branching Top"
        )


def _check(kind: Any, part: Any, where: str) -> None:
    """Refuse a part that is not of the type of its field."""
    if get_origin(kind) is Sequence:
        if not isinstance(part, list):
            raise UsageError(f"{where}: expected a list, found {_shown(part)}")
        for place, one in enumerate(part):
            _check(get_args(kind)[0], one, f"{where}[{place}]")
    elif kind in KINDS:
        if not hasattr(part, KINDS[kind]):
            raise UsageError(f"{where}: expected a {kind.__name__.lower()}, found {_shown(part)}")
        if kind is Drafter:
            _honest(part, where)
    elif kind is float:
        if isinstance(part, bool) or not isinstance(part, int | float) or not math.isfinite(part):
            raise UsageError(f"{where}: expected a number, found {_shown(part)}")
    elif isinstance(part, bool) or not isinstance(part, int) or part < (ROOT if kind is Parent else 0):
        wanted = "a node's number, or -1" if kind is Parent else "a whole number from 0 on, or the word k"
        raise UsageError(f"{where}: expected {wanted}, found {_shown(part)}")


def _honest(drafter: Any, where: str) -> None:
    """Refuse a speculation with a lossy verifier as a drafter."""
    verifier = getattr(drafter, "verifier", None)
    if not getattr(verifier, "lossless", True):
        raise UsageError(
            f"{where}: {type(verifier).__name__} is lossy, so what a speculation with it says of its tokens is not "
            "what they were drawn from, and nothing above it would be lossless: take Rejection inside a drafter"
        )


def _shown(part: Any) -> str:
    return repr(part) if isinstance(part, bool | int | float | list) else type(part).__name__
