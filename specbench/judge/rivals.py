"""The cells of one run against each other: is the fastest faster than the others, or one K than another, by more than
chance?

Knows records of cells that answer the same question, over the same prompts; must not know the command line or how a
comparison looks. All are paired by prompt, and Holm's correction runs over all of them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from specbench.errors import NotComparableError, UsageError
from specbench.judge.compare_input import Record
from specbench.judge.evidence import evidence_of
from specbench.judge.holm_test import Criterion, Trial, chance, holm, quantile, relative
from specbench.judge.questions import ASKED, QUESTION
from specbench.spec import BASELINE
from specbench.wording import clean, grouped, text_in

SPEEDUP = Criterion("speedup", -1, 0.0)
SAID = {"dataset": "", "temperature": "T = ", "batch": "batch "}  # of every question


@dataclass(frozen=True)
class Duel:
    """Two cells of a question. change: the speedup of `other` relative to `best`, as a share, with its 95 % interval;
    p: two-sided, Holm-corrected over all pairs of the run; reason: why there is none, else empty."""

    question: str
    best: str
    other: str
    best_speedup: float | None = None
    other_speedup: float | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    outcome: str = "not judged"
    reason: str = ""


def duels(records: Sequence[Record], chosen: Sequence[str], confidence: float) -> list[Duel]:
    """Every cell against the fastest of its question, or against the first of the `chosen`; of several, only these.

    UsageError where a name means no cell or several of a question; NotComparableError where nothing is left to compare.
    """
    measured = [record for record in records if record["method"] != BASELINE]
    questions = grouped(measured, lambda record: tuple(text_in(record.row, name) for name in QUESTION))
    known = [name_of(record) for record in measured]
    for name in chosen:
        if not any(means(name, one) for one in known):
            raise UsageError(f"no cell is called {clean(name)}: there are {', '.join(dict.fromkeys(known))}")
    pairs = [pair for cells in questions for pair in paired(cells, chosen)]
    if not pairs:
        raise NotComparableError("no question of this run has two cells to compare: sweep over K, or over methods")
    apart = [name for name in ASKED if len({text_in(record.row, name) for record in measured if record.measured}) > 1]
    return decided([(best, other, evidence_of(SPEEDUP, [(best, other)])) for best, other in pairs], confidence, apart)


def paired(cells: Sequence[Record], chosen: Sequence[str]) -> list[tuple[Record, Record]]:
    """The first of the chosen cells, or the fastest, with the other chosen ones, or all that have numbers."""
    sound = [record for record in cells if record.measured and record.number("speedup") > 0]
    named = [only_one(sound, name) for name in chosen if any(means(name, name_of(one)) for one in sound)]
    fastest = sorted(sound, key=lambda record: -record.number("speedup"))
    if len(named) < len(chosen):  # another question has them
        return []
    others = named if len(named) > 1 else fastest
    return [(first, other) for first in (named or fastest)[:1] for other in others if other is not first]


def only_one(records: Sequence[Record], name: str) -> Record:
    """The cell that a name means."""
    found = [record for record in records if means(name, name_of(record))]
    if len(found) > 1:
        names = ", ".join(name_of(record) for record in found)
        raise UsageError(f"--cell {clean(name)} is several cells ({names}): name method and K, such as 'chain K4'")
    return found[0]


def name_of(record: Record) -> str:
    """A cell among those of its question."""
    k, schedule = record["k"], record["schedule"]
    if schedule in {"", "constant"}:
        return clean(f"{record['method']} K{k}", 200)
    more = f" {record['confidence']}" if schedule == "confidence" else ""
    return clean(f"{record['method']} {schedule}{more} K≤{k}", 200)


def means(given: str, name: str) -> bool:
    """Whether a user's name is that of a cell: the method, the lookahead, or both; `K = 4`, `k=4` and `K4` are one."""
    words, own = squeezed(given), squeezed(name)
    return words == own or words in own.split(" ")


def squeezed(name: str) -> str:
    """Small letters, without commas, and the number at its K."""
    return re.sub(r"\bk\s*=?\s*(?=[\d≤])", "k", " ".join(name.lower().replace(",", " ").split()))


def decided(
    found: Sequence[tuple[Record, Record, Trial | str | None]], confidence: float, apart: Sequence[str]
) -> list[Duel]:
    """One duel per pair; `confidence` is that of all of them together. apart: see `question_of`."""
    trials = [trial for *_, trial in found if isinstance(trial, Trial)]
    corrected = iter(holm([min(1.0, 2 * chance(abs(trial.pooled.log), trial.pooled)) for trial in trials]))
    named = [(question_of(best, apart), name_of(best), name_of(other)) for best, other, _ in found]
    return [
        judged(names, trial, next(corrected), confidence)
        if isinstance(trial, Trial)
        else Duel(*names, reason=trial or "no speedup")
        for names, (*_, trial) in zip(named, found, strict=True)
    ]


def judged(names: tuple[str, str, str], trial: Trial, p: float, confidence: float) -> Duel:
    change, reach = trial.pooled.log, quantile(0.025, trial.pooled)
    surely = p < 1 - confidence
    return Duel(
        *names,
        trial.pooled.base,
        trial.pooled.new,
        relative(change),
        relative(change - reach),
        relative(change + reach),
        p,
        ("slower" if change < 0 else "faster") if surely else "no difference seen",
    )


def question_of(record: Record, apart: Sequence[str]) -> str:
    """The question of a cell, in a few words: with all settings `apart`, in which those of a run differ."""
    others = [f"{name.replace('_', ' ')} {value}" for name in apart if name not in SAID and (value := record[name])]
    return clean(", ".join([*(f"{words}{record[name]}" for name, words in SAID.items()), *others]), 200)
