"""A stream of prompts through some rows: when the text of a row has ended, the next prompt takes its place.

Knows which prompt is in which row, and when; must not know how a method works, or how its rounds are run.
"""

from collections import abc
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch

from specbench.decoding.decode import begin, buffer_length
from specbench.decoding.loop import Speculate
from specbench.decoding.randomness import FromUniforms, SeededUniforms, Source
from specbench.decoding.rounds import Rounds, Stepwise
from specbench.decoding.timing import Clock, NullClock
from specbench.decoding.types import Context
from specbench.metrics import RoundCounts, Trace


@dataclass
class Sequence:
    """A prompt decoded in a row, from round `since` on and before round `until`; its new tokens once it has ended."""

    prompt: int
    row: int
    since: int = 0
    until: int = 0
    tokens: tuple[int, ...] = ()


@dataclass
class Times:
    """Seconds of all regions so far: of prefills, and of rounds with their phases."""

    clock: Clock
    prefill: float = 0.0
    rounds: float = 0.0
    spans: dict[str, float] = field(default_factory=dict)

    def prefilled(self, work: Callable[[], None]) -> None:
        self.clock.start()
        work()
        self.prefill += self.clock.stop()[0]

    def decoded(self, work: Callable[[], None]) -> None:
        self.clock.start()
        work()
        seconds, spans = self.clock.stop()
        self.rounds += seconds
        for phase, part in spans.items():
            self.spans[phase] = self.spans.get(phase, 0.0) + part


@torch.no_grad()
def decode_stream(
    method: Speculate,
    prompts: abc.Sequence[abc.Sequence[int]],
    *,
    rows: int,
    new: int,
    eos: abc.Sequence[int],
    rng: Source,
    device: torch.device,
    clock: Clock | None = None,
    rounds: Rounds | None = None,
    admitted: Callable[[int, int], None] = lambda row, prompt: None,
) -> list[Trace]:
    """Decode up to `new` tokens after each prompt in `rows` rows, one trace per prompt.

    Rows that no prompt is left for stay frozen. `admitted` is called with a row and the number of the prompt that takes
    its place there: who gave `rng` a seed per row gives that row another. Prefills are no part of the time of rounds,
    refills included. As the prompts of a stream share their time, each trace has an equal part of it: sums are right.
    Raises NonFiniteError as `decode` does.
    """
    stream = Stream(method, prompts, rows, new, rng, rounds or Stepwise(method), Times(clock or NullClock()), admitted)
    stream.run(eos, device)
    return stream.traces()


