"""From prompts to traces: the host's side of the loop, which reads the device once per round.

Knows what a whole sequence is (prompt, limit, EOS) and what a trace holds; must not know how a method works.
"""

from collections.abc import Iterator, Sequence

import torch

from specbench.decoding.loop import Speculate, Step
from specbench.decoding.randomness import Source
from specbench.decoding.rounds import Rounds, Stepwise
from specbench.decoding.timing import Clock, NullClock
from specbench.decoding.types import Context
from specbench.metrics import RoundCounts, Trace

BUCKET = 64  # sequence buffers and caches grow in these steps: a static cache is read whole, so it is kept small


def begin(
    prompts: Sequence[Sequence[int]], new: int, room: int, eos: Sequence[int], device: torch.device, length: int = 0
) -> Context:
    """A context of B prompts (at least one token each) with space after them for `new` tokens and `room` nodes.

    It has at least `length` places.
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
    """How long the buffers of a sequence are, for the longest prompt, the new tokens and the nodes after them."""
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
    """Decode up to `new` tokens after each prompt, one trace per row; `rounds` says how, step by step unless given.

    Raises NonFiniteError as soon as a model gives NaN; what the other prompts gave is not touched.
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
    return traces(context, [len(p) for p in prompts], rounds.counts(), seconds, prefill, spans)


def steps(method: Speculate, context: Context, new: int, rng: Source) -> Iterator[Step]:
    """The steps of `decode` from the context that `begin` gives, one by one. Raises NonFiniteError as `decode` does."""
    seen: list[Step] = []
    rounds = Stepwise(method, watch=seen.append)
    method.start(rounds.begin(context))
    while new > 0:
        new = rounds.advance(new, rng)
        yield seen.pop()


def traces(
    context: Context,
    starts: Sequence[int],
    counts: list[list[RoundCounts]],
    seconds: float,
    prefill: float,
    spans: dict[str, float],
) -> list[Trace]:
    """Read everything that the rounds left on the device, once, after the clock has stopped."""
    tokens, ends = context.seq.tolist(), context.pos.tolist()
    return [
        Trace(
            tuple(tokens[row][start : ends[row] + 1]),
            tuple(c[row] for c in counts if c[row].emitted),
            seconds,
            prefill,
            spans,
        )
        for row, start in enumerate(starts)
    ]
