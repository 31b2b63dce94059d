"""The order of prompts and arms, their seeds, and when a run may stop early: equal on every machine."""

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
BLOCK = 8  # consecutive prompts that form one draw if a method carries state between prompts


@dataclass(frozen=True)
class Turn:
    """One chunk of prompts, decoded by all arms one after the other before the next turn begins.

    number: its position in time within the group; chunk: the index of the chunk; repeat: its earlier decodes.
    Later turns of conversations follow one by one after the turn in which they began.
    """

    number: int
    repeat: int
    chunk: int
    prompts: Sequence[Prompt]

    @property
    def earlier(self) -> int:
        """How many times the arms have decoded from this chunk before."""
        return self.repeat + self.prompts[0].turn - 1


def turns_of(spec: RunSpec, prompts: Sequence[Prompt]) -> list[Turn]:
    """The first turns of a group in order: every chunk once, then every chunk again for each repetition."""
    parts = chunks(prompts, spec.batch, None if spec.arrivals is None else REQUESTS)
    every = product(range(spec.repeat), enumerate(parts))
    return [Turn(number, repeat, *chunk) for number, (repeat, chunk) in enumerate(every)]


def seed_of(spec: RunSpec, prompt: str, repeat: int, arm: str) -> int:
    """The seed of one decode: distinct for every seed, prompt, repetition and arm, and the same on every machine."""
    return seed_from(spec.seed, prompt, repeat, arm)


def side(arm: str) -> str:
    """The arm's name for seeding: all methods and lookaheads draw the same uniforms, the baseline others."""
    return arm if arm == BASELINE else "method"


def order_of(arms: Sequence[str], seed: int, earlier: int, chunk: int) -> list[str]:
    """A random order of the arms, reversed for every next chunk and repeated decode, so that no arm is always early.

    Equal in every process, so that a continued run keeps its order.
    """
    order = sorted(arms)
    random.Random(f"{seed} {chunk // 2}").shuffle(order)
    return order if (chunk + earlier) % 2 == 0 else order[::-1]


def chunks(prompts: Sequence[T], rows: int, least: int | None = None) -> list[Sequence[T]]:
    """The prompts of every turn: one by one, or if `rows` are decoded together, at most four per row.

    Prompts of a chunk share their time, so intervals are over chunks. There are at least five chunks if each can have
    `least` prompts (by default, enough to fill the rows), and fewer only with fewer prompts. Chunks have about equal
    length, and where possible fill the rows: an idle row waiting for the others costs as much as a working one.
    """
    if rows == 1:
        return [prompts[i : i + 1] for i in range(len(prompts))]
    count = max(-(-len(prompts) // (REFILLS * rows)), min(statistics.FEWEST, len(prompts) // (least or rows)), 1)
    unit = rows if least is None else 1
    units = -(-len(prompts) // unit)
    ends = [min(i * units // count * unit, len(prompts)) for i in range(count + 1)]
    return [prompts[a:b] for a, b in pairwise(ends)]


def blocks_of(prompts: Sequence[Prompt]) -> dict[str, str]:
    """The block of every prompt, by its name: runs of at most `BLOCK` prompts, and at least five if possible.

    If one prompt changes the drafts for the next, neighbouring prompts are not independent draws.
    """
    count = max(-(-len(prompts) // BLOCK), min(statistics.FEWEST, len(prompts)))
    return {prompt.id: f"block {place * count // len(prompts)}" for place, prompt in enumerate(prompts)}


def checkpoints(turns: int) -> Iterator[int]:
    """When `until_ci` may check: after 20, 30, 45, 67 … turns. Checking after every prompt would stop on lucky ones."""
    look = statistics.ENOUGH
    while look < turns:
        yield look
        look += look // 2
