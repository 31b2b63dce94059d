"""From prompts to traces: the host's side of the loop, which reads the device once per round.

Knows what a whole sequence is (prompt, limit, EOS) and what a trace holds; must not know how a method works.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from specbench.decoding.loop import Speculate
from specbench.decoding.randomness import Source
from specbench.decoding.types import Context, Round
from specbench.errors import SpecbenchError
from specbench.metrics import RoundCounts
from specbench.timing import Clock, NullClock

BUCKET = 64  # sequence buffers and caches grow in these steps: a static cache is read whole, so it is kept small


class NonFiniteError(SpecbenchError):
    """A model gave a row that is no law (NaN or infinite logits)."""

    exit_code = 6


@dataclass(frozen=True)
class Trace:
    """What one row left behind: new tokens, counts by round, decode and prefill seconds, decode seconds by phase.

    Rows decoded together share their seconds.
    """

    tokens: tuple[int, ...]
    rounds: tuple[RoundCounts, ...]
    seconds: float = 0.0
    prefill_seconds: float = 0.0
    spans: dict[str, float] = field(default_factory=dict)


def begin(prompts: Sequence[Sequence[int]], new: int, room: int, eos: Sequence[int], device: torch.device) -> Context:
    """A context of B prompts (at least one token each) with space behind them for `new` tokens and `room` nodes."""
    if not prompts or not all(prompts):
        raise ValueError("every prompt needs at least one token")
    longest = max(map(len, prompts))
    length = -(-(longest + new + room + 2) // BUCKET) * BUCKET
    seq = torch.zeros((len(prompts), length), dtype=torch.long)
    for row, prompt in enumerate(prompts):
        seq[row, : len(prompt)] = torch.tensor(prompt)
    pos = torch.tensor([len(prompt) - 1 for prompt in prompts])
    alive = torch.ones(len(prompts), dtype=torch.bool)
    state = (seq, pos, alive, pos + new, torch.tensor(sorted(eos), dtype=torch.long), alive.clone())
    return Context(*(tensor.to(device) for tensor in state))


@torch.inference_mode()
def decode(
    method: Speculate,
    prompts: Sequence[Sequence[int]],
    *,
    new: int,
    eos: Sequence[int],
    rng: Source,
    device: torch.device,
    clock: Clock | None = None,
) -> list[Trace]:
    """Decode up to `new` tokens after each prompt, one trace per row.

    Raises NonFiniteError as soon as a model's row is no law; what the other prompts gave is not touched.
    """
    clock = clock or NullClock()
    context = begin(prompts, new, method.drafter.room, eos, device)
    clock.start()
    method.start(context)
    prefill, _ = clock.stop()
    clock.start()
    rounds: list[Round] = []
    left = new
    while left > 0:
        rounds.append(method.advance(context, left - 1, rng).round)
        left = levels_left(context)
    seconds, spans = clock.stop()
    return traces(context, [len(p) for p in prompts], rounds, seconds, prefill, spans)


def levels_left(context: Context) -> int:
    """The host read of every round: how many tokens the longest live row may still emit; 0 when all rows have ended.

    A schedule that adapts reads besides (see `schedule`), a speculation inside another once per inner round.
    """
    state = torch.stack([(context.last - context.pos) * context.live, context.finite.long()]).tolist()
    if not all(state[1]):
        row = state[1].index(0)
        raise NonFiniteError(
            f"a model gave NaN or infinite logits (row {row} of the batch): no token was drawn from them; "
            "try --dtype float32, or check the checkpoint"
        )
    return int(max(state[0]))


def traces(
    context: Context,
    starts: Sequence[int],
    rounds: list[Round],
    seconds: float,
    prefill: float,
    spans: dict[str, float],
) -> list[Trace]:
    """Read everything that the rounds left on the device, once, after the clock has stopped."""
    tokens, ends = context.seq.tolist(), context.pos.tolist()
    counts = [read_counts(r) for r in rounds]
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


def read_counts(done: Round) -> list[RoundCounts]:
    """The counts of a round on the host, one per row."""
    numbers = torch.stack([done.drafted, done.tested, done.accepted, done.emitted], 1).tolist()
    overlaps = done.overlap.double().tolist()
    return [
        RoundCounts(drafted, tested, accepted, emitted, tuple(overlap[:tested]))
        for (drafted, tested, accepted, emitted), overlap in zip(numbers, overlaps, strict=True)
    ]
