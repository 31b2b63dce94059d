"""What the drafts of a cell cost, by its row: of a mean round, and whether another K would cost another sum.

Knows columns of results.csv; must not know how a cell was measured, or what a table shows of it.
"""

from specbench.wording import Row, number_in, text_in

PER_ROUND = "round"  # `draft_cost_per` of drafts whose cost goes with rounds, not with tokens


def drafting(row: Row) -> float | None:
    """The drafts of a mean round ÷ one baseline step: c for every level of them."""
    c, levels = number_in(row, "c"), number_in(row, "drafted_per_round")
    return c * levels if c is not None and levels is not None else None


def at_once(row: Row) -> bool:
    """Whether one pass, or one search, drafts all tokens of a round."""
    return text_in(row, "draft_cost_per") == PER_ROUND
