"""Text that repeats itself: the share of repeated n-grams, and the loop that an output ends in.

A model that repeats itself is easy to draft for, and nobody serves its text. All of it takes time in proportion to the
length of an output.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from specbench.metrics import RoundCounts, ratio

NGRAM = 4
REPEATS = 2  # how often a cycle is there in full before its repetition is called a loop
SHORTEST = 24  # tokens of the shortest tail that is called a loop: a few dashes, or a short line said twice, are none
KEPT = 4096  # outputs whose loop is remembered: the arms of a greedy run have theirs in common


@dataclass(frozen=True)
class Loop:
    """The tail of an output that repeats one cycle: its first token, counted from 0, and the tokens of the cycle."""

    start: int
    cycle: int


@lru_cache(maxsize=KEPT)
def repeated_ngrams(tokens: tuple[int, ...], n: int = NGRAM) -> float:
    """1 − distinct n-grams ÷ n-grams: 0 where none repeats, near 1 in a loop; NaN of fewer than n tokens.

    seq-rep-n of Welleck et al. 2020, "Neural text generation with unlikelihood training" (arXiv 1908.04319), §6.
    """
    grams = [tokens[i : i + n] for i in range(len(tokens) - n + 1)]
    return ratio(len(grams) - len(set(grams)), len(grams))


@lru_cache(maxsize=KEPT)
def loop_of(tokens: tuple[int, ...]) -> Loop | None:
    """The longest tail of at least `SHORTEST` tokens that repeats one cycle at least `REPEATS` times; None without one.

    The last repetition may be cut. An output that ended by itself after a loop got out of it, and is not in one.
    """
    periods = tail_periods(tokens)
    lengths = range(len(tokens), SHORTEST - 1, -1)
    longest = next((n for n in lengths if n >= REPEATS * periods[n - 1]), None)
    return None if longest is None else Loop(len(tokens) - longest, periods[longest - 1])


def tail_periods(tokens: Sequence[int]) -> list[int]:
    """The smallest period of every tail, by its length from 1 on: p where each token equals the one p before it.

    Length less the longest border, from the failure function of the reversed tokens (Knuth, Morris, Pratt 1977).
    """
    backwards, borders = tokens[::-1], [0] * len(tokens)
    for i in range(1, len(tokens)):
        border = borders[i - 1]
        while border and backwards[i] != backwards[border]:
            border = borders[border - 1]
        borders[i] = border + (backwards[i] == backwards[border])
    return [length - border for length, border in enumerate(borders, start=1)]


def rounds_before(rounds: Sequence[RoundCounts], start: int) -> list[RoundCounts]:
    """The rounds that emitted a token before `start`; all tokens of the others are at or after it."""
    firsts = accumulate((one.emitted for one in rounds), initial=0)
    return [one for one, first in zip(rounds, firsts, strict=False) if first < start]
