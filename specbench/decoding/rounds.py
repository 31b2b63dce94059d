"""How the rounds of a method are executed: stepwise, or each as one call of a prepared function."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Protocol

import torch
from torch import Tensor

from specbench.decoding.loop import Speculate, Step
from specbench.decoding.randomness import Counted, Drawn, FromUniforms, Source, Stream
from specbench.decoding.types import STEP, Context, Round, packed, read_counts
from specbench.errors import SpecbenchError
from specbench.metrics import RoundCounts

Play = Callable[[], tuple[Tensor, Tensor]]  # one round: the state that the host reads, and its counts


class NonFiniteError(SpecbenchError):
    """A model gave NaN or infinite logits."""

    exit_code = 6


class Rounds(Protocol):
    @property
    def length(self) -> int:
        """The number of slots that a context must have; 0 if any will do."""

    @property
    def left(self) -> list[int]:
        """The number of tokens that every row may still emit, 0 if it has ended, as last read by the host."""

    def begin(self, context: Context) -> Context:
        """Begin a decode with the contents of `context`; returns the context that the rounds will change."""

    def replaced(self, row: int, end: int, left: int) -> None:
        """Between two rounds a sequence of `end` tokens replaced the one in `row`; it may grow by `left`."""

    def advance(self, left: int, rng: Source) -> int:
        """One round. `left` and the result: how many tokens the longest live row may still emit, 0 when all ended."""

    def settle(self) -> None:
        """Wait for pending rounds: their time belongs to the rounds."""

    def counts(self) -> list[list[RoundCounts]]:
        """The counts of all rounds since `begin`, one per row; the host reads them here, after the clock."""


@dataclass
class Stepwise:
    """The host calls every part of a round; methods that adapt, or are nested, allow no other way.

    Passes read as many slots as there are tokens, rounded up to a multiple of 64; all of them
    if `length` is given. `watch` receives every step; only its counts are kept.
    """

    method: Speculate
    length: int = 0
    watch: Callable[[Step], None] = field(default=lambda step: None, repr=False)
    left: list[int] = field(default_factory=list, init=False, repr=False)
    _context: Context = field(init=False, repr=False)
    _rounds: list[Round] = field(init=False, repr=False)
    _end: int = field(default=0, init=False, repr=False)  # no committed token is after this position

    def begin(self, context: Context) -> Context:
        self._context, self._rounds, self._end = context, [], int(context.pos.max()) + 1
        return context

    def replaced(self, row: int, end: int, left: int) -> None:
        self.left[row], self._end = left, max(self._end, end)

    def advance(self, left: int, rng: Source) -> int:
        self.method.clock.lap("host")
        context = self._context
        if not self.length:
            context.tight = context.rows == 1 and self.method.drafter.room == 0
            step = 1 if context.tight else STEP
            needed = self._end + self.method.drafter.room
            context.reach = min(context.seq.shape[1], -(-needed // step) * step)
        done = self.method.advance(context, budget(self.method, left), rng)
        self._rounds.append(done.round)
        self.watch(done)
        self.left, self._end = read_rows(state(context))
        return max(self.left)

    def settle(self) -> None:
        return

    def counts(self) -> list[list[RoundCounts]]:
        return [read_counts(packed(done)) for done in self._rounds]


def budget(method: Speculate, left: int) -> int | None:
    """The levels that the host lets a method draft if rows may still emit up to `left` tokens.

    A static method drafts equally many in every round, in every tier; so it draws equally many
    numbers, and emits the same tokens.
    """
    return None if method.drafter.static else left - 1


@dataclass
class Whole:
    """Every round is one call, on a context, caches and uniforms at fixed addresses.

    `ready` makes a function cheap to call (compiles it); there is one for each of `reaches`, the
    numbers of slots that passes read, in rising order and at most `length`. The method must be static.
    """

    method: Speculate
    length: int
    reaches: Sequence[int]
    ready: Callable[[Play], Play]
    _context: Context | None = field(default=None, init=False, repr=False)
    _source: FromUniforms = field(init=False, repr=False)  # turns draws into decisions
    _uniforms: dict[Stream, Tensor] = field(default_factory=dict, init=False, repr=False)
    _plays: dict[int, Play] = field(default_factory=dict, init=False, repr=False)
    _counts: list[Tensor] = field(default_factory=list, init=False, repr=False)
    _end: int = field(default=0, init=False, repr=False)  # no committed token is after this position
    left: list[int] = field(default_factory=list, init=False, repr=False)

    def begin(self, context: Context) -> Context:
        if self._context is None:
            self._context = context
        for one in fields(Context):
            if one.name not in ("reach", "tight"):
                getattr(self._context, one.name).copy_(getattr(context, one.name))
        self._counts, self._end = [], int(context.pos.max()) + 1
        return self._context

    def replaced(self, row: int, end: int, left: int) -> None:
        self.left[row], self._end = left, max(self._end, end)

    def prime(self, context: Context, source: FromUniforms) -> None:
        """Prepare the round of every reach, on a text that is then discarded."""
        self.method.start(self.begin(context))
        self._source, counted = source, Counted(source.uniforms)
        self.method.advance(context, None, replace(source, uniforms=counted))
        like = context.finite.new_zeros((context.rows, 0), dtype=torch.float64)
        self._uniforms = {stream: like.new_zeros((context.rows, n)) for stream, n in counted.sizes.items()}
        for reach in reversed(self.reaches):  # the largest first: the others' memory fits into its memory
            self.method.start(self.begin(context))
            self._plays[reach] = self.ready(self.round(reach))
            self._plays[reach]()

    def round(self, reach: int) -> Play:
        """A round whose passes read `reach` slots, as a function of objects at fixed addresses only."""
        context, source, uniforms = self._context, self._source, self._uniforms
        assert context is not None

        def play() -> tuple[Tensor, Tensor]:
            context.reach = reach
            done = self.method.advance(context, None, replace(source, uniforms=Drawn(uniforms))).round
            return state(context), packed(done)

        return play

    def advance(self, left: int, rng: Source) -> int:
        self.method.clock.lap("host")
        self.draw(rng)
        seen, counts = self._plays[self.reach(self._end)]()
        self._counts.append(counts)
        self.left, self._end = read_rows(seen)
        return max(self.left)

    def settle(self) -> None:
        return

    def draw(self, rng: Source) -> None:
        """The uniforms of the next round, as the round's own calls would draw them."""
        assert isinstance(rng, FromUniforms), "rounds that are one call draw their uniforms before"
        for stream, kept in self._uniforms.items():
            kept.copy_(rng.uniforms(tuple(kept.shape), stream))

    def reach(self, end: int) -> int:
        """The number of slots that the passes of a round must read if all committed tokens are before `end`."""
        needed = end + self.method.drafter.room
        return next((reach for reach in self.reaches if reach >= needed), self.reaches[-1])

    def counts(self) -> list[list[RoundCounts]]:
        return [read_counts(counts) for counts in self._counts]


