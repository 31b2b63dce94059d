"""Rounds from what a server tells of them: its counters, its totals for a request, or the pieces of a stream.

Knows counts; must not know HTTP or specs. A server's first token comes with the prompt and is a round without a draft.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from specbench.backends.server.client import WIDEST, Answer, Counters
from specbench.metrics import RoundCounts
from specbench.wording import clean

STEP = RoundCounts(0, 0, 0, 1, ())
FROM_COUNTERS = "acceptance from the server's counters (/metrics)"
FROM_TOTALS = "acceptance from the totals of each request: by position it is a mean"
FROM_PIECES = (
    "acceptance from the pieces of the streams, one per round, with the K of --k: a server that sends several pieces a "
    "round seems to accept less"
)
UNKNOWN = "the server says nothing of acceptance: every token counts as a round"


def impossible(found: Counters | None, answers: Sequence[Answer], most: int) -> str | None:
    """What cannot be in the counts of a server that was to decode at most `most` tokens; None where all can."""
    for answer in answers:
        drafted, accepted = (answer.timings.get(name) for name in ("draft_n", "draft_n_accepted"))
        if type(drafted) is int and type(accepted) is int and not 0 <= accepted <= drafted <= most * WIDEST:
            said = f"{clean(drafted)} drafted and {clean(accepted)} accepted tokens"
            return f"an answer (timings) counts {said}: see what it logs"
    if found is None:
        return None
    if min(found.drafts, found.drafted, found.accepted, *found.by_position) < 0:
        return "its counters (/metrics) went back: it was started again meanwhile"
    accepted = max(found.accepted, sum(found.by_position))
    if found.drafts > most or not accepted <= found.drafted <= found.drafts * WIDEST:
        return (
            f"its counters (/metrics) rose by {clean(found.drafts)} rounds, {clean(found.drafted)} drafted and "
            f"{clean(accepted)} accepted tokens for at most {most} new ones: nobody else may use it meanwhile"
        )
    return None


def from_counters(found: Counters, answers: Sequence[Answer]) -> list[tuple[RoundCounts, ...]]:
    """The rounds of some answers that came while the counters rose by so much, a fair part for each. How many rounds
    accepted so many tokens is exact where the server counts them by position."""
    places = sorted(found.by_position)
    accepted = [len(places) - bisect_right(places, number) for number in range(found.drafts)]
    if not places:
        accepted = spread(found.accepted, found.drafts)
    drafted = [max(pair) for pair in zip(spread(found.drafted, found.drafts), accepted, strict=True)]
    rounds = [counted(*pair) for pair in zip(drafted, accepted, strict=True)]
    parts = len(answers)
    return [fitted(rounds[number::parts], answer.tokens) for number, answer in enumerate(answers)]


def from_totals(answer: Answer) -> tuple[RoundCounts, ...] | None:
    """The rounds of one answer by llama.cpp's `draft_n` and `draft_n_accepted`; None where it has none."""
    drafted, accepted = answer.timings.get("draft_n"), answer.timings.get("draft_n_accepted")
    if not isinstance(drafted, int) or not isinstance(accepted, int) or not 0 <= accepted < max(answer.tokens, 1):
        return None
    number = answer.tokens - 1 - accepted
    pairs = zip(spread(drafted, number), spread(accepted, number), strict=True)
    return fitted([counted(max(pair), pair[1]) for pair in pairs], answer.tokens)


def from_pieces(answer: Answer, k: int) -> tuple[RoundCounts, ...] | None:
    """The rounds of one answer by its pieces, each at most K + 1 tokens; None where every token came by itself."""
    number = len(answer.arrived) - 1
    accepted = answer.tokens - 1 - number
    if accepted <= 0 or accepted > number * k:
        return None
    return fitted([counted(k, one) for one in spread(accepted, number)], answer.tokens)


def spread(total: int, parts: int) -> list[int]:
    """A total in so many parts that are as equal as may be."""
    return [total // parts + (number < total % parts) for number in range(parts)] if parts else []


def counted(drafted: int, accepted: int) -> RoundCounts:
    tested = min(accepted + 1, drafted)
    return RoundCounts(drafted, tested, accepted, accepted + 1, (1.0,) * accepted + (0.0,) * (tested - accepted))


def fitted(rounds: Sequence[RoundCounts], tokens: int) -> tuple[RoundCounts, ...]:
    """The first token, the rounds as far as the tokens go, and rounds without a draft for what is left of these."""
    found, left = [STEP], tokens - 1
    for one in rounds:
        emitted = min(one.emitted, left)
        left -= emitted
        found += [replace(one, accepted=min(one.accepted, emitted), emitted=emitted)] if emitted else []
    return (*found, *[STEP] * left)
