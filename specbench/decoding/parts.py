"""The parts that a method file may name, and whether one fits where it stands: by its kind and by what it declares.

Knows the classes of the algebra and asks for nothing that their protocols do not say; must not know files or clocks.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, get_args, get_origin

from specbench import plugins
from specbench.decoding.divergences import (  # fmt: skip
    JSD,
    Divergence,
    ForwardKL,
    Hybrid,
    Overlap,
    ReverseKL,
    TotalVariation,
)
from specbench.decoding.drafters.branching import Branching, Distinct, Independent, Top
from specbench.decoding.drafters.cascade import Relay, cascade
from specbench.decoding.drafters.chain import ModelDrafter, NoDraft
from specbench.decoding.drafters.distilled import Distilled
from specbench.decoding.drafters.dynamic import Dynamic
from specbench.decoding.drafters.jacobi import Jacobi
from specbench.decoding.drafters.lookahead import Lookahead
from specbench.decoding.drafters.lookup import Lookup, PromptLookup, SuffixLookup
from specbench.decoding.drafters.maxgram import Maxgram
from specbench.decoding.drafters.merge import Merge
from specbench.decoding.drafters.recycling import Recycling
from specbench.decoding.drafters.schedule import Schedule
from specbench.decoding.drafters.select import Finder, Select
from specbench.decoding.drafters.suffix import Suffix
from specbench.decoding.drafters.swift import Swift
from specbench.decoding.drafters.tree import Expand, Planned
from specbench.decoding.loop import Speculate
from specbench.decoding.protocols import Apprentice, Drafter, Model, Network, Verifier
from specbench.decoding.ranking import Ranker
from specbench.decoding.skipping import Skippable
from specbench.decoding.spans import Spans
from specbench.decoding.tokens import ROOT, Parent
from specbench.decoding.verifiers.block import Block
from specbench.decoding.verifiers.lossy import Lenient, Typical
from specbench.decoding.verifiers.rejection import Rejection
from specbench.decoding.verifiers.relaxed import Relaxed
from specbench.decoding.verifiers.token_match import TokenMatch
from specbench.decoding.verifiers.traversal import Traversal
from specbench.decoding.views.retrieval import Retrieval
from specbench.decoding.views.streaming import Streaming
from specbench.errors import UsageError

# A new class goes into the tuple of its kind: what it does not declare is a type error here.
DRAFTERS: tuple[type[Drafter], ...] = (
    *(NoDraft, ModelDrafter, PromptLookup, SuffixLookup, Suffix, Maxgram, Jacobi),
    *(Expand, Planned, Dynamic, Lookahead, Recycling),
    *(Merge, Relay, Select, Speculate, Distilled, Swift),
)
VERIFIERS: tuple[type[Verifier], ...] = (Rejection, TokenMatch, Block, Traversal, Lenient, Typical, Relaxed)
MODELS: tuple[type[Model], ...] = (Streaming, Retrieval)
BRANCHINGS: tuple[type[Branching], ...] = (Top, Independent, Distinct)
LOSSES: tuple[type[Divergence], ...] = (ForwardKL, ReverseKL, JSD, TotalVariation, Overlap, Hybrid)

# by their names in a file; a function stands for the composition that it returns
PARTS: dict[str, Callable[..., Any]] = {
    part.__name__: part for part in (*DRAFTERS, *VERIFIERS, *MODELS, *BRANCHINGS, *LOSSES)
}
PARTS |= {"Cascade": cascade, "Spans": Spans}


def part_named(name: str) -> Callable[..., Any] | None:
    """The part of a name in a file, of specbench or of another package; None where there is none."""
    return PARTS.get(name) or (plugins.load(plugins.PARTS, name) if name in added() else None)


def added() -> list[str]:
    """The parts that other packages add."""
    return plugins.names(plugins.PARTS, PARTS)


# what a part can do that stands in a field of this kind
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
# and what it must declare
DECLARED = {
    kind: [*kind.__annotations__, *(name for name, one in vars(kind).items() if isinstance(one, property))]
    for kind in KINDS
}


def check(kind: Any, part: Any, where: str) -> None:
    """UsageError for a part that is not of the kind of its field, or does not declare what one of the kind must."""
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
    """UsageError for what cannot do what a part of this kind can, and for what does not declare what it must."""
    name = kind.__name__.lower()
    if not hasattr(part, KINDS[kind]):
        known = ", ".join(sorted(key for key, one in PARTS.items() if hasattr(one, KINDS[kind])))
        choice = f": choose one of {known}" if known else ""
        raise UsageError(f"{where}: expected a {name}, found {shown(part)}{choice}")
    if missing := [one for one in DECLARED[kind] if not hasattr(part, one)]:
        raise UsageError(
            f"{where}: {shown(part)} does not declare {', '.join(missing)}: a {name} says so before it is used"
        )
    if kind is Apprentice:
        check_part(Network, part.model, f"{where}.model")


def check_judged(verifier: Verifier, drafter: Drafter, where: str) -> None:
    """UsageError for a verifier that cannot judge trees, or trees of drawn tokens, where the drafter drafts them."""
    if not drafter.branches:
        return
    rule, drafts = shown(verifier), shown(drafter)
    if verifier.judges == "chains":
        raise UsageError(
            f"{where}: {rule} judges chains, and {drafts} drafts trees: take Rejection, or a drafter of chains"
        )
    if verifier.judges == "point trees" and drafter.drawn:
        raise UsageError(
            f"{where}: {rule} judges chains and trees of point masses, and {drafts} drafts trees of drawn tokens: "
            "take Rejection, a drafter of chains, or branching Top"
        )


def check_honest(verifier: Verifier, where: str) -> None:
    """UsageError for a lossy verifier of a speculation that drafts."""
    if not verifier.lossless:
        raise UsageError(
            f"{where}: {shown(verifier)} is lossy, so what a speculation with it says of its tokens is not "
            "what they were drawn from, and nothing above it would be lossless: take Rejection inside a drafter"
        )


def shown(part: Any) -> str:
    """A part in an error: a value as it is written, anything else by the name of its class."""
    return repr(part) if isinstance(part, bool | int | float | list) else type(part).__name__
