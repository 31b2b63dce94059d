"""Which traces a decode can have left: numbers that no clock and no loop can produce are refused.

Knows traces and counts; must not know files.
"""

import math
from collections.abc import Sequence

from specbench.metrics import LevelCounts, RoundCounts, Trace

ROUNDING = 0.01  # by how much a sum of probabilities in a low-precision dtype may exceed 1


def possible(trace: Trace) -> Trace:
    """The trace itself; ValueError, saying what is impossible about it."""
    check_seconds(trace)
    for one in trace.rounds:
        check_counts(one)
        check_round(one)
        for level in one.inner:
            check_counts(level)
    emitted = sum(one.emitted for one in trace.rounds)
    if emitted != len(trace.tokens):
        raise ValueError(f"{len(trace.tokens)} tokens, where its rounds emitted {emitted}")
    return trace


def check_seconds(trace: Trace) -> None:
    times = {"seconds": trace.seconds, "prefill_seconds": trace.prefill_seconds, **trace.spans}
    for name, seconds in times.items():
        if not 0 <= seconds < math.inf:  # which NaN is not
            raise ValueError(f"{name} of {seconds}")
    if trace.tokens and not trace.seconds:
        raise ValueError(f"{len(trace.tokens)} tokens in 0 seconds")


def check_counts(one: RoundCounts | LevelCounts) -> None:
    """What was accepted had been tested, and what was tested drafted; a level is the sum of rounds."""
    counts = (one.accepted, one.tested, one.drafted, one.emitted)
    if any(type(count) is not int or count < 0 for count in counts) or not one.accepted <= one.tested <= one.drafted:
        raise ValueError("a round with drafted {2}, tested {1}, accepted {0}, emitted {3}".format(*counts))
    chances: Sequence[float] = one.overlap if isinstance(one, RoundCounts) else (one.overlap / max(one.tested, 1),)
    if not all(-ROUNDING <= chance <= 1 + ROUNDING for chance in chances):
        raise ValueError(f"a round with chances of acceptance {list(chances)[:4]}")


def check_round(one: RoundCounts) -> None:
    """A round emits what it accepted and one token more, fewer where the sequence ends; at least one."""
    if not 1 <= one.emitted <= one.accepted + 1:
        raise ValueError(f"a round with {one.emitted} emitted tokens, {one.accepted} of them accepted")
    if type(one.surplus) is not int or not 0 <= one.surplus <= one.drafted - one.tested:
        raise ValueError(
            f"a round with a surplus of {one.surplus}, where it drafted {one.drafted} and tested {one.tested}"
        )
    if len(one.overlap) != one.tested:
        raise ValueError(f"a round with {one.tested} tested tokens and {len(one.overlap)} chances of acceptance")
    if one.nodes < 0 or not 0 <= one.distance < math.inf:
        raise ValueError(f"a round with {one.nodes} nodes, a distance of {one.distance} from the target's distribution")
