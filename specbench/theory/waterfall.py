"""Why the measured speedup is not the predicted one: the way between them as named terms that add up.

Knows counts, seconds and formulas only; must not know what was decoded or how the terms are shown.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

from specbench.metrics import (  # fmt: skip
    RoundCounts,
    Timing,
    acceptance,
    acceptance_by_position,
    branched,
    costs,
    overlap_by_level,
    phases,
    ratio,
)
from specbench.theory import formulas

Levels = Mapping[int, Sequence[RoundCounts]]  # rounds by the number of levels that they drafted


@dataclass(frozen=True)
class Explanation:
    """ideal + first_draft + levels + position + verify + sampling + host + truncated = measured, in units of speedup.

    Every term puts one more measured quantity in the place of an assumption of Leviathan's formula, in this order, and
    says how much that changes the result. All but `measured` are NaN where an arm was timed without phases.
    """

    ideal: float  # the formula, every drafted token at the cost of the second and later ones of a round
    predicted: float  # the formula with the mean c, of a nest with the costs by its levels: `speedup_predicted`
    calibrated: float  # Σ Π αᵢ ÷ (Kc + v + overhead): every measured cost is in
    measured: float
    first_draft: float  # ideal → predicted: the first drafted token of a round is fed two tokens and costs more
    levels: float  # of a nest: its draft costs more than the formula of its levels says; 0 of all others
    position: float  # acceptance by position in the place of one α (and by length of the draft where K is adaptive)
    verify: float  # the target's pass over all nodes of the draft takes longer than the baseline's over one token
    sampling: float  # so does the acceptance stage
    host: float  # and what no span covers → calibrated
    truncated: float  # calibrated → measured: rounds cut by the end of a sequence

    def row(self) -> dict[str, float]:
        """The columns of results.csv, without the measured speedup itself."""
        found = {f"speedup_{name}": getattr(self, name) for name in ("ideal", "predicted", "calibrated")}
        return found | {f"term_{name}": getattr(self, name) for name in TERMS}


TERMS = tuple(f.name for f in fields(Explanation))[4:]  # in the order of substitution


def explain(
    rounds: Sequence[RoundCounts],
    baseline: Timing,
    method: Timing,
    lookahead: int | None,
    measured: float,
    drafts: Sequence[float] | None = None,
    relayed: bool = False,
) -> Explanation:
    """The way from the formula to `measured`, a speedup, for one cell.

    lookahead is the number of levels that all rounds draft. None where they differ: then every round counts with those
    that it drafted, and acceptance by position is taken apart by that number, since an adaptive K drafts more where
    more is accepted. drafts[n] is what a nest's draft of n tokens costs by the formula of its levels, in steps.
    relayed: drafts came from several drafters; then, as in a tree, every level has a chance of acceptance of its own.
    Never raises for what a run can measure.
    """
    own = relayed or branched(rounds)
    stages = [*_stages(rounds, baseline, method, lookahead, drafts, own), measured]
    if not all(map(math.isfinite, stages)):
        unknown = dict.fromkeys((f.name for f in fields(Explanation)), math.nan)
        return Explanation(**{**unknown, "measured": measured})
    steps = (after - before for before, after in pairwise(stages))
    return Explanation(stages[0], stages[1], stages[6], measured, *steps)


def _stages(
    rounds: Sequence[RoundCounts],
    baseline: Timing,
    method: Timing,
    lookahead: int | None,
    drafts: Sequence[float] | None,
    own: bool,
) -> tuple[float, ...]:
    """The speedups after each substitution: ideal, predicted, and with levels, position, verify, sampling and host."""
    counts, cost = acceptance(rounds), costs(baseline, method)
    levels = _by_level(rounds, lookahead if counts.drafted else None)
    alpha = counts.alpha if counts.tested else 0.0
    if not math.isfinite(alpha + cost.c + cost.v + cost.overhead) or not levels:
        return (math.nan,) * 7
    k = _mean(levels, lambda level, _: level)
    flat, shaped = _round_tokens(levels, None if own else alpha)
    one, many = phases(baseline), phases(method)
    step = cost.baseline_step_seconds
    idle = one.host + one.draft  # an empty draft is no phase of its own
    verify, sampling, host = (x / step for x in (many.verify - one.verify, many.accept - one.accept, many.host - idle))
    drafting = 1 + k * cost.c
    # The cost of an adaptive rule falls on the tokens behind the first: there is no dearer first one to tell apart.
    later = 1 + k * (cost.c if lookahead is None else _later(rounds, method, cost.c, step))
    formula = drafting if drafts is None else 1 + _mean(levels, lambda level, _: drafts[level])
    return (
        ratio(flat, later if drafts is None else formula),
        ratio(flat, formula),
        ratio(flat, drafting),
        ratio(shaped, drafting),
        ratio(shaped, drafting + verify),
        ratio(shaped, drafting + verify + sampling),
        ratio(shaped, drafting + verify + sampling + host),
    )


def _by_level(rounds: Sequence[RoundCounts], lookahead: int | None) -> Levels:
    """The rounds by the number of levels that they drafted; with a constant lookahead all drafted as many."""
    found: dict[int, list[RoundCounts]] = {}
    for one in rounds:
        found.setdefault(one.drafted if lookahead is None else lookahead, []).append(one)
    return found


def _round_tokens(levels: Levels, alpha: float | None) -> tuple[float, float]:
    """Tokens of a mean round by the formula, and by the measured acceptance at every position.

    alpha None: of trees, whose levels differ in width, and of relays the formula takes the mean chance of every level.
    """
    shaped = _mean(levels, lambda _, group: _tokens(acceptance_by_position(group)))
    if alpha is None:
        return _mean(levels, lambda _, group: _tokens(overlap_by_level(group))), shaped
    return _mean(levels, lambda level, _: formulas.expected_tokens(alpha, level)), shaped


def _tokens(acceptance: Sequence[float]) -> float:
    """Tokens of a round by acceptance at each position; one that was never reached adds nothing."""
    return formulas.expected_tokens_by_position([0.0 if math.isnan(a) else a for a in acceptance])


def _mean(levels: Levels, value: Callable[[int, Sequence[RoundCounts]], float]) -> float:
    """The mean over all rounds of a value of their level."""
    rounds = sum(map(len, levels.values()))
    return math.fsum(len(group) * value(level, group) for level, group in levels.items()) / rounds


def _later(rounds: Sequence[RoundCounts], method: Timing, c: float, step: float) -> float:
    """Cost of the second and later drafted tokens of a round in baseline steps; the mean c where none was timed."""
    later = method.drafted - sum(r.drafted > 0 for r in rounds)
    if not method.draft_first or later < 1:
        return c
    return max(method.draft - method.draft_first, 0.0) / later / step
