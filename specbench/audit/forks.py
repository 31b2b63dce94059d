"""Where greedy answers of an audited arm leave the baseline's, and whether rounding explains that."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from specbench.audit.causes import cases_of, likely
from specbench.audit.cells import Cell
from specbench.audit.course import Course, Floors, Trial
from specbench.audit.statistics import Scored, too_many
from specbench.judge.significance import FALSE_ALARM
from specbench.metrics import divergence

# fault: the text is not that of the target. numeric: within rounding. draft: speculation does not work as it should.
# report: what the server says about its answers is wrong. not tried: with the reason.
Kind = Literal["fault", "numeric", "draft", "report", "not tried"]
Found = tuple[Cell, Sequence[Trial]]
FORK, RATE = "another token", "more forks than rounding explains"


@dataclass(frozen=True)
class Finding:
    """One thing that an audit found in a cell.

    what: short, fixed words; detail: with numbers. faulty, of: requests. p: corrected for all tests; None for a proof.
    trial: the smallest request that shows it. cause: the likely one.
    """

    cell: str
    kind: Kind
    what: str
    detail: str
    faulty: int = 0
    of: int = 0
    p: float | None = None
    trial: Trial | None = field(default=None, compare=False)
    cause: str = ""


def answered(trials: Sequence[Trial]) -> list[Trial]:
    """Those that both arms answered."""
    return [one for one in trials if not one.baseline.refused and not one.audited.refused]


@dataclass(frozen=True)
class Fork:
    """Where a greedy answer leaves the baseline's, and how far its token is below the best one, in nats.

    own: that of the baseline's token.
    """

    at: int
    gap: float
    own: float = 0.0


def fork_of(course: Course, one: Trial) -> Fork | None:
    """The first fork of an answer; None if there is none. Its gap is NaN if nothing gives log-probabilities."""
    mine, other = one.baseline.ids, one.audited.ids
    if not mine or not other:
        return None if one.baseline.text == one.audited.text else Fork(0, math.nan)
    at = divergence(mine, other)
    if at is None:
        return None
    if not course.baseline.scores:
        return Fork(at, math.nan)
    following = (mine if len(mine) > at else other)[at]
    (found,) = course.drawable(one.ask, (*mine[:at], following), at)
    if at >= min(len(mine), len(other)):  # one of them ends there, and the token of an end is unknown
        return Fork(at, max(found.lead, gap_of(found, following)))
    return Fork(at, gap_of(found, other[at]), gap_of(found, mine[at]))


def gap_of(found: Scored, token: int) -> float:
    """How far a token is below the best one: at least, if it is not among the known ones."""
    value = found.of(token)
    return found.top[0][1] - (found.top[-1][1] if value is None else value)


def forks(course: Course, found: Sequence[Found], floors: Floors) -> list[Finding]:
    """The forks of greedy answers: beyond rounding, within it, or more than it explains."""
    made, explained, limit, flags = list[Finding](), 0, floors.limit, list[tuple[Cell, Trial, bool]]()
    for cell, trials in found:
        able = answered(trials)
        some = [(one, fork) for one in able if (fork := fork_of(course, one)) is not None]
        wrong = {id(one) for one, fork in some if fork.gap > limit}
        flags += [(cell, one, id(one) in wrong) for one in able]
        near = [pair for pair in some if pair[1].gap <= limit]
        parts: dict[Kind, list[tuple[Trial, Fork]]] = {
            "fault": [pair for pair in some if pair[1].gap > limit],
            "numeric": [pair for pair in some if not pair[1].gap > limit and not pair[1].own > limit],
            "not tried": [pair for pair in near if pair[1].own > limit],  # the baseline left its own best token
        }
        explained += len(near)
        made += [fork_finding(cell, kind, pairs, len(able), limit) for kind, pairs in parts.items() if pairs]
    expected = expected_forks(course, found, floors)
    if expected is not None and (p := too_many(explained, expected)) < FALSE_ALARM / 10:
        detail = f"{explained} answers leave the baseline's within rounding, and {expected:.1f} are expected"
        made.append(Finding("greedy", "fault", RATE, detail, explained, len(flags), p))
    cause = likely(cases_of(flags), course.plan.k) if any(bad for *_, bad in flags) else ""
    return [replace(one, cause=cause) if one.kind == "fault" and one.what == FORK else one for one in made]


def fork_finding(cell: Cell, kind: Kind, pairs: Sequence[tuple[Trial, Fork]], of: int, limit: float) -> Finding:
    """The finding of some forks of a cell; the smallest request shows it."""
    trial, fork = min(pairs, key=lambda pair: (len(pair[0].ask.prompt), pair[1].at))
    gaps = [fork.gap if kind == "fault" else max(fork.gap, fork.own) for _, fork in pairs]
    where = f"the first at token {fork.at + 1}"
    who = "the baseline's token is " * (kind == "not tried")
    detail = f"{who}up to {max(gaps):.2g} nats below the best token, and rounding explains {limit:.2g}; {where}"
    detail = f"without log-probabilities they cannot be judged; {where}" if math.isnan(gaps[0]) else detail
    return Finding(cell.name, kind, FORK, detail, len(pairs), of, None, trial)


def expected_forks(course: Course, found: Sequence[Found], floors: Floors) -> float | None:
    """An upper estimate of the number of answers that rounding makes leave the baseline's, from twice the observed
    differences and the leads along the baseline's answers; None if those are unknown."""
    if not floors.leads:
        return None
    noise = sorted(2 * abs(one) for one in floors.leads)
    answers = [one for cell, trials in found[:1] for one in answered(trials) if one.baseline.ids]
    chances = []
    for one in answers:
        leads = [scored.lead for scored in course.drawable(one.ask, one.baseline.ids)]
        beyond = [sum(value > lead for value in noise) / len(noise) for lead in leads]
        chances.append(1 - math.prod(1 - chance / 2 for chance in beyond))
    total = sum(len(answered(trials)) for _, trials in found)
    return max(math.fsum(chances) / max(len(chances), 1), 1 / max(len(answers), 1)) * total
