"""Around the best candidate: which K are as good, and how much acceptance its costs ask for.

Knows candidates and the formulas; must not know what the answer is.
"""

from collections.abc import Sequence

from specbench.judge.candidates import Candidate
from specbench.judge.drafts import at_once, drafting
from specbench.theory import optimum
from specbench.wording import number_in, ranges

FLAT = 0.01


def near_best(best: Candidate, found: Sequence[Candidate]) -> str:
    """The lookaheads of the best method whose speedup is within 1 % of the best."""
    same = [c for c in found if c.constant and c.row.get("method") == best.row.get("method")]
    floor = (1 - FLAT) * best.interval.value
    return ranges(sorted({c.k for c in same if c.interval.value >= floor}))


def by_formula(best: Candidate) -> float | None:
    """The α above which it pays by the formula: with some K; where one pass drafts all tokens of a round, with this."""
    of_round = drafting(best.row)
    if not at_once(best.row) or of_round is None:
        return number_in(best.row, "c")
    return optimum.break_even_alpha(best.k, of_round, at_once=True) if best.k else None


def by_costs(best: Candidate) -> float | None:
    """The α at which rounds with this K cost as much as they give: tokens(α, K) = Kc + v + overhead."""
    c, v, overhead = (number_in(best.row, name) for name in ("c", "v", "overhead"))
    if c is None or v is None or overhead is None or not best.constant:
        return None
    of_round = drafting(best.row) if at_once(best.row) else None
    cost = (best.k * c if of_round is None else of_round) + v + overhead
    return optimum.alpha_from_tokens(max(cost, 1.0), best.k) if cost <= best.k + 1 else None
