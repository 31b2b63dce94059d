"""Batches as the clock saw them: prompts that were decoded together took their time together.

Knows of samples what it names; must not know what is made of them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from specbench.metrics import Trace
from specbench.results.noise import Timed
from specbench.wording import grouped


class Measured(Timed, Protocol):
    """What is read of a sample (bench.samples): besides its times the name of its batch, empty where it has none."""

    @property
    def cluster(self) -> str: ...


@dataclass(frozen=True)
class Decode:
    """What was decoded together, as one decode: all rounds and seconds, over a text of the mean length."""

    turn: int
    load: float | None
    prompt_tokens: int
    baseline: Trace
    method: Trace


def decodes(samples: Sequence[Measured]) -> list[list[int]]:
    """Places of the samples that were decoded together; every sample by itself where there were no batches."""
    return grouped(range(len(samples)), lambda i: (samples[i].turn, samples[i].cluster) if samples[i].cluster else i)


def pooled(samples: Sequence[Measured]) -> list[Timed]:
    """One entry per group of `decodes`."""
    return [together([samples[i] for i in group]) for group in decodes(samples)]


def together(some: Sequence[Measured]) -> Timed:
    if len(some) == 1:
        return some[0]
    mean = sum(s.prompt_tokens for s in some) // len(some)
    first, (base, ours) = some[0], (joined([s.baseline for s in some]), joined([s.method for s in some]))
    return Decode(first.turn, first.load, mean, base, ours)


def joined(traces: Sequence[Trace]) -> Trace:
    """One trace with the seconds and rounds of all, and as many tokens as they have in the mean."""
    tokens = [token for trace in traces for token in trace.tokens]
    return Trace(
        tuple(tokens[: len(tokens) // len(traces)]),
        tuple(one for trace in traces for one in trace.rounds),
        math.fsum(trace.seconds for trace in traces),
        math.fsum(trace.prefill_seconds for trace in traces),
    )
