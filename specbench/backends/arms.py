"""Arms: methods that are ready to decode, what makes two of them the same, and the room that those of a group need.

Knows specs and the forms of methods; must not know networks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.backends.forms import form
from specbench.decoding.decode import buffer_length
from specbench.decoding.loop import Speculate
from specbench.decoding.rounds import Rounds
from specbench.decoding.timing import Clock
from specbench.settings import group
from specbench.spec import RunSpec
from specbench.theory.costs import Costs

OF_PROMPTS = tuple(one.name for name in ("excerpt", "chat", "limit") for one in group(name, RunSpec))


@dataclass(frozen=True)
class Arm:
    """A method over models of its own, the clock of its parts, the ids that end a sequence, and its rounds."""

    method: Speculate
    clock: Clock
    eos: list[int]
    rounds: Rounds


def whatever_prompts(spec: RunSpec) -> RunSpec:
    """The spec that all have in common whose arms are the same, on whichever prompts."""
    return spec.with_(**dict.fromkeys(OF_PROMPTS), dataset="", seed=0, warmup=0, repeat=1, until_ci=None)


def places(spec: RunSpec, longest: int, costs: Costs | None) -> int:
    """How many places the texts of a spec have, after prompts of up to `longest` tokens."""
    return buffer_length(longest, spec.max_new_tokens, form(spec, costs).drafter.room)


def most_places(spec: RunSpec, specs: Sequence[RunSpec], longest: int, costs: Costs | None) -> int:
    """The same for whichever of the specs that share a baseline with this one needs the most."""
    together = {spec, *(one for one in specs if one.baseline == spec.baseline)}
    return max(places(one, longest, costs) for one in together)
