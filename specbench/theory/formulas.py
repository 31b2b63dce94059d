"""What speculative decoding should give, as formulas: tokens per round, speedup, operations, best K, break-even.

Knows only numbers: alpha (acceptance of one tested token), the lookahead K, and costs in units of one target decode
step. Knows no model, file or other module. Whoever prints results rounds them. Trees and nests: `theory_levels`.

Leviathan = Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding", arXiv 2211.17192.
"""

import math
from collections.abc import Sequence

K_MAX = 1000  # the searches for the best K stop here; no draft of this length is ever worth its verification


def expected_tokens(alpha: float, k: int) -> float:
    """Tokens emitted per round, correction or bonus included: (1 − α^(K+1)) / (1 − α). Leviathan, Eq. 1.

    Assumes that every tested token is accepted with the same probability alpha. K = 0 gives 1, alpha = 1 gives K + 1.
    ValueError if alpha is outside [0, 1] or K is negative.
    """
    check_share("alpha", alpha)
    check_k(k)
    if alpha == 1:
        return k + 1.0
    if alpha == 0 or k == 0:
        return 1.0
    # expm1 keeps all digits where 1 − α^(K+1) would cancel, close to alpha = 1.
    return -math.expm1((k + 1) * math.log(alpha)) / (1 - alpha)


def expected_tokens_by_position(alphas: Sequence[float]) -> float:
    """Tokens per round when position i accepts with its own conditional probability αᵢ: Σ_{j=0..K} Π_{i≤j} αᵢ.

    K = len(alphas). An identity, not a model: with the measured conditional acceptances it returns the measured tokens
    per round. With equal alphas it is `expected_tokens`.
    ValueError if one of the alphas is outside [0, 1].
    """
    reached = total = 1.0
    for position, alpha in enumerate(alphas, start=1):
        check_share(f"alpha at position {position}", alpha)
        reached *= alpha
        total += reached
    return total


def speedup(alpha: float, k: int, c: float) -> float:
    """Decode time without ÷ with speculation: (1 − α^(K+1)) / ((1 − α)(Kc + 1)). Leviathan, Theorem 3.8.

    c = seconds per drafted token ÷ seconds per target decode step. Verifying costs one step, all else nothing.
    ValueError if alpha is outside [0, 1], K is negative, or c is negative or not finite.
    """
    check_cost("c", c)
    return expected_tokens(alpha, k) / (k * c + 1)


def speedup_calibrated(alphas: Sequence[float], k: int, c: float, v: float = 1.0, overhead: float = 0.0) -> float:
    """Speedup from measured terms: Σⱼ Πᵢ≤ⱼ αᵢ / (Kc + v + overhead). design.md, Section 5.

    v = target pass over K + 1 tokens ÷ over 1 token; overhead = the rest of a round in target decode steps. Equal
    alphas, v = 1 and overhead = 0 give `speedup`. A measured overhead may come out slightly below zero, so only the
    cost of the whole round has to be positive.
    ValueError if there are not K alphas, one is outside [0, 1], or a cost is out of range.
    """
    check_k(k)
    if len(alphas) != k:
        raise ValueError(f"K = {k} needs {k} acceptances by position, got {len(alphas)}")
    check_cost("c", c)
    check_cost("v", v)
    round_cost = k * c + v + overhead
    _check_round(round_cost)
    return expected_tokens_by_position(alphas) / round_cost


def operations(alpha: float, k: int, c_hat: float) -> float:
    """Operations per emitted token ÷ those of plain decoding: (1 − α)(Kĉ + K + 1) / (1 − α^(K+1)). Leviathan, Thm 3.11.

    c_hat = operations per drafted token ÷ operations per target token. Above 1 means more work for the same text.
    ValueError if alpha is outside [0, 1], K is negative, or c_hat is negative or not finite.
    """
    check_cost("c-hat", c_hat)
    return (k * c_hat + k + 1) / expected_tokens(alpha, k)


