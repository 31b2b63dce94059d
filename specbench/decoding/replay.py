"""Rounds that a device replays by itself: the host starts a round before it has read the one before.

Knows in which order the host may start and read; must not know how a round is captured.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from specbench.decoding.levels import read_counts
from specbench.decoding.loop import Speculate
from specbench.decoding.randomness import FromUniforms, Source
from specbench.decoding.rounds import Play, Whole, read_rows, state
from specbench.decoding.types import Context
from specbench.metrics import RoundCounts

FLIGHT = 2  # rounds between host and device; each has a capture of its own, which must be read before it goes again


class Replay(Protocol):
    """A captured round."""

    def launch(self) -> Tensor:
        """Start it without waiting; the tensor will hold its counts."""
        ...

    def read(self) -> Tensor:
        """Its state (see `rounds.state`) on the host, which waits until it has ended."""
        ...


@dataclass
class Replayed:
    """Every round is a replay on a context that stays where it is; at most one host read a round, and one round late.

    `ready` makes the round of each of `reaches` cheap to call, once, and `capture` makes replays of it: two, which take
    turns. A round that starts after all rows have ended emits nothing; it happens only where an end token ended them.
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
        while self._flight:  # of a decode that failed: what was started must be read before it is started again
            self._flight.popleft().read()
        context = self._whole.begin(context)
        self.left, self._end = read_rows(state(context))
        self._counts = []
        return context

    def replaced(self, row: int, end: int, left: int) -> None:
        assert not self._flight, "what is under way knows the row as it was: settle first"
        self.left[row], self._end = left, max(self._end, end)

    def prime(self, context: Context, source: FromUniforms) -> None:
        """Capture the rounds of every reach, on a text that is then forgotten."""
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
        # What is in flight may have ended everything: then the host waits for it instead of starting another round.
        self._land(FLIGHT - 1)
        if max(self.left) <= most * len(self._flight):
            self._land(0)
        return max(self.left)

    def settle(self) -> None:
        self._land(0)

    def _land(self, flying: int) -> None:
        """Read the oldest rounds until only so many are under way."""
        while len(self._flight) > flying:
            self.left, self._end = read_rows(self._flight.popleft().read())

    def counts(self) -> list[list[RoundCounts]]:
        return [read_counts(counts) for counts in self._counts]
