"""The numbers of a cell stretch by stretch, in the order in which its prompts were decoded: how they change meanwhile.

Knows samples; must not know files or tables. A stretch lies within one phase: prompts of one category.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from specbench import metrics
from specbench.results.samples import Sample, speedup_of, without_updates

PER_PHASE = 3  # stretches of a phase
SHORTEST = 4  # prompts of a stretch at least
FEW = 8  # phases; with more of them, categories only alternate
WINDOW = 8  # prompts that a smoothed value is over at most, all of one phase


def in_time(samples: Sequence[Sample]) -> list[Sample]:
    return sorted(samples, key=lambda one: one.turn)


def phases(samples: Sequence[Sample]) -> list[list[Sample]]:
    """The samples in time, by phase; all in one where categories alternate."""
    found = [list(group) for _, group in groupby(in_time(samples), key=lambda one: one.category)]
    return found if len(found) <= FEW else [in_time(samples)]


def stretches(samples: Sequence[Sample]) -> Iterator[dict[str, Any]]:
    """One row per stretch: which requests, counted from 1, their phase, and their numbers."""
    before = 0
    for phase in phases(samples):
        count = max(min(PER_PHASE, len(phase) // SHORTEST), 1)
        for part in range(count):
            some = phase[part * len(phase) // count : (part + 1) * len(phase) // count]
            yield {"first": before + 1, "last": before + len(some), "phase": phase[0].category, **numbers_of(some)}
            before += len(some)


def smoothed(samples: Sequence[Sample]) -> Iterator[dict[str, Any]]:
    """One row per request: its phase, and the numbers over it and those before it, `WINDOW` at most."""
    number = 0
    for phase in phases(samples):
        for place in range(len(phase)):
            number += 1
            some = phase[max(place + 1 - WINDOW, 0) : place + 1]
            yield {"request": number, "phase": phase[0].category, **numbers_of(some)}


def numbers_of(samples: Sequence[Sample]) -> dict[str, float]:
    """Ratios of totals over some samples."""
    counts = metrics.acceptance([one for s in samples for one in s.method.rounds])
    return {
        "alpha": counts.alpha,
        "tokens_per_round": counts.tokens_per_round,
        "speedup": speedup_of(samples).value,
        "speedup_elsewhere": speedup_of([without_updates(s) for s in samples]).value,
    }
