"""From prompts to traces: the host side of the loop, which reads the device once per round."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from specbench.decoding.loop import Speculate, Step
from specbench.decoding.randomness import FromUniforms, SeededUniforms, Source
from specbench.decoding.rounds import Rounds, Stepwise
from specbench.decoding.timing import Clock, NullClock
from specbench.decoding.types import Context
from specbench.metrics import Trace

BUCKET = 64  # sequence buffers and caches grow in these steps; a static cache is read whole, so it is kept small


def begin(
    prompts: Sequence[Sequence[int]], new: int, room: int, eos: Sequence[int], device: torch.device, length: int = 0
) -> Context:
    """A context of B prompts (at least one token each) with space after them for `new` tokens and `room` nodes.

    It has at least `length` slots.
    """
    if not prompts or not all(prompts):
        raise ValueError("every prompt needs at least one token")
    longest = max(map(len, prompts))
    length = max(length, buffer_length(longest, new, room))
    seq = torch.zeros((len(prompts), length), dtype=torch.long)
    for row, prompt in enumerate(prompts):
        seq[row, : len(prompt)] = torch.tensor(prompt)
    pos = torch.tensor([len(prompt) - 1 for prompt in prompts])
    alive = torch.ones(len(prompts), dtype=torch.bool)
    ends = torch.tensor(sorted(eos), dtype=torch.long)
    seq, pos, alive, ends = (tensor.to(device) for tensor in (seq, pos, alive, ends))
    return Context(seq, pos, alive, pos + new, ends, alive.clone(), length)


def buffer_length(longest: int, new: int, room: int) -> int:
    """The length of a sequence's buffers, for the longest prompt, the new tokens and the nodes after them."""
    return -(-(longest + new + room + 2) // BUCKET) * BUCKET


@torch.no_grad()
def decode(
    method: Speculate,
    prompts: Sequence[Sequence[int]],
    *,
    new: int,
    eos: Sequence[int],
    rng: Source,
    device: torch.device,
    clock: Clock | None = None,
    rounds: Rounds | None = None,
) -> list[Trace]:
    """Decode up to `new` tokens after each prompt, one trace per row; `rounds` executes them, stepwise by default.

    Raises NonFiniteError as soon as a model gives NaN; results of other prompts are not affected.
    """
    clock, rounds = clock or NullClock(), rounds or Stepwise(method)
    context = rounds.begin(begin(prompts, new, method.drafter.room, eos, device, rounds.length))
    clock.start()
    method.start(context)
    prefill, _ = clock.stop()
    clock.start()
    left = new  # of the longest row
    while left > 0:
        left = rounds.advance(left, rng)
    method.ended(context, range(context.rows))
    seconds, spans = clock.stop()
    tokens, ends, counts = context.seq.tolist(), context.pos.tolist(), rounds.counts()
    found = []
    for row, prompt in enumerate(prompts):
        emitting = tuple(done[row] for done in counts if done[row].emitted)
        found.append(Trace(tuple(tokens[row][len(prompt) : ends[row] + 1]), emitting, seconds, prefill, spans))
    return found


def steps(method: Speculate, context: Context, new: int, rng: Source) -> Iterator[Step]:
    """The steps of `decode` from the context of `begin`, one by one. Raises NonFiniteError as `decode` does."""
    seen: list[Step] = []
    rounds = Stepwise(method, watch=seen.append)
    method.start(rounds.begin(context))
    while new > 0:
        new = rounds.advance(new, rng)
        yield seen.pop()


# --- batch ------------------------------------------------------------------------------------------------------------
# A stream of prompts through a fixed number of rows: when a sequence ends, the next prompt takes its row.


@dataclass
class Request:
    """A prompt decoded in a row, from round `since` and before round `until`; its new tokens once it has ended."""

    prompt: int
    row: int
    since: int = 0
    until: int = 0
    tokens: tuple[int, ...] = ()


@dataclass
class Stream:
    """A stream being decoded: its running, finished and waiting sequences.

    `admitted` is called with a row and the number of its new prompt.
    """

    method: Speculate
    prompts: Sequence[Sequence[int]]
    rows: int
    new: int
    rng: Source
    rounds: Rounds
    clock: Clock
    admitted: Callable[[int, int], None]
    context: Context = field(init=False)
    running: list[Request] = field(init=False)
    finished: list[Request] = field(default_factory=list)
    done: int = 0  # rounds
    prefill: float = 0.0  # seconds so far, and those of rounds with their phases
    seconds: float = 0.0
    spans: dict[str, float] = field(default_factory=dict)

    def run(self, eos: Sequence[int], device: torch.device) -> None:
        first = [self.prompts[min(row, len(self.prompts) - 1)] for row in range(self.rows)]
        room = self.method.drafter.room
        length = max(self.rounds.length, buffer_length(max(map(len, self.prompts)), self.new, room))
        context = begin(first, self.new, room, eos, device, length)
        context.live[len(self.prompts) :] = False  # shapes are those of all rows, also with fewer prompts
        self.context = self.rounds.begin(context)
        self.running = [Request(row, row) for row in range(min(self.rows, len(self.prompts)))]
        self.prefilled(lambda: self.method.start(self.context))
        left = self.new
        while self.running:
            if left:  # otherwise a pending read has shown that the last rows ended
                self.timed(partial(self.decode, left))
            ended = self.ended()
            if ended and self.method.carries is not None:
                self.timed(partial(self.method.ended, self.context, [sequence.row for sequence in ended]))
            for sequence in ended:
                self.finish(sequence)
            left = max(self.rounds.left)

    def prefilled(self, work: Callable[[], None]) -> None:
        self.clock.start()
        work()
        self.prefill += self.clock.stop()[0]

    def timed(self, work: Callable[[], None]) -> None:
        self.clock.start()
        work()
        seconds, spans = self.clock.stop()
        self.seconds += seconds
        for phase, part in spans.items():
            self.spans[phase] = self.spans.get(phase, 0.0) + part

    @property
    def waiting(self) -> int:
        return len(self.prompts) - len(self.running) - len(self.finished)

    def ended(self) -> list[Request]:
        return [sequence for sequence in self.running if not self.rounds.left[sequence.row]]

    def decode(self, left: int) -> None:
        """Run rounds until a row can be refilled, or all have ended; no round is pending afterwards."""
        while left > 0:
            left = self.rounds.advance(left, self.rng)
            self.done += 1
            if self.waiting and self.ended():
                break
        self.rounds.settle()

    def finish(self, sequence: Request) -> None:
        """Record the result of a prompt and admit the next one in its row."""
        row, start = sequence.row, len(self.prompts[sequence.prompt])
        end = int(self.context.pos[row]) + 1
        sequence.until, sequence.tokens = self.done, tuple(self.context.seq[row, start:end].tolist())
        following = len(self.running) + len(self.finished)
        self.running.remove(sequence)
        self.finished.append(sequence)
        if following < len(self.prompts):
            self.running.append(Request(following, row, self.done))
            self.prefilled(lambda: self.admit(row, following))

    def admit(self, row: int, prompt: int) -> None:
        text = self.prompts[prompt]
        self.rounds.replaced(row, len(text), self.new)
        ids = self.context.seq.new_zeros(self.context.seq.shape[1])
        ids[: len(text)] = torch.tensor(text, device=ids.device)
        self.context.seq[row] = ids
        self.context.pos[row] = len(text) - 1
        self.context.last[row] = len(text) - 1 + self.new
        self.context.live[row] = True
        self.context.finite[row] = True
        self.method.admit(self.context, row)
        self.admitted(row, prompt)

    def traces(self) -> list[Trace]:
        counts, share = self.rounds.counts(), 1 / len(self.prompts)
        seconds, prefill = self.seconds * share, self.prefill * share
        spans = {phase: part * share for phase, part in self.spans.items()}
        sequences = sorted(self.finished, key=lambda sequence: sequence.prompt)
        found = []
        for one in sequences:
            rounds = (rows[one.row] for rows in counts[one.since : one.until])
            emitting = tuple(done for done in rounds if done.emitted)
            found.append(Trace(one.tokens, emitting, seconds, prefill, dict(spans)))
        return found


@torch.no_grad()
def decode_batches(
    method: Speculate,
    prompts: Sequence[Sequence[int]],
    seeds: Sequence[int],
    *,
    rows: int,
    new: int,
    eos: Sequence[int],
    device: torch.device,
    certain: bool = False,
    agree: Callable[[torch.Tensor], torch.Tensor] | None = None,
    clock: Clock | None = None,
    rounds: Rounds | None = None,
) -> list[Trace]:
    """Decode up to `new` tokens after each prompt in `rows` rows, one trace per prompt.

    There is a seed per prompt: with a static method a prompt gets the same tokens as when decoded alone. certain,
    agree: see `FromUniforms`. Rows without a remaining prompt stay frozen. Prefills, refills included, do not count
    in the time of rounds. The prompts share the time: each trace has an equal part, and sums are correct. Raises
    NonFiniteError as `decode` does.
    """
    uniforms = SeededUniforms([seeds[min(row, len(seeds) - 1)] for row in range(rows)], device)
    rng = FromUniforms(uniforms, certain, agree)

    def admitted(row: int, prompt: int) -> None:
        uniforms.reseed(row, seeds[prompt])

    stream = Stream(method, prompts, rows, new, rng, rounds or Stepwise(method), clock or NullClock(), admitted)
    stream.run(eos, device)
    return stream.traces()
