"""From what an engine tells of a decoded prompt to a trace: its rounds, and which of its seconds were decoding.

Knows counts and seconds; must not know engines. An engine's first token comes with the prompt: it is a round without a
draft.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.metrics import RoundCounts, Trace

STEP = RoundCounts(0, 0, 0, 1, ())
FIRST = "request/first"  # the span from a request to its first token, which results know by this name


@dataclass(frozen=True)
class Finished:
    """A prompt as an engine decoded it: new tokens, seconds from the request to the first and to the last of them, and
    of every round that drafted how many tokens were drafted and accepted."""

    tokens: tuple[int, ...]
    first: float
    last: float
    drafted: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()


def trace_of(found: Finished, new: int, share: float | None) -> Trace:
    """A trace of at most `new` tokens; `share` are its seconds where it was one of several in flight, else None.

    Of the seconds to the first token, what a later round takes counts as decoding, the rest as prefill.
    """
    rounds = rounds_of(found, new)
    step = (found.last - found.first) / (len(rounds) - 1) if len(rounds) > 1 else 0.0
    prefill = max(found.first - step, 0.0) if share is None else 0.0
    seconds = found.last - prefill if share is None else share
    return Trace(found.tokens, rounds, seconds, prefill, {FIRST: found.first})


def rounds_of(found: Finished, new: int) -> tuple[RoundCounts, ...]:
    """The first token, the rounds that drafted, and steps for the tokens that are left: rounds without a draft, whose
    places nobody tells."""
    rounds, at = [STEP], 1
    for drafted, accepted in zip(found.drafted, found.accepted, strict=True):
        if at < len(found.tokens):
            rounds.append(counted(drafted, accepted, new - at, len(found.tokens) - at))
            at += rounds[-1].emitted
    return (*rounds, *[STEP] * (len(found.tokens) - at))[: len(found.tokens)]


def counted(drafted: int, accepted: int, left: int, more: int) -> RoundCounts:
    """A round with `left` tokens yet to be decoded, the last of which is the target's own, of which `more` came: the
    sequence may end within it. How it turned out stands for the chance of it."""
    usable = min(drafted, left - 1)
    emitted = min(min(accepted, usable) + 1, more)
    accepted = min(accepted, usable, emitted)
    tested = accepted + (accepted < min(usable, emitted))
    overlap = (1.0,) * accepted + (0.0,) * (tested - accepted)
    return RoundCounts(drafted, tested, accepted, emitted, overlap, surplus=drafted - usable)


def traces_of(found: Sequence[Finished], new: int, wall: float, at_once: int) -> list[Trace]:
    """The traces of prompts that took so many seconds together, `at_once` of them in flight."""
    share = wall / len(found) if at_once > 1 else None
    return [trace_of(one, new, share) for one in found]
