"""What several drafters in one method should give: nests of speculations (vertical cascades) and relays (horizontal).

Knows only numbers: chances of acceptance, and costs in units of one target decode step.

CS-Drafting = Chen et al., "Cascade Speculative Drafting", arXiv 2312.11462, whose expected walltime improvements are
derived here anew.
"""

from collections.abc import Sequence

from specbench.theory import formulas
from specbench.theory.formulas import check_cost, check_k, check_share


def vertical_tokens(alpha: float, inner: float, rounds: int, k: int) -> float:
    """Tokens of a round whose draft is what `rounds` inner rounds of K = k emit: (1 − α·φ(α)^n) / (1 − α).

    alpha: acceptance of the outer model; inner: α' of the middle one. φ(s) = 1 + (s − 1)(1 − (α's)^(k+1)) / (1 − α's)
    is the mean of s^(tokens of an inner round). CS-Drafting; rounds = 1, k = 0 gives `expected_tokens(α, 1)`.
    ValueError if an acceptance is outside [0, 1], or a count is negative.
    """
    check_share("alpha", alpha)
    check_share("the inner alpha", inner)
    check_k(rounds)
    check_k(k)
    if alpha == 1:
        return 1 + rounds * formulas.expected_tokens(inner, k)  # the limit: every drafted token, and the bonus
    phi = 1 + (alpha - 1) * formulas.expected_tokens(inner * alpha, k)
    return float((1 - alpha * phi**rounds) / (1 - alpha))


def vertical_speedup(alpha: float, inner: float, rounds: int, k: int, c1: float, c2: float) -> float:
    """(1 − α·φ(α)^n) / ((1 − α)(1 + n·c₁ + n·k·c₂)): n = `rounds` inner rounds, then one pass of the target.

    c1 = a pass of the middle model, c2 = a token of the smallest one. CS-Drafting; see `vertical_tokens`.
    """
    check_cost("c₁", c1)
    check_cost("c₂", c2)
    return vertical_tokens(alpha, inner, rounds, k) / (1 + rounds * (c1 + k * c2))


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


def relay_speedup(alphas: Sequence[float], costs: Sequence[float]) -> float:
    """(Σⱼ Πᵢ≤ⱼ αᵢ) / (1 + Σ cᵢ): token i of the draft comes from a drafter with αᵢ and cᵢ of its own. CS-Drafting.

    Horizontal cascade: cheaper drafters for the tokens that are less likely to be reached.
    ValueError if the lists differ in length, an acceptance is outside [0, 1], or a cost is out of range.
    """
    if len(alphas) != len(costs):
        raise ValueError(f"{len(alphas)} tokens need as many costs, got {len(costs)}")
    for cost in costs:
        check_cost("the cost of a drafted token", cost)
    return formulas.expected_tokens_by_position(alphas) / (1 + sum(costs))