def accepted_per_drafted(alpha: float, k: int) -> float:
    """Accepted ÷ drafted tokens, what many tools call acceptance rate: (E − 1) / K.

    Falls with K and equals alpha only at K = 1, so it must never be put into the formulas as alpha.
    ValueError if alpha is outside [0, 1] or K is below 1 (nothing drafted, so no such share).
    """
    _check_drafts("accepted per drafted", k)
    return (expected_tokens(alpha, k) - 1) / k


def oracle_tokens(alpha: float) -> float:
    """Tokens per target pass if each round drafted just up to its first rejection: 1 / (1 − α). Leviathan, Section 3.5.

    The limit of `expected_tokens` for K → ∞; infinite at alpha = 1. ValueError if alpha is outside [0, 1].
    """
    check_share("alpha", alpha)
    return math.inf if alpha == 1 else 1 / (1 - alpha)


def pays(alpha: float, c: float) -> bool:
    """True if some K makes the speedup exceed 1, which is so exactly when alpha > c. Leviathan, Corollary 3.9.

    K = 1 then gives at least (1 + α) / (1 + c). ValueError if alpha is outside [0, 1], or c is negative or not finite.
    """
    check_share("alpha", alpha)
    check_cost("c", c)
    return alpha > c


def best_k(alpha: float, c: float, k_max: int = K_MAX) -> tuple[int, float]:
    """The lookahead K in 0..k_max with the greatest speedup, and that speedup; (0, 1.0) if no K pays.

    Where it grows with every K (alpha = 1 with c < 1, or c = 0) the answer is k_max. ValueError for wrong arguments.
    """
    check_k(k_max)
    if not pays(alpha, c) or k_max == 0:
        return 0, 1.0  # the corollary decides, not a comparison: close to alpha = c rounding would
    if c == 0:
        return k_max, speedup(alpha, k_max, c)  # rises for ever, by less than a float can show
    best = max(range(1, k_max + 1), key=lambda k: speedup(alpha, k, c))
    return best, speedup(alpha, best, c)


def near_best(alpha: float, c: float, share: float = 0.01, k_max: int = K_MAX) -> list[int]:
    """All K in 0..k_max whose speedup is within `share` of the best one, ascending, without gaps.

    The optimum is flat: use it instead of the best K alone: c and alpha are measured, and 1 % is below their error.
    ValueError if an argument is out of range.
    """
    check_share("share", share)
    floor = (1 - share) * best_k(alpha, c, k_max)[1]
    near = [k for k in range(k_max + 1) if speedup(alpha, k, c) >= floor]
    return list(range(near[0], near[-1] + 1))  # the speedup has one peak in K; a gap could only be rounding


def round_costs(first: float, later: float, verify: Sequence[float], overhead: float) -> tuple[float, ...]:
    """Cost of a round in target decode steps, by K = 0..len(verify) − 1: first + (K − 1)·later + verify[K] + overhead.

    first, later = the first and every further drafted token of a round; verify[K] = a step with the target's pass over
    K + 1 tokens in it; overhead = what else a round costs beyond a step. K = 0 is plain decoding and costs one step.
    With first = later = c, verify = 1 and overhead = 0 a round costs Kc + 1 as in Leviathan's formula.
    ValueError if first, later or an entry of verify is out of range, or a round would cost nothing.
    """
    check_cost("the cost of a first drafted token", first)
    check_cost("the cost of a later drafted token", later)
    found = [1.0]
    for k, pass_ in enumerate(verify[1:], start=1):
        check_cost(f"the cost of verifying {k + 1} tokens", pass_)
        found.append(first + (k - 1) * later + pass_ + overhead)
        _check_round(found[-1])
    return tuple(found)


def best_k_of(alpha: float, costs: Sequence[float]) -> tuple[int, float]:
    """The K with the greatest E(α, K) ÷ costs[K], and that speedup; (0, 1.0) if no K pays. costs: see `round_costs`.

    ValueError if alpha is outside [0, 1].
    """
    speedups = [expected_tokens(alpha, k) / cost for k, cost in enumerate(costs)]
    best = max(range(len(speedups)), key=speedups.__getitem__)
    return best, speedups[best]


