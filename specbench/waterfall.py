"""Why the measured speedup is not the predicted one: the way between them as named terms that add up.

Knows counts, seconds and formulas only; must not know what was decoded or how the terms are shown.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

from specbench import theory
from specbench.metrics import RoundCounts, Timing, acceptance, acceptance_by_position, costs, phases, ratio

Levels = Mapping[int, Sequence[RoundCounts]]  # rounds by the number of levels that they drafted


@dataclass(frozen=True)
class Explanation:
    """ideal + first_draft + position + verify + sampling + host + truncated = measured; all in units of speedup.

    Every term puts one more measured quantity in the place of an assumption of Leviathan's formula, in this order, and
    says how much that changes the result. All but `measured` are NaN where an arm was timed without phases.
    """

    ideal: float  # the formula, every drafted token at the cost of the second and later ones of a round
    predicted: float  # the formula with the mean c: what `speedup_predicted` is
    calibrated: float  # Σ Π αᵢ ÷ (Kc + v + overhead): every measured cost is in
    measured: float
    first_draft: float  # ideal → predicted: the first drafted token of a round is fed two tokens and costs more
    position: float  # acceptance by position in the place of one α (and by length of the draft where K is adaptive)
    verify: float  # the target's pass over K + 1 tokens takes longer than the baseline's over one
    sampling: float  # so does the acceptance stage
    host: float  # and what no span covers → calibrated
    truncated: float  # calibrated → measured: rounds cut by the end of a sequence

    def row(self) -> dict[str, float]:
        """The columns of results.csv, without the measured speedup itself."""
        found = {f"speedup_{name}": getattr(self, name) for name in ("ideal", "predicted", "calibrated")}
        return found | {f"term_{name}": getattr(self, name) for name in TERMS}


TERMS = tuple(f.name for f in fields(Explanation))[4:]  # in the order of substitution


def explain(
    rounds: Sequence[RoundCounts], baseline: Timing, method: Timing, lookahead: int | None, measured: float
) -> Explanation:
    """The way from the formula to `measured`, a speedup, for one cell.

    lookahead is the K of a constant schedule. None, an adaptive one: then every round counts with the number of levels
    that it drafted, and acceptance by position is taken apart by that number, since an adaptive K drafts more where
    more is accepted. Never raises for what a run can measure.
    """
    stages = [*_stages(rounds, baseline, method, lookahead), measured]
    if not all(map(math.isfinite, stages)):
        unknown = dict.fromkeys((f.name for f in fields(Explanation)), math.nan)
        return Explanation(**{**unknown, "measured": measured})
    steps = (after - before for before, after in pairwise(stages))
    return Explanation(stages[0], stages[1], stages[5], measured, *steps)


def _stages(
    rounds: Sequence[RoundCounts], baseline: Timing, method: Timing, lookahead: int | None
) -> tuple[float, ...]:
    """The speedups after each substitution: ideal, predicted, by position, with verify, sampling and host."""
    counts, cost = acceptance(rounds), costs(baseline, method)
    levels = _by_level(rounds, lookahead if counts.drafted else None)
    alpha = counts.alpha if counts.tested else 0.0
    if not math.isfinite(alpha + cost.c + cost.v + cost.overhead) or not levels:
        return (math.nan,) * 6
    k = _mean(levels, lambda level, _: level)
    flat = _mean(levels, lambda level, _: theory.expected_tokens(alpha, level))
    shaped = _mean(levels, lambda _, group: _tokens_by_position(group))
    one, many = phases(baseline), phases(method)
    step = cost.baseline_step_seconds
    idle = one.host + one.draft  # an empty draft is no phase of its own
    verify, sampling, host = (x / step for x in (many.verify - one.verify, many.accept - one.accept, many.host - idle))
    drafting = 1 + k * cost.c
    # The cost of an adaptive rule falls on the tokens behind the first: there is no dearer first one to tell apart.
    later = cost.c if lookahead is None else _later(rounds, method, cost.c, step)
    return (
        ratio(flat, 1 + k * later),
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


def _tokens_by_position(rounds: Sequence[RoundCounts]) -> float:
    """Tokens of a round by acceptance at each position; one that was never reached adds nothing."""
    return theory.expected_tokens_by_position([0.0 if math.isnan(a) else a for a in acceptance_by_position(rounds)])


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
