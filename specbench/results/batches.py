"""Prompts that were decoded together share their time: as one decode, they are one value for statistics of times.

Knows samples; must not know which statistics.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from specbench.metrics import Trace
from specbench.results.samples import Sample
from specbench.wording import grouped

REQUESTS = 16  # of a turn at least, where they come at times of their own: fewer meet an empty server


def per_draw(batch: int, arrivals: float | None) -> int:
    """How many prompts there are at least in an independent draw of a time: those that are decoded together, or the
    requests of a turn, which wait for each other."""
    return batch if arrivals is None else REQUESTS


def decodes(samples: Sequence[Sample]) -> list[list[int]]:
    """Indices of the samples that were decoded together; each sample by itself where there were no batches."""
    return grouped(range(len(samples)), lambda i: (samples[i].turn, samples[i].cluster) if samples[i].cluster else i)


def pooled(samples: Sequence[Sample]) -> list[Sample]:
    """One sample per group of `decodes`."""
    return [together([samples[i] for i in group]) for group in decodes(samples)]


def together(samples: Sequence[Sample]) -> Sample:
    """What was decoded together as one sample: all rounds and seconds, over a prompt of the mean length."""
    first = samples[0]
    if len(samples) == 1:
        return first
    return replace(
        first,
        prompt_tokens=sum(s.prompt_tokens for s in samples) // len(samples),
        baseline=joined([s.baseline for s in samples]),
        method=joined([s.method for s in samples]),
    )


def joined(traces: Sequence[Trace]) -> Trace:
    """One trace with the seconds and rounds of all, and the mean number of tokens."""
    tokens = [token for trace in traces for token in trace.tokens]
    return Trace(
        tuple(tokens[: len(tokens) // len(traces)]),
        tuple(one for trace in traces for one in trace.rounds),
        math.fsum(trace.seconds for trace in traces),
        math.fsum(trace.prefill_seconds for trace in traces),
    )
