"""What to measure next: every smaller lookahead predicted from cells at their largest one, and those that could win.

The draft of K' < K tokens is the beginning of that of K tokens, so acceptance by position stays; not so for drafts of
whole blocks. A round takes a baseline step, its overhead and the search of a lookup where they are known, and for every
drafted token the same time. What is chosen so is measured afterwards.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from specbench.judge.advice import at_once, drafting
from specbench.judge.candidates import flaw
from specbench.judge.predictions import conditional
from specbench.wording import Row, number_in, text_in

MOST = 3  # choices that are worth a measurement
BLOCKS = ("dflash", "dspark")  # arms of servers that draft whole blocks


@dataclass(frozen=True)
class Choice:
    """A candidate with a lookahead: its predicted speedup with the bounds of what it was predicted from."""

    row: Row
    k: int
    speedup: float
    low: float
    high: float

    @property
    def name(self) -> str:
        return name_of(self.row)


def name_of(row: Row) -> str:
    """The arm of a server, or the method."""
    return text_in(row, "spec_config") or text_in(row, "method")


def lookaheads(row: Row) -> list[Choice]:
    """The choices that one drafting cell predicts; its own K alone for blocks, or if acceptance by position is not
    known."""
    speedup, tokens, most = (number_in(row, name) for name in ("speedup", "tokens_per_round", "k"))
    if flaw(row) or not speedup or not tokens or not most:
        return []
    low, high = (number_in(row, name) or speedup for name in ("speedup_low", "speedup_high"))
    joint = list(accumulate(conditional(row), mul))[: int(most)]
    block = name_of(row) in BLOCKS or (at_once(row) and text_in(row, "method") == "chain")
    if block or not joint or not sum(joint):
        return [Choice(row, int(most), speedup, low, high)]
    drafted = (tokens - 1) / sum(joint)  # of rounds, those with a draft; and texts end within rounds
    round_time, found = tokens / speedup, list[Choice]()
    fixed = (number_in(row, "overhead") or 0.0) + ((drafting(row) or 0.0) if at_once(row) else 0.0)
    alone = 1 + min(max(fixed, 0.0), max(round_time - 1, 0.0))
    for k in range(1, int(most) + 1):
        faster = (1 + drafted * sum(joint[:k])) / (alone + (round_time - alone) * k / most)
        found.append(Choice(row, k, faster, low * faster / speedup, high * faster / speedup))
    return found


def best_choices(rows: Sequence[Row]) -> list[Choice]:
    """The best lookahead of every candidate under one load, the fastest first."""
    found = [max(some, key=lambda one: one.speedup) for row in rows if (some := lookaheads(row))]
    return sorted(found, key=lambda one: -one.speedup)


def contenders(found: Sequence[Choice]) -> list[Choice]:
    """Those of some sorted choices that could be the fastest, or faster than no draft, by their bounds."""
    return [one for one in found[:MOST] if one is found[0] or (one.high >= found[0].low and one.high > 1)]


def why_not(choice: Choice, found: Sequence[Choice]) -> str:
    """Why one of some sorted choices is not measured again."""
    if choice.high <= 1:
        return f"at most {choice.high:.2f}× as fast as without a draft"
    return f"slower than {found[0].name}" if choice.high < found[0].low else f"not among the best {MOST}"
