"""The formulas of speculative decoding: tokens per round, speedup, operations. Nothing is
rounded here. Best K and trees: `optimum`; nested speculation: `nested_costs`.

Leviathan = Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding", arXiv 2211.17192.
"""

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from operator import mul

K_MAX = 1000  # limit of the searches for the best K; no draft of this length is worth its verification


def expected_tokens(alpha: float, k: int) -> float:
    """Tokens emitted per round, correction or bonus included: (1 − α^(K+1)) / (1 − α). Leviathan, Eq. 1.

    Every tested token is accepted with the probability alpha. ValueError if it is outside [0, 1] or K is negative.
    """
    check_share("alpha", alpha)
    check_k(k)
    if alpha == 1:
        return k + 1.0
    if alpha == 0 or k == 0:
        return 1.0
    # expm1 keeps all digits close to alpha = 1, where 1 − α^(K+1) would cancel.
    return -math.expm1((k + 1) * math.log(alpha)) / (1 - alpha)


def expected_tokens_by_position(alphas: Sequence[float]) -> float:
    """Tokens per round when position i accepts with its own conditional probability αᵢ: Σ_{j=0..K} Π_{i≤j} αᵢ.

    An identity: the measured acceptances give the measured tokens per round. ValueError if one is outside [0, 1].
    """
    reached = total = 1.0
    for position, alpha in enumerate(alphas, start=1):
        check_share(f"alpha at position {position}", alpha)
        reached *= alpha
        total += reached
    return total


def round_chances(alphas: Sequence[float]) -> list[float]:
    """The probability of 1, 2, … K + 1 tokens in a round, by acceptance at each position."""
    reached = [1.0, *accumulate(alphas, mul)]
    return [here - further for here, further in pairwise([*reached, 0.0])]


def tokens_of_texts(chances: Sequence[float], lengths: Sequence[int]) -> float:
    """Tokens per round of texts of these lengths, whose last round may emit more than is missing.

    chances[j]: of a round to emit j + 1 tokens. A text of n tokens takes R(n) = 1 + Σⱼ chances[j] R(n − j − 1) rounds
    in the mean, with R(n) = 0 for n ≤ 0: the renewal equation. NaN without a token.
    """
    rounds = [0.0]
    for length in range(1, max(lengths, default=0) + 1):
        rest = (chance * rounds[max(length - emitted, 0)] for emitted, chance in enumerate(chances, start=1))
        rounds.append(1 + math.fsum(rest))
    taken = math.fsum(rounds[length] for length in lengths)
    return sum(lengths) / taken if taken else math.nan


def drafting(k: int, c: float, at_once: bool = False) -> float:
    """The drafting cost of a round in target decode steps: Kc. At once: c itself for every K, but 0 for K = 0.

    c = seconds per drafted token ÷ seconds per target decode step. at_once: one pass, or one
    search, drafts all tokens of a round (Medusa, PARD, DFlash; lookups), and c is its cost.
    """
    return c * min(k, 1) if at_once else k * c


def speedup(alpha: float, k: int, c: float, at_once: bool = False) -> float:
    """Decode time without ÷ with speculation: (1 − α^(K+1)) / ((1 − α)(Kc + 1)). Leviathan, Theorem 3.8.

    Verifying costs one step, drafting as in `drafting`, all else nothing. ValueError if alpha
    is outside [0, 1], K is negative, or c is negative or not finite.
    """
    check_cost("c", c)
    return expected_tokens(alpha, k) / (drafting(k, c, at_once) + 1)


def operations(alpha: float, k: int, c_hat: float, at_once: bool = False) -> float:
    """Operations per emitted token ÷ those of plain decoding: (1 − α)(Kĉ + K + 1) / (1 − α^(K+1)). Leviathan, Thm 3.11.

    c_hat = operations per drafted token ÷ per target token; at once, those of the one pass of a
    round. ValueError if alpha is outside [0, 1], K is negative, or c_hat is negative or not finite.
    """
    check_cost("c-hat", c_hat)
    return (drafting(k, c_hat, at_once) + k + 1) / expected_tokens(alpha, k)


def accepted_per_drafted(alpha: float, k: int) -> float:
    """Accepted ÷ drafted tokens, called acceptance rate by many tools: (E − 1) / K. It equals
    alpha only at K = 1. ValueError if alpha is outside [0, 1] or K is below 1."""
    check_drafts("accepted per drafted", k)
    return (expected_tokens(alpha, k) - 1) / k


def check_share(name: str, value: float) -> None:
    """ValueError unless the value is in [0, 1]."""
    if not 0 <= value <= 1:  # written so that NaN fails too
        raise ValueError(f"{name} must be in [0, 1], got {value}")


def check_cost(name: str, value: float) -> None:
    """ValueError unless the value is finite and not negative."""
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be a finite number of 0 or more, got {value}")


def check_k(k: int) -> None:
    """ValueError if K is negative."""
    if k < 0:
        raise ValueError(f"K must be 0 or more, got {k}")


def check_drafts(what: str, k: int) -> None:
    """ValueError if K is below 1: nothing is drafted."""
    if k < 1:
        raise ValueError(f"{what} needs K of 1 or more, got {k}")


# --- levels -----------------------------------------------------------------------------------------------------------
# The cost of a draft that is itself made by speculation (vertical cascades, CS-Drafting, arXiv
# 2312.11462). Costs are in units of one target decode step.


def nested_costs(inner: float, k: int, pass_: float, draft: Sequence[float]) -> tuple[float, ...]:
    """Cost of a draft of 0..len(draft) tokens by inner rounds, as many as needed, in target decode steps.

    If m tokens are missing a round drafts min(k, m − 1), which costs draft[that many], and one pass of the
    middle model, `pass_`; it emits j tokens with probability α'^(j−1)(1 − α'), else all drafted ones and a
    bonus. draft[i]: of a draft of i tokens by the level below, which may be a nest, too.
    """
    found = [0.0]
    for missing in range(1, len(draft) + 1):
        most = min(k, missing - 1)
        rest = sum(inner ** (j - 1) * (1 - inner) * found[missing - j] for j in range(1, most + 1))
        found.append(draft[most] + pass_ + rest + inner**most * found[missing - most - 1])
    return tuple(found)
