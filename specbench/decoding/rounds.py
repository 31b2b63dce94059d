"""How the rounds of a method are run: step by step, or each as one call of a function that was made ready before.

Knows what the host has to read after a round; must not know how a function is compiled or captured, or what a method is
made of.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Protocol

import torch
from torch import Tensor

from specbench.decoding.loop import Speculate
from specbench.decoding.randomness import Counted, Drawn, FromUniforms, Source, Stream
from specbench.decoding.types import Context, Round
from specbench.errors import SpecbenchError
from specbench.metrics import RoundCounts

Play = Callable[[], tuple[Tensor, Tensor]]  # one round: what the host reads of it, and its counts


class NonFiniteError(SpecbenchError):
    """A model gave a row that is no law (NaN or infinite logits)."""

    exit_code = 6


class Rounds(Protocol):
    """The rounds of one decode after the other."""

    @property
    def length(self) -> int:
        """How many places a context must have; 0 where it does not matter."""
        ...

    def begin(self, context: Context) -> Context:
        """Begin a decode with what `context` holds; returns the context that the rounds will change."""
        ...

    def advance(self, left: int, rng: Source) -> int:
        """One round. `left` and the result: how many tokens the longest live row may still emit, 0 when all ended."""
        ...

    def counts(self) -> list[list[RoundCounts]]:
        """The counts of all rounds since `begin`, one per row; the host reads them here, after the clock."""
        ...


@dataclass
class Stepwise:
    """Every part of a round is called by the host; with a method that adapts, or is nested, there is no other way."""

    method: Speculate
    length: int = 0
    _context: Context = field(init=False, repr=False)
    _rounds: list[Round] = field(init=False, repr=False)

    def begin(self, context: Context) -> Context:
        self._context, self._rounds = context, []
        return context

    def advance(self, left: int, rng: Source) -> int:
        self.method.clock.lap("host")
        self._rounds.append(self.method.advance(self._context, budget(self.method, left), rng).round)
        return levels_left(self._context)

    def counts(self) -> list[list[RoundCounts]]:
        return [read_counts(packed(done)) for done in self._rounds]


def budget(method: Speculate, left: int) -> int | None:
    """How many levels the host lets a method draft where rows may still emit up to `left` tokens.

    A static method drafts as many in every round, in every tier; so it draws as much, and emits the same tokens.
    """
    return None if method.drafter.static else left - 1


@dataclass
class Whole:
    """Every round is one call, on a context, caches and uniforms that stay where they are.

    `ready` makes a function cheap to call (compiles it); there is one for each of `reaches`, the numbers of places that
    passes read, in rising order and at most `length`. The method must be static.
    """

    method: Speculate
    length: int
    reaches: Sequence[int]
    ready: Callable[[Play], Play]
    _context: Context | None = field(default=None, init=False, repr=False)
    _uniforms: dict[Stream, Tensor] = field(default_factory=dict, init=False, repr=False)
    _plays: dict[int, Play] = field(default_factory=dict, init=False, repr=False)
    _counts: list[Tensor] = field(default_factory=list, init=False, repr=False)
    _end: int = field(default=0, init=False, repr=False)  # a place behind which no committed token lies

    def begin(self, context: Context) -> Context:
        if self._context is None:
            self._context = context
        for one in fields(Context):
            if one.name != "reach":
                getattr(self._context, one.name).copy_(getattr(context, one.name))
        self._counts, self._end = [], int(context.pos.max()) + 1
        return self._context

    def prime(self, context: Context, uniforms: FromUniforms) -> None:
        """Make the round of every reach ready, on a text that is then forgotten."""
        self.method.start(self.begin(context))
        counted = Counted(uniforms.uniforms)
        self.method.advance(context, None, FromUniforms(counted))
        like = context.finite.new_zeros((context.rows, 0), dtype=torch.float64)
        self._uniforms = {stream: like.new_zeros((context.rows, n)) for stream, n in counted.of.items()}
        for reach in self.reaches:
            self.method.start(self.begin(context))
            self._plays[reach] = self.ready(self._round(reach))
            self._plays[reach]()

    def _round(self, reach: int) -> Play:
        context, uniforms = self._context, self._uniforms
        assert context is not None

        def play() -> tuple[Tensor, Tensor]:
            context.reach = reach
            done = self.method.advance(context, None, FromUniforms(Drawn(uniforms))).round
            return state(context), packed(done)

        return play

    def advance(self, left: int, rng: Source) -> int:
        assert isinstance(rng, FromUniforms), "rounds that are one call draw their uniforms before"
        self.method.clock.lap("host")
        for stream, place in self._uniforms.items():
            place.copy_(rng.uniforms(tuple(place.shape), stream))
        needed = self._end + self.method.drafter.room + 1
        reach = next((reach for reach in self.reaches if reach >= needed), self.reaches[-1])
        seen, counts = self._plays[reach]()
        self._counts.append(counts)
        left, self._end = read_state(seen)
        return left

    def counts(self) -> list[list[RoundCounts]]:
        return [read_counts(counts) for counts in self._counts]


def state(context: Context) -> Tensor:
    """[3, B] what the host must know after a round: tokens left, whether all rows were laws, the last position."""
    return torch.stack([(context.last - context.pos) * context.live, context.finite.long(), context.pos])


def levels_left(context: Context) -> int:
    """The host read of every round: how many tokens the longest live row may still emit; 0 when all rows have ended.

    A schedule that adapts reads besides (see `schedule`), a speculation inside another once per inner round.
    """
    return read_state(state(context))[0]


def read_state(seen: Tensor) -> tuple[int, int]:
    """(tokens left to the longest row, the place behind the last committed token of any row) of a `state`."""
    left, finite, pos = seen.tolist()
    if not all(finite):
        raise NonFiniteError(
            f"a model gave NaN or infinite logits (row {finite.index(0)} of the batch): no token was drawn from them; "
            "try --dtype float32, or check the checkpoint"
        )
    return max(left), max(pos) + 1


def packed(done: Round) -> Tensor:
    """[B, 4 + depth] float64: the counts of a round in one tensor."""
    numbers = torch.stack([done.drafted, done.tested, done.accepted, done.emitted], 1)
    return torch.cat([numbers.double(), done.overlap.double()], 1)


def read_counts(counts: Tensor) -> list[RoundCounts]:
    """The counts of a round on the host, one per row."""
    rows = ((int(d), int(t), int(a), int(e), overlap) for d, t, a, e, *overlap in counts.tolist())
    return [RoundCounts(d, t, a, e, tuple(overlap[:t])) for d, t, a, e, overlap in rows]
