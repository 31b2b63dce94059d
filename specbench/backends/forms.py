"""The form of a method: its composition with nothing in the place of its models, for what is asked before these exist.

Knows specs and method files; must not know networks.
"""

from collections.abc import Collection, Iterable
from typing import Any

from specbench.decoding.build import Around, build
from specbench.decoding.drafters.schedule import Schedule, scheduled
from specbench.decoding.loop import Speculate
from specbench.decoding.method_files import leaves, needs, read_method, words
from specbench.decoding.spans import Spans
from specbench.errors import UsageError
from specbench.models.heads.recursive import Recursive
from specbench.models.network.causal import Causal
from specbench.spec import CHOOSING, RunSpec
from specbench.theory.costs import Costs

NOT_LOADED: Any = Causal  # the class stands for a model where only the form of a method is looked at
READS_ALONE = ("Speculate", "Streaming")  # parts that give a model a text of their own, or have it judge


def form(spec: RunSpec, costs: Costs | None, around: Around | None = None) -> Speculate:
    """The method of a spec with nothing in the place of its models; `around` as of `build`."""
    nothing = dict.fromkeys(needs(spec.method), NOT_LOADED)
    return build(spec.method, nothing, spec.k, schedule=schedule_of(spec, costs), around=around)


def bounded(spec: RunSpec) -> RunSpec:
    """The spec as it is executed: no round drafts more tokens than a text may have."""
    most = spec.max_new_tokens
    if spec.k <= most or spec.method == CHOOSING or form(spec, None).drafter.depth <= most:
        return spec
    return spec.with_(k=most)


def refuse_heads(spec: RunSpec, heads: Collection[str]) -> None:
    """UsageError for a method that needs a whole network where one of these models is a head."""
    named = needs(spec.method)
    if not (found := sorted(named & set(heads))):
        return
    models: dict[str, Any] = {name: Recursive if name in found else NOT_LOADED for name in named}
    parts = leaves(read_method(spec.method)["method"])
    unable = any(part in READS_ALONE and key == "model" and value in found for part, key, value in parts)
    try:
        build(spec.method, models, spec.k, schedule=schedule_of(spec, None))
    except UsageError:
        unable = True
    if unable:
        raise UsageError(
            f"--method {spec.method}: its {found[0]} must be a network by itself, and a head has only what its target "
            "leaves it: choose chain, a tree, or a draft that is a network"
        )


def room(spec: RunSpec) -> int:
    """The places that a method needs after a text."""
    return form(spec, None).drafter.room


def carries(spec: RunSpec) -> str:
    """The part of a method that carries what it has seen from prompt to prompt; empty where every prompt is new."""
    carried = form(spec, None).carries
    return "" if carried is None else type(carried).__name__


def begin_anew(method: Speculate) -> None:
    """Make a method forget what it carries from the prompts of whoever used it before."""
    if (carried := method.carries) is not None:
        carried.forget()


def remarks_on(method: Speculate) -> tuple[str, ...]:
    """What is to be said of what a method carries; each is said once."""
    if (carried := method.carries) is None:
        return ()
    found = tuple(carried.remarks)
    carried.remarks.clear()
    return found


def unthinking(specs: Iterable[RunSpec], spans: Spans) -> tuple[str, ...]:
    """That a method which does something else where the target thinks aloud never does it."""
    found = dict.fromkeys(spec.method for spec in specs if "thinking" in words(spec.method, "spans"))
    return tuple(
        f"--method {name}: the target's tokenizer has no tokens for thinking aloud (<think>, </think>), so nothing is "
        "judged in another way: say which tokens open and close its spans in a copy of the file"
        for name in found
        if not spans.opens
    )


def refuse_carrying(spec: RunSpec) -> None:
    """UsageError for settings with which a method that carries something would measure something else."""
    if not carries(spec):
        return
    says = f"--method {spec.method} learns from every prompt"
    if spec.repeat > 1:
        raise UsageError(
            f"--repeat {spec.repeat}: {says}, so that the same one again is another measurement: leave it out, and "
            "give more prompts (--limit)"
        )
    if spec.until_ci is not None:
        raise UsageError(
            f"--until-ci: {says}, so that where it stops would decide how much was learned: give a number of prompts "
            "(--limit)"
        )
    if spec.acceptance is not None:
        raise UsageError(f"--acceptance: {says}, and nothing can be learned from made-up verdicts: leave it out")


def schedule_of(spec: RunSpec, costs: Costs | None) -> Schedule:
    """The rule that says how many of K tokens a drafter draws."""
    return scheduled(spec.schedule, spec.confidence, costs)