def state(context: Context) -> Tensor:
    """[3, B] what the host must know after a round: tokens left, whether all rows were finite, the last position."""
    return torch.stack([(context.last - context.pos) * context.live, context.finite.long(), context.pos])


def read_rows(seen: Tensor) -> tuple[list[int], int]:
    """(tokens left in every row, the position after the last committed token of any row) of a `state`."""
    left, finite, pos = seen.tolist()
    if not all(finite):
        raise NonFiniteError(
            f"a model gave NaN or infinite logits (row {finite.index(0)} of the batch): no token was drawn from them; "
            "try --dtype float32, or check the checkpoint"
        )
    return left, max(pos) + 1


# --- replay -----------------------------------------------------------------------------------------------------------
# Rounds that a device replays: the host starts a round before it has read the previous one.

FLIGHT = 2  # rounds between host and device; each has its own capture, which must be read before it is replayed


class Replay(Protocol):
    def launch(self) -> Tensor:
        """Start it without waiting; the tensor will hold its counts."""

    def read(self, idle: bool = False) -> Tensor:
        """Its state (see `rounds.state`) on the host, which waits until it has ended. An idle one began when all
        rows had ended: a host that knew would not have started it, so the clock leaves its time out."""


@dataclass
class Replayed:
    """Every round is a replay on a context at a fixed address; at most one host read a round, one round late.

    `ready` makes the round of each of `reaches` cheap to call, once, and `capture` makes two replays of it, which
    alternate. A round that starts after all rows have ended emits nothing, and takes no time of the clock's; it occurs
    only if an end token ended them.
    """

    method: Speculate
    length: int
    reaches: tuple[int, ...]
    ready: Callable[[Play], Play]
    capture: Callable[[Play], Replay]
    left: list[int] = field(default_factory=list, init=False, repr=False)
    _whole: Whole = field(init=False, repr=False)
    _replays: dict[int, list[Replay]] = field(default_factory=dict, init=False, repr=False)
    _flight: deque[Replay] = field(default_factory=deque, init=False, repr=False)
    _counts: list[Tensor] = field(default_factory=list, init=False, repr=False)
    _end: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        self._whole = Whole(self.method, self.length, self.reaches, lambda play: play)

    def begin(self, context: Context) -> Context:
        while self._flight:  # after a failed decode: started rounds must be read before they are started again
            self._flight.popleft().read()
        context = self._whole.begin(context)
        self.left, self._end = read_rows(state(context))
        self._counts = []
        return context

    def replaced(self, row: int, end: int, left: int) -> None:
        assert not self._flight, "a round in progress uses the old row: settle first"
        self.left[row], self._end = left, max(self._end, end)

    def prime(self, context: Context, source: FromUniforms) -> None:
        """Capture the rounds of every reach, on a text that is then discarded."""
        self._whole.prime(context, source)
        for reach in reversed(self.reaches):
            self.method.start(self._whole.begin(context))
            play = self.ready(self._whole.round(reach))
            self._replays[reach] = [self.capture(play) for _ in range(FLIGHT)]

    def advance(self, left: int, rng: Source) -> int:
        most = self.method.drafter.room + 1  # tokens that a round may emit
        self._whole.draw(rng)
        replays = self._replays[self._whole.reach(self._end + most * len(self._flight))]
        replay = replays[len(self._counts) % FLIGHT]
        self._counts.append(replay.launch())
        self._flight.append(replay)
        # Pending rounds may have ended everything: then the host waits for them instead of starting another round.
        self._land(FLIGHT - 1)
        if max(self.left) <= most * len(self._flight):
            self._land(0)
        return max(self.left)

    def settle(self) -> None:
        self._land(0)

    def _land(self, flying: int) -> None:
        """Read the oldest rounds until at most `flying` are pending."""
        while len(self._flight) > flying:
            self.left, self._end = read_rows(self._flight.popleft().read(idle=not any(self.left)))

    def counts(self) -> list[list[RoundCounts]]:
        return [read_counts(counts) for counts in self._counts]
