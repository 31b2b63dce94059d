"""Arms: methods that are ready to decode and how they do, what makes two the same, and the room that a group needs.

Knows specs and the forms of methods; must not know networks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from specbench.backends.forms import bounded, form
from specbench.backends.parallel import agreeing
from specbench.decoding.batch import decode_batches
from specbench.decoding.decode import buffer_length, decode
from specbench.decoding.loop import Speculate
from specbench.decoding.randomness import seeded
from specbench.decoding.rounds import Rounds
from specbench.decoding.timing import Clock
from specbench.metrics import Trace
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


def decoded(
    arm: Arm,
    spec: RunSpec,
    prompts: Sequence[Sequence[int]],
    seeds: Sequence[int],
    certain: bool,
    device: torch.device,
) -> list[Trace]:
    """The traces of prompts that an arm decodes as its spec says, with a seed each. certain: see `FromUniforms`."""
    to: Any = {"new": spec.max_new_tokens, "eos": arm.eos, "device": device, "clock": arm.clock, "rounds": arm.rounds}
    if spec.batch > 1:
        return decode_batches(arm.method, prompts, seeds, rows=spec.batch, certain=certain, agree=agreeing(spec), **to)
    return decode(arm.method, prompts, rng=seeded(seeds, device, certain, agreeing(spec)), **to)


def whatever_prompts(spec: RunSpec) -> RunSpec:
    """The spec that all have in common whose arms are the same, on whichever prompts."""
    return spec.with_(**dict.fromkeys(OF_PROMPTS), dataset="", seed=0, warmup=0, repeat=1, until_ci=None)


def places(spec: RunSpec, longest: int, costs: Costs | None) -> int:
    """How many places the texts of a spec have, after prompts of up to `longest` tokens."""
    return buffer_length(longest, spec.max_new_tokens, form(bounded(spec), costs).drafter.room)


def most_places(spec: RunSpec, specs: Sequence[RunSpec], longest: int, costs: Costs | None) -> int:
    """The same for whichever of the specs that share a baseline with this one needs the most."""
    together = {spec, *(one for one in specs if one.baseline == spec.baseline)}
    return max(places(one, longest, costs) for one in together)
