"""Which traces a decode can have left: numbers that no clock and no loop can produce are refused.

Knows traces and counts; must not know files.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from specbench.metrics import LevelCounts, RoundCounts, Trace
from specbench.results.losslessness import Agreement, Losslessness
from specbench.settings import is_number

DEEPEST = 4096  # tokens that a round may draft, eight times the largest K: there is a column for each
ROUNDING = 0.01  # by how much a sum of probabilities in a low-precision dtype may exceed 1


def possible(trace: Trace) -> Trace:
    """The trace itself; ValueError, saying what is impossible about it."""
    check_seconds(trace)
    check_draftable(trace)
    if type(trace.choice) is not str:
        raise ValueError(f"a choice of {str(trace.choice)[:40]}")
    if any(type(token) is not int or token < 0 for token in trace.tokens):
        raise ValueError("tokens that are no whole numbers from 0 on")
    for one in trace.rounds:
        check_counts(one)
        check_round(one)
        for level in one.inner:
            check_counts(level)
    emitted = sum(one.emitted for one in trace.rounds)
    if emitted != len(trace.tokens):
        raise ValueError(f"{len(trace.tokens)} tokens, where its rounds emitted {emitted}")
    return trace


def check_sample(about: Mapping[str, Any]) -> None:
    """ValueError for what is said of a sample besides its traces, where it is of another kind than it must be."""
    texts = [about[name] for name in ("prompt", "category", "cluster")]
    counts = [about[name] for name in ("repeat", "prompt_tokens", "turn")] + list(about["order"])
    if any(type(text) is not str for text in texts) or any(type(one) is not int or one < 0 for one in counts):
        raise ValueError(f"a sample of {str(texts)[:80]} with the counts {str(counts)[:80]}")
    load = about["load"]
    if load is not None and not (is_number(load) and 0 <= load < math.inf):
        raise ValueError(f"a load of {str(load)[:40]}")


def check_draftable(trace: Trace) -> None:
    most = len(trace.tokens)
    if trace.draftable is not None and not (type(trace.draftable) is int and 0 <= trace.draftable <= most):
        raise ValueError(f"{str(trace.draftable)[:40]} of {most} tokens in the draft's vocabulary")


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
    if one.drafted > DEEPEST:
        raise ValueError(f"a round with {one.drafted} drafted tokens, where {DEEPEST} are the most")
    if len(one.overlap) != one.tested:
        raise ValueError(f"a round with {one.tested} tested tokens and {len(one.overlap)} chances of acceptance")
    if one.belief and not (len(one.belief) == one.tested and all(map(is_belief, one.belief))):
        raise ValueError(f"a round with {one.tested} tested tokens that believed {str(one.belief)[:80]} of them")
    if one.nodes < 0 or not 0 <= one.distance < math.inf:
        raise ValueError(f"a round with {one.nodes} nodes, a distance of {one.distance} from the target's distribution")


def is_belief(held: Any) -> bool:
    """Whether it is what can be believed of a token: a chance, or nothing."""
    return held is None or (is_number(held) and 0 <= held <= 1 + ROUNDING)


def agreeing(found: Losslessness) -> Losslessness:
    """How outputs were compared, itself; ValueError where it contradicts itself."""
    counts = (found.identical, found.compared)
    if found.verdict not in get_args(Agreement) or any(type(one) is not int or one < 0 for one in counts):
        raise ValueError(f"an output that is {str(found.verdict)[:40]}, with {str(counts)[:40]} prompts")
    if found.identical > found.compared or (found.verdict == "identical" and found.identical < found.compared):
        raise ValueError(f"an output that is {found.verdict} on {found.identical} of {found.compared} prompts")
    if not all(one is None or is_number(one) for one in (found.first_divergence, found.gap, found.noise)):
        raise ValueError("a divergence that is no number")
    return found