def near_best_of(alpha: float, costs: Sequence[float], share: float = 0.01) -> list[int]:
    """All K whose speedup is within `share` of the best one; measured costs may leave gaps between them.

    ValueError if alpha or share is outside [0, 1].
    """
    check_share("share", share)
    floor = (1 - share) * best_k_of(alpha, costs)[1]
    return [k for k, cost in enumerate(costs) if expected_tokens(alpha, k) / cost >= floor]


def break_even_batch(tokens: float, k: float, fixed: float, per_token: float, overhead: float, draft: float) -> float:
    """The batch below which speculation wins: [(E − 1)(F + h) − D] / [u(K + 1 − E)].

    A target pass over n tokens takes F + u·n (fixed, per_token), a step h (overhead) besides; a round has D (draft) for
    its drafts, and emits E tokens per row. All in one unit of time; caches are taken as short. 0 where no batch pays,
    infinite where every one does (E = K + 1), NaN where u or K is not positive.
    """
    if not (k > 0 and per_token > 0):
        return math.nan
    gain, lost = max((tokens - 1) * (fixed + overhead) - draft, 0.0), per_token * (k + 1 - tokens)
    return gain / lost if lost else math.inf if gain else 0.0


def break_even_alpha_of(costs: Sequence[float]) -> float | None:
    """The alpha above which some K pays at these costs of a round; None if no alpha does. costs: see `round_costs`."""
    payable = [alpha_from_tokens(max(cost, 1.0), k) for k, cost in enumerate(costs) if k and cost <= k + 1]
    return min(payable, default=None)


def break_even_alpha(k: int, c: float) -> float | None:
    """The alpha at which K drafted tokens of cost c give a speedup of exactly 1; None if no alpha does (c > 1).

    For K = 1 this is c itself, and it rises with K: a pair that pays at all pays at K = 1 (see `pays`).
    ValueError if K is below 1, or c is negative or not finite.
    """
    _check_drafts("a break-even alpha", k)
    check_cost("c", c)
    return None if c > 1 else alpha_from_tokens(min(k * c, k) + 1, k)


def alpha_from_tokens(tokens_per_round: float, k: int) -> float:
    """The alpha for which `expected_tokens(alpha, k)` is tokens_per_round (τ), by bisection.

    1 − 1/τ is only its limit for K → ∞.
    ValueError if K is below 1 (one token per round at every alpha) or tokens_per_round is outside [1, K + 1].
    """
    _check_drafts("alpha from tokens per round", k)
    if not 1 <= tokens_per_round <= k + 1:
        raise ValueError(f"tokens per round must lie in [1, K + 1] = [1, {k + 1}], got {tokens_per_round}")
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high:
        if expected_tokens(middle, k) < tokens_per_round:
            low = middle
        else:
            high = middle
    return high if tokens_per_round > 1 else 0.0


def check_share(name: str, value: float) -> None:
    """ValueError unless the value lies in [0, 1]."""
    if not 0 <= value <= 1:  # written so that NaN fails too
        raise ValueError(f"{name} must lie in [0, 1], got {value}")


def check_cost(name: str, value: float) -> None:
    """ValueError unless the value is finite and not negative."""
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be a finite number of 0 or more, got {value}")


def _check_round(cost: float) -> None:
    if not 0 < cost < math.inf:
        raise ValueError(f"a round must cost more than nothing, got Kc + v + overhead = {cost}")


def check_k(k: int) -> None:
    """ValueError if K is negative."""
    if k < 0:
        raise ValueError(f"K must be 0 or more, got {k}")


def _check_drafts(what: str, k: int) -> None:
    if k < 1:
        raise ValueError(f"{what} needs K of 1 or more, got {k}")
