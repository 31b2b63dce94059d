"""The order in which prompts and arms are decoded, their seeds, and when a run may stop early: equal everywhere."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import TypeVar

from specbench.data.prompts import Prompt
from specbench.metrics import seed_from
from specbench.results import statistics
from specbench.results.numbers import REQUESTS
from specbench.spec import BASELINE, RunSpec

T = TypeVar("T")
REFILLS = 4  # prompts of a chunk per row
BLOCK = 8  # prompts in a row that are one draw where a method carries something from prompt to prompt


@dataclass(frozen=True)
class Turn:
    """One chunk of prompts, decoded by all arms one after the other before the next turn begins.

    number: its position in time within the group; chunk: which of the chunks it is; repeat: its earlier
    decodes. The later turns of conversations come one by one after the turn in which they began.
    """

    number: int
    repeat: int
    chunk: int
    prompts: Sequence[Prompt]

    @property
    def earlier(self) -> int:
        """How often the arms have decoded something of this chunk before."""
        return self.repeat + self.prompts[0].turn - 1


def turns_of(spec: RunSpec, prompts: Sequence[Prompt]) -> list[Turn]:
    """The first turns of a group in their order: every chunk once, then every chunk again for each repetition."""
    parts = chunks(prompts, spec.batch, None if spec.arrivals is None else REQUESTS)
    every = product(range(spec.repeat), enumerate(parts))
    return [Turn(number, repeat, *chunk) for number, (repeat, chunk) in enumerate(every)]


def seed_of(spec: RunSpec, prompt: str, repeat: int, arm: str) -> int:
    """The seed of one decode: different for every seed, prompt, repetition and arm, and the same on every machine."""
    return seed_from(spec.seed, prompt, repeat, arm)


def side(arm: str) -> str:
    """The name by which seeds know an arm: all methods and lookaheads draw the same uniforms, the baseline others."""
    return arm if arm == BASELINE else "method"


def order_of(arms: Sequence[str], seed: int, earlier: int, chunk: int) -> list[str]:
    """A random order of the arms; the next chunk (and each decode
    after `earlier` ones) has it reversed: no arm is always early.

    The same in every process: a run that is continued goes on as it would have.
    """
    order = sorted(arms)
    random.Random(f"{seed} {chunk // 2}").shuffle(order)
    return order if (chunk + earlier) % 2 == 0 else order[::-1]


def chunks(prompts: Sequence[T], rows: int, least: int | None = None) -> list[Sequence[T]]:
    """The prompts of every turn: one by one, or where `rows` are decoded together four for each row at most.

    Prompts of a chunk share their time, so an interval is over chunks: there are five of them where each can still have
    `least` prompts (which is as many as fill the rows, unless it is given), and fewer only where there are fewer
    prompts. All are about equally long, and where rows are filled, as often as they can be: a row that waits for the
    end of the others costs what it would if it worked.
    """
    if rows == 1:
        return [prompts[i : i + 1] for i in range(len(prompts))]
    count = max(-(-len(prompts) // (REFILLS * rows)), min(statistics.FEWEST, len(prompts) // (least or rows)), 1)
    unit = rows if least is None else 1
    units = -(-len(prompts) // unit)
    ends = [min(i * units // count * unit, len(prompts)) for i in range(count + 1)]
    return [prompts[a:b] for a, b in pairwise(ends)]


def blocks_of(prompts: Sequence[Prompt]) -> dict[str, str]:
    """The block of every prompt, by its name: stretches of `BLOCK` prompts or fewer, and at least five where possible.

    Where one prompt changes how the next one is drafted for, those near to each other are no independent draws.
    """
    count = max(-(-len(prompts) // BLOCK), min(statistics.FEWEST, len(prompts)))
    return {prompt.id: f"block {place * count // len(prompts)}" for place, prompt in enumerate(prompts)}


def checkpoints(turns: int) -> Iterator[int]:
    """Where `until_ci` may look: after 20, 30, 45, 67 … turns. Looking after every prompt would stop on lucky ones."""
    look = statistics.ENOUGH
    while look < turns:
        yield look
        look += look // 2
