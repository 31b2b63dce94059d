"""Which cells a verdict may recommend, in what words and with what interval, and why not the others.

Knows the columns of results.csv, as numbers or as text; must not know what the answer is.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from specbench.results import noise, steadiness
from specbench.results.statistics import Interval, widened
from specbench.spec import CHOOSING
from specbench.wording import Row, number_in, text_in


@dataclass(frozen=True)
class Candidate:
    """A measured cell that drafts and is lossless as far as is known; `interval` holds for all candidates at once."""

    row: Row
    interval: Interval

    @property
    def k(self) -> int:
        return int(number_in(self.row, "k") or 0)

    @property
    def constant(self) -> bool:
        return text_in(self.row, "schedule") in ("", "constant") and text_in(self.row, "method") != CHOOSING

    @property
    def prompts(self) -> int:
        """How many were decoded; 0 where that is not known."""
        return int(number_in(self.row, "prompts") or 0)

    @property
    def draws(self) -> int:
        """How many independent draws the interval is over: prompts decoded together count as one."""
        return int(number_in(self.row, "draws") or self.prompts)

    @property
    def busy(self) -> bool:
        """Whether something else was running."""
        return noise.busy(number_in(self.row, "load_average"), number_in(self.row, "threads"))

    @property
    def unsteady(self) -> list[steadiness.Fault]:
        """What did not keep its pace while it was measured, as far as that leaves a doubt."""
        return [fault for fault in steadiness.faults(self.row) if fault.doubt]

    @property
    def name(self) -> str:
        """The choice in the words of the command line."""
        method = text_in(self.row, "method")
        if method == CHOOSING:
            favourite = text_in(self.row, "chosen").partition(" ")[0]
            return f"{CHOOSING}, mostly {favourite}" if favourite else CHOOSING
        schedule = text_in(self.row, "schedule")
        rule = f"{schedule} --confidence {text_in(self.row, 'confidence')}" if schedule == "confidence" else schedule
        choice = f"K = {self.k}" if self.constant else f"--schedule {rule} with K up to {self.k}"
        return choice if method == "chain" else f"{method}, {choice}"


def candidates(group: Sequence[Row]) -> list[Candidate]:
    """The cells of a group that may be recommended, each with an interval that holds for all of them at once."""
    sound = [row for row in group if not flaw(row)]
    found = []
    for row in sound:
        bounds = [number_in(row, name) for name in ("speedup", "speedup_low", "speedup_high")]
        interval = Interval(*(math.nan if bound is None else bound for bound in bounds))
        found.append(Candidate(row, widened(interval, len(sound))))
    return found


def distance_of(row: Row) -> str:
    """How far the output distribution of a lossy cell is from the target's."""
    far = number_in(row, "law_distance")
    by = "an unknown distance" if far is None else f"{far:.3f} per token (total variation distance, mean)"
    return f"not lossless: its output differs from the target's by {by}"


def flaw(row: Row) -> str:
    """Why a cell cannot be recommended; empty where it can."""
    name = Candidate(row, Interval(math.nan, math.nan, math.nan)).name
    if text_in(row, "lossless") == "MISMATCH":
        return f"{name}: not lossless"
    if text_in(row, "lossless") == "lossy":
        return f"{name}: {distance_of(row)}"
    if text_in(row, "status") not in ("ok", "partial"):
        return ": ".join(part for part in (name, text_in(row, "status"), text_in(row, "error")) if part)
    if not (number_in(row, "speedup") or 0) > 0:
        return f"{name}: no speedup was measured"
    return "" if number_in(row, "k") else f"{name}: drafts nothing"
