"""Why the measured speedup differs from the predicted one: the difference as named terms that add up."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

from specbench.metrics import RoundCounts, acceptance, acceptance_by_position, branched, overlap_by_level, ratio
from specbench.theory import formulas
from specbench.theory.optimum import MeasuredCosts, Timing, measured_costs, phases

Levels = Mapping[int, Sequence[RoundCounts]]  # rounds by the number of levels that they drafted


@dataclass(frozen=True)
class Explanation:
    """ideal + first_draft + levels + position + verify + sampling + host + update + truncated + rest = measured.

    Every term replaces one assumption of Leviathan's formula by a measured quantity, in this
    order. All but `measured` are NaN if an arm was timed without phases.
    """

    ideal: float  # the formula, every drafted token at the cost of the second and later ones of a round
    predicted: float  # the formula with the mean c, of a nest with the costs by its levels: `speedup_predicted`
    calibrated: float  # tokens per round by position, in texts that end, ÷ (Kc + v + overhead)
    measured: float
    first_draft: float  # ideal → predicted: the first drafted token of a round is fed two tokens, or is the only pass
    levels: float  # of a nest: its draft costs more than the formula of its levels; 0 of all others
    position: float  # acceptance by position instead of one α (and by length of the draft if K is adaptive)
    verify: float  # the target's pass over all nodes of the draft takes longer than the baseline's over one token
    sampling: float  # so does the acceptance stage
    host: float  # and the time outside all spans
    update: float  # so does a draft's learning, spread over all rounds; 0 without learning
    truncated: float  # rounds cut by the end of a sequence → calibrated; in `rest` if K is adaptive
    rest: float  # calibrated → measured: rounds that depend on each other, and cost less where they are cut

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
    lengths: Sequence[int] = (),
) -> Explanation:
    """The terms from the formula to `measured`, a speedup, for one cell.

    lookahead: the number of levels that all rounds draft; None if they differ. Then each round counts
    with the levels it drafted, and acceptance by position is averaged separately for each number of
    levels, since an adaptive K drafts more where more is accepted. drafts[n]: cost of a nest's draft of n
    tokens by the formula of its levels, in steps. relayed: drafts came from several drafters; then, as in
    a tree, each level has its own acceptance probability. lengths: tokens of every text. Never raises for any
    possible measurement.
    """
    own = relayed or branched(rounds)
    stages = [*_stages(rounds, baseline, method, lookahead, drafts, own, lengths), measured]
    if not all(map(math.isfinite, stages)):
        unknown = dict.fromkeys((f.name for f in fields(Explanation)), math.nan)
        return Explanation(**{**unknown, "measured": measured})
    steps = (after - before for before, after in pairwise(stages))
    return Explanation(stages[0], stages[1], stages[8], measured, *steps)


def _stages(
    rounds: Sequence[RoundCounts],
    baseline: Timing,
    method: Timing,
    lookahead: int | None,
    drafts: Sequence[float] | None,
    own: bool,
    lengths: Sequence[int],
) -> tuple[float, ...]:
    """The speedups: ideal, predicted, and after each substitution from levels to truncated."""
    counts, cost = acceptance(rounds), measured_costs(baseline, method)
    levels = _by_level(rounds, lookahead if counts.drafted else None)
    alpha = counts.alpha if counts.tested else 0.0
    if not math.isfinite(alpha + cost.c + cost.v + cost.overhead) or not levels:
        return (math.nan,) * 9
    k = _mean(levels, lambda level, _: level)
    drafting = 1 + k * cost.c
    if drafts is None:
        ideal, formula = 1 + k * _later_cost(rounds, method, cost, lookahead), drafting
    else:
        ideal = formula = 1 + _mean(levels, lambda level, _: drafts[level])
    # beyond those of a baseline step, in steps
    one, many = phases(baseline), phases(method)
    idle = one.host + one.draft  # an empty draft is not a separate phase
    added = (many.verify - one.verify, many.accept - one.accept, many.host - idle, many.update)
    verify, sampling, host, update = (seconds / cost.baseline_step_seconds for seconds in added)
    with_verify = drafting + verify
    with_sampling = with_verify + sampling
    with_host = with_sampling + host
    whole = with_host + update
    round_costs = (ideal, formula, drafting, drafting, with_verify, with_sampling, with_host, whole, whole)
    flat, shaped = _round_tokens(levels, None if own else alpha)
    cut = shaped
    if lookahead is not None and any(lengths):
        (same,) = levels.values()
        cut = formulas.tokens_of_texts(formulas.round_chances(_known(acceptance_by_position(same))), lengths)
    return tuple(map(ratio, (flat, flat, flat, *[shaped] * 5, cut), round_costs))


def _by_level(rounds: Sequence[RoundCounts], lookahead: int | None) -> Levels:
    """The rounds by the number of levels that they drafted; with a constant lookahead all drafted the same."""
    found: dict[int, list[RoundCounts]] = {}
    for one in rounds:
        found.setdefault(one.drafted if lookahead is None else lookahead, []).append(one)
    return found


def _round_tokens(levels: Levels, alpha: float | None) -> tuple[float, float]:
    """Tokens of a mean round by the formula, and by the measured acceptance at every position.

    alpha None: for trees, whose levels differ in width, and relays the formula takes the mean chance of every level.
    """
    shaped = _mean(levels, lambda _, group: _tokens(acceptance_by_position(group)))
    if alpha is None:
        return _mean(levels, lambda _, group: _tokens(overlap_by_level(group))), shaped
    return _mean(levels, lambda level, _: formulas.expected_tokens(alpha, level)), shaped


def _tokens(acceptance: Sequence[float]) -> float:
    """Tokens of a round by acceptance at each position."""
    return formulas.expected_tokens_by_position(_known(acceptance))


def _known(acceptance: Sequence[float]) -> list[float]:
    """Acceptance at each position; one that was never reached adds nothing."""
    return [0.0 if math.isnan(a) else a for a in acceptance]


def _mean(levels: Levels, value: Callable[[int, Sequence[RoundCounts]], float]) -> float:
    """The mean over all rounds of a value of their level."""
    rounds = sum(map(len, levels.values()))
    return math.fsum(len(group) * value(level, group) for level, group in levels.items()) / rounds


def _later_cost(rounds: Sequence[RoundCounts], method: Timing, cost: MeasuredCosts, lookahead: int | None) -> float:
    """Cost of the second and later drafted tokens of a round in baseline steps; the mean c if unknown.

    Under an adaptive lookahead the cost of deciding falls on later tokens: a dearer first one cannot be distinguished.
    """
    later = method.drafted - sum(r.drafted > 0 for r in rounds)
    if lookahead is None or not method.draft_first or later < 1:
        return cost.c
    return max(method.draft - method.draft_first, 0.0) / later / cost.baseline_step_seconds