@dataclass
class Stream:
    """A decode of a stream while it goes on: which sequences are running, which are finished, and which are next."""

    method: Speculate
    prompts: abc.Sequence[abc.Sequence[int]]
    rows: int
    new: int
    rng: Source
    rounds: Rounds
    times: Times
    admitted: Callable[[int, int], None]
    context: Context = field(init=False)
    running: list[Sequence] = field(init=False)
    finished: list[Sequence] = field(default_factory=list)
    done: int = 0  # rounds

    def run(self, eos: abc.Sequence[int], device: torch.device) -> None:
        first = [self.prompts[min(row, len(self.prompts) - 1)] for row in range(self.rows)]
        room = self.method.drafter.room
        length = max(self.rounds.length, buffer_length(max(map(len, self.prompts)), self.new, room))
        context = begin(first, self.new, room, eos, device, length)
        context.live[len(self.prompts) :] = False  # shapes are those of all rows, also where there are fewer prompts
        self.context = self.rounds.begin(context)
        self.running = [Sequence(row, row) for row in range(min(self.rows, len(self.prompts)))]
        self.times.prefilled(lambda: self.method.start(self.context))
        left = self.new
        while self.running:
            if left:  # else a read that was under way has found the last rows ended
                self.times.decoded(partial(self.decode, left))
            ended = self.ended()
            if ended and self.method.carries is not None:
                self.times.decoded(partial(self.method.ended, self.context, [sequence.row for sequence in ended]))
            for sequence in ended:
                self.finish(sequence)
            left = max(self.rounds.left)

    @property
    def waiting(self) -> int:
        """How many prompts have not begun."""
        return len(self.prompts) - len(self.running) - len(self.finished)

    def ended(self) -> list[Sequence]:
        return [sequence for sequence in self.running if not self.rounds.left[sequence.row]]

    def decode(self, left: int) -> None:
        """Rounds until a row can be refilled, or all have ended; none is under way after it."""
        while left > 0:
            left = self.rounds.advance(left, self.rng)
            self.done += 1
            if self.waiting and self.ended():
                break
        self.rounds.settle()

    def finish(self, sequence: Sequence) -> None:
        """Note what became of a prompt and admit the next one in its row."""
        row, start = sequence.row, len(self.prompts[sequence.prompt])
        end = int(self.context.pos[row]) + 1
        sequence.until, sequence.tokens = self.done, tuple(self.context.seq[row, start:end].tolist())
        following = len(self.running) + len(self.finished)
        self.running.remove(sequence)
        self.finished.append(sequence)
        if following < len(self.prompts):
            self.running.append(Sequence(following, row, self.done))
            self.times.prefilled(lambda: self.admit(row, following))

    def admit(self, row: int, prompt: int) -> None:
        text = self.prompts[prompt]
        self.rounds.replaced(row, len(text), self.new)
        replace_row(self.context, row, text, self.new)
        self.method.admit(self.context, row)
        self.admitted(row, prompt)

    def traces(self) -> list[Trace]:
        """Read what the rounds left on the device, once, after the clock has stopped."""
        counts, share = self.rounds.counts(), 1 / len(self.prompts)
        seconds, prefill = self.times.rounds * share, self.times.prefill * share
        spans = {phase: part * share for phase, part in self.times.spans.items()}
        sequences = sorted(self.finished, key=lambda sequence: sequence.prompt)
        return [Trace(one.tokens, emitting(counts, one), seconds, prefill, dict(spans)) for one in sequences]


def emitting(counts: list[list[RoundCounts]], sequence: Sequence) -> tuple[RoundCounts, ...]:
    """The rounds in which a sequence emitted tokens."""
    rounds = (rows[sequence.row] for rows in counts[sequence.since : sequence.until])
    return tuple(one for one in rounds if one.emitted)


def replace_row(context: Context, row: int, prompt: abc.Sequence[int], new: int) -> None:
    """A prompt in the place of the text of a row, in place; up to `new` tokens may follow it."""
    ids = context.seq.new_zeros(context.seq.shape[1])
    ids[: len(prompt)] = torch.tensor(prompt, device=ids.device)
    context.seq[row] = ids
    context.pos[row] = len(prompt) - 1
    context.last[row] = len(prompt) - 1 + new
    context.live[row] = True
    context.finite[row] = True


def decode_batches(
    method: Speculate,
    prompts: abc.Sequence[abc.Sequence[int]],
    seeds: abc.Sequence[int],
    *,
    rows: int,
    new: int,
    eos: abc.Sequence[int],
    device: torch.device,
    certain: bool = False,
    agree: abc.Callable[[torch.Tensor], torch.Tensor] | None = None,
    clock: Clock | None = None,
    rounds: Rounds | None = None,
) -> list[Trace]:
    """`decode_stream` with a seed per prompt: with a static method its tokens are those that it has alone.

    certain, agree: see `FromUniforms`.
    """
    uniforms = SeededUniforms([seeds[min(row, len(seeds) - 1)] for row in range(rows)], device)
    return decode_stream(
        method,
        prompts,
        rows=rows,
        new=new,
        eos=eos,
        rng=FromUniforms(uniforms, certain, agree),
        device=device,
        clock=clock,
        rounds=rounds,
        admitted=lambda row, prompt: uniforms.reseed(row, seeds[prompt]),
    )
