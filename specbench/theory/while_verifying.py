"""What drafting while the target verifies should give: the draft's time is hidden behind the target's, as often as it
goes on with the right text.

Knows only numbers, in units of one target decode step; must not know how often anything was right.

PEARL = Liu et al., arXiv 2408.11850. SSD = speculative speculative decoding, arXiv 2603.03251.
"""

from specbench.theory.formulas import check_cost, check_k, check_round_cost, check_share


def one_after_another(tokens: float, drafting: float, v: float = 1.0, overhead: float = 0.0) -> float:
    """Speedup where the draft waits for the target and the target for the draft: E / (Kc + v + overhead).

    tokens: E, those of a mean round, the one after the drafts included. drafting: Kc, all drafts of a round.
    ValueError if a cost is out of range.
    """
    check_costs(drafting, v)
    return tokens / positive(drafting + v + overhead)


def always_ready(tokens: float, drafting: float, v: float = 1.0, overhead: float = 0.0) -> float:
    """Speedup where every draft was made during the pass before it: E / (max(Kc, v) + overhead). PEARL, Section 4.

    The most that there is to have: no draft is ever made for the wrong text. ValueError as above.
    """
    check_costs(drafting, v)
    return tokens / positive(max(drafting, v) + overhead)


def by_hits(tokens: float, drafting: float, v: float, hit: float, overhead: float = 0.0) -> float:
    """Speedup where a share of the drafts is ready: E / (v + (1 − h)Kc + overhead) as long as Kc ≤ v. SSD.

    hit: h, the share of rounds for whose text the draft had already been made. A draft that takes longer than the
    pass is waited for also then: a hit costs max(Kc, v), a miss v + Kc. So h = 0 is `one_after_another`, and h = 1
    `always_ready`. ValueError if a cost is out of range, or hit no share.
    """
    check_costs(drafting, v)
    check_share("hit", hit)
    return tokens / positive(hit * max(drafting, v) + (1 - hit) * (v + drafting) + overhead)


def hit_of_one(alpha: float, k: int) -> float:
    """How often a draft that goes on by itself does so with the right text: α^(K+1).

    All K drafts are accepted, and what the draft holds for the next token is that of the target, which is as likely as
    the acceptance of one more draft when greedy, and less likely when both are drawn.
    ValueError if alpha is outside [0, 1] or K is negative.
    """
    check_share("alpha", alpha)
    check_k(k)
    return float(alpha ** (k + 1))


def check_costs(drafting: float, v: float) -> None:
    """ValueError unless both are finite and not negative."""
    check_cost("what a round drafts", drafting)
    check_cost("v", v)


def positive(cost: float) -> float:
    """The cost of a round. ValueError unless it is positive and finite."""
    check_round_cost("its costs", cost)
    return cost
