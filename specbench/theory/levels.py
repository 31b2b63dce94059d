"""What a draft costs that is itself made by speculation (vertical cascades, CS-Drafting, arXiv 2312.11462).

Costs are in units of one target decode step.
"""

from collections.abc import Sequence

from specbench.theory.formulas import check_cost, check_k, check_share


def nested_costs(inner: float, k: int, pass_: float, draft: Sequence[float]) -> tuple[float, ...]:
    """Cost of a draft of 0..len(draft) tokens by inner rounds, as many as it takes, in target decode steps.

    Where m tokens are missing a round drafts min(k, m − 1) of them, which costs draft[that many], and one pass of the
    middle model, `pass_`; it emits j tokens with the chance α'^(j−1)(1 − α'), all drafted ones and a bonus with the
    rest. For many tokens a token costs (c₁ + k·c₂) / E(α', k). Deeper nests: `draft` is the result for the level below.
    ValueError if the acceptance is outside [0, 1], k is negative, or a cost is out of range.
    """
    check_share("the inner alpha", inner)
    check_k(k)
    for cost in (pass_, *draft):
        check_cost("the cost of a pass or of a draft", cost)
    found = [0.0]
    for missing in range(1, len(draft) + 1):
        most = min(k, missing - 1)
        rest = sum(inner ** (j - 1) * (1 - inner) * found[missing - j] for j in range(1, most + 1))
        found.append(draft[most] + pass_ + rest + inner**most * found[missing - most - 1])
    return tuple(found)


def chain_costs(c: float, length: int) -> tuple[float, ...]:
    """Cost of a draft of 0..length tokens from a model at c per token: the innermost `draft` of `nested_costs`."""
    check_cost("c", c)
    check_k(length)
    return tuple(i * c for i in range(length + 1))
