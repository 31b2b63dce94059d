"""The best lookahead K, and the break-even of speculation: by alpha, by the costs of a round, by the batch. at_once:
one pass drafts all tokens of a round at the cost c (`formulas.drafting`), and the speedup rises with every K."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import add, attrgetter
from typing import Literal

from specbench.metrics import ratio
from specbench.theory.formulas import (
    K_MAX,
    check_cost,
    check_drafts,
    check_k,
    check_share,
    drafting,
    expected_tokens,
    speedup,
)

NEAR = 0.01  # speedups within this share count as equal
Aim = Literal["speedup", "tokens"]  # on this machine, or on any machine

ROOT = -1  # the parent of a first token
NEVER = -math.inf  # no tree has that many nodes at that depth


def best_k(alpha: float, c: float, k_max: int = K_MAX, at_once: bool = False) -> tuple[int, float]:
    """The K in 0..k_max with the greatest speedup, and that speedup; (0, 1.0) if no
    K pays, k_max where it only grows. ValueError if an argument is out of range."""
    check_k(k_max)
    if not pays(alpha, c, at_once) or k_max == 0:
        return 0, 1.0  # the corollary decides, not a comparison: close to alpha = c rounding would
    if at_once or c == 0:  # it always rises, in the end by less than a float can show
        most = speedup(alpha, k_max, c, at_once)
        return (0, 1.0) if at_once and most <= 1 else (k_max, most)  # few tokens may not be worth a pass
    best = max(range(1, k_max + 1), key=lambda k: speedup(alpha, k, c))
    return best, speedup(alpha, best, c)


def near_best(alpha: float, c: float, at_once: bool = False) -> list[int]:
    """All K in 0..K_MAX whose speedup is within 1 % of the best one, ascending; at once there may be a gap after 0.

    The optimum is flat, and 1 % is below the error of a measured alpha and c:
    prefer this to the best K alone. ValueError if an argument is out of range.
    """
    floor = (1 - NEAR) * best_k(alpha, c, at_once=at_once)[1]
    near = [k for k in range(K_MAX + 1) if speedup(alpha, k, c, at_once) >= floor]
    if at_once:
        return near
    return list(range(near[0], near[-1] + 1))  # the speedup has one peak in K; a gap could only be rounding


def best_k_of(alpha: float, costs: Sequence[float]) -> tuple[int, float]:
    """The K with the greatest E(α, K) ÷ costs[K], and that speedup; (0, 1.0) if no K pays.

    costs: of a round by K from 0 on, where it is 1. ValueError if alpha is outside [0, 1].
    """
    speedups = [expected_tokens(alpha, k) / cost for k, cost in enumerate(costs)]
    best = max(range(len(speedups)), key=speedups.__getitem__)
    return best, speedups[best]


def near_best_of(alpha: float, costs: Sequence[float]) -> list[int]:
    """All K whose speedup is within 1 % of the best one, with gaps if costs have them. ValueError as above."""
    floor = (1 - NEAR) * best_k_of(alpha, costs)[1]
    return [k for k, cost in enumerate(costs) if expected_tokens(alpha, k) / cost >= floor]


def pays(alpha: float, c: float, at_once: bool = False) -> bool:
    """Whether some K makes the speedup exceed 1: exactly when alpha > c (Leviathan, Corollary 3.9), at
    once when alpha > c / (1 + c). ValueError if alpha is outside [0, 1], or c is negative or not finite."""
    check_share("alpha", alpha)
    check_cost("c", c)
    return alpha > enough(c, at_once)


def enough(c: float, at_once: bool = False) -> float:
    """The alpha above which some K pays, see `pays`; if it is 1 or more, none does."""
    return c / (1 + c) if at_once else c


def break_even_alpha(k: int, c: float, at_once: bool = False) -> float | None:
    """The alpha at which K drafted tokens of cost c give a speedup of exactly 1; None if no alpha does. It
    rises with K from c at K = 1; at once it falls. ValueError if K is below 1, or c is negative or not finite."""
    check_drafts("a break-even alpha", k)
    check_cost("c", c)
    if c > (k if at_once else 1):
        return None
    return alpha_from_tokens(min(drafting(k, c, at_once), k) + 1, k)


def break_even_alpha_of(costs: Sequence[float]) -> float | None:
    """The alpha above which some K pays at these costs of a round; None if no alpha does. costs: as there."""
    payable = [alpha_from_tokens(max(cost, 1.0), k) for k, cost in enumerate(costs) if k and cost <= k + 1]
    return min(payable, default=None)


def break_even_batch(tokens: float, k: float, fixed: float, per_token: float, overhead: float, draft: float) -> float:
    """The batch below which speculation wins: [(E − 1)(F + h) − D] / [u(K + 1 − E)], all in one unit of time.

    A target pass over n tokens takes F + u·n (fixed, per_token), a step adds h (overhead), a round D (draft), and
    a round emits E tokens per row. 0 if no batch pays, infinite if every one does, NaN if u or K is not positive.
    """
    if not (k > 0 and per_token > 0):
        return math.nan
    gain = max((tokens - 1) * (fixed + overhead) - draft, 0.0)
    lost = per_token * (k + 1 - tokens)
    return gain / lost if lost else math.inf if gain else 0.0


def alpha_from_tokens(tokens_per_round: float, k: int) -> float:
    """The alpha for which `expected_tokens(alpha, k)` is tokens_per_round (τ), by bisection; 1 − 1/τ is its limit.
    ValueError if K is below 1 (one token per round at every alpha) or tokens_per_round is outside [1, K + 1]."""
    check_drafts("alpha from tokens per round", k)
    if not 1 <= tokens_per_round <= k + 1:
        raise ValueError(f"tokens per round must be in [1, K + 1] = [1, {k + 1}], got {tokens_per_round}")
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high:
        if expected_tokens(middle, k) < tokens_per_round:
            low = middle
        else:
            high = middle
    return high if tokens_per_round > 1 else 0.0


@dataclass(frozen=True)
class Costs:
    """The costs of a round's parts, in baseline decode steps; measured before a run, never inside one.

    first, later: the first drafted token of a round (it feeds two tokens) and every other one;
    verify[K]: the target's pass over K + 1 tokens; overhead: everything else of a round.
    """

    first: float
    later: float
    verify: tuple[float, ...]
    overhead: float

    def rounds(self, k: int) -> tuple[float, ...]:
        """The cost of a round with a lookahead of 1..k; beyond its last entry `verify` is extrapolated linearly."""
        known = self.verify
        slope = known[-1] - known[-2] if len(known) > 1 else 0.0
        beyond = [known[-1] + slope * n for n in range(1, k + 2 - len(known))]
        verify = [*known, *beyond][1 : k + 1]
        return tuple(self.first + n * self.later + v + self.overhead for n, v in enumerate(verify))


@dataclass(frozen=True)
class Timing:
    """Decode seconds of one arm over some prompts, by phase, with their rounds and tokens.

    `drafted` counts every drafted level, including those that a truncated round could not use. `draft_first`:
    the part of `draft` for the first token of each round, 0 if not timed. `update`: for a draft's learning.
    """

    seconds: float
    draft: float
    verify: float
    rounds: int
    drafted: int
    tokens: int
    accept: float = 0.0
    draft_first: float = 0.0
    update: float = 0.0


@dataclass(frozen=True)
class Phases:
    """Mean seconds of a round by phase; they add up to the round. `host` is the rest outside
    all other phases; `update` is spread over all rounds."""

    draft: float
    verify: float
    accept: float
    host: float
    update: float = 0.0


def phases(timing: Timing) -> Phases:
    """The mean round of an arm. The time of empty drafts counts as host; NaN without rounds."""
    draft = timing.draft if timing.drafted else 0.0
    rest = timing.seconds - draft - timing.verify - timing.accept - timing.update
    parts = (draft, timing.verify, timing.accept, rest, timing.update)
    return Phases(*(ratio(part, timing.rounds) for part in parts))


@dataclass(frozen=True)
class MeasuredCosts:
    """Costs of a round in baseline decode steps: Kc + v + overhead, with K the mean number
    of drafted tokens. In the ideal of Leviathan's formula v is 1 and overhead is 0."""

    baseline_step_seconds: float
    round_seconds: float
    c: float
    v: float
    overhead: float


def measured_costs(baseline: Timing, method: Timing) -> MeasuredCosts:
    """The costs of the mean round, both arms from one run.

    c = draft seconds per drafted token ÷ baseline step; v = verify pass ÷ the baseline's pass over
    one token; overhead = the cost of the round beyond its draft and v baseline steps ÷ baseline step.
    """
    step = ratio(baseline.seconds, baseline.rounds)
    per_round = ratio(method.seconds, method.rounds)
    c = ratio(ratio(method.draft, method.drafted), step) if method.drafted else 0.0
    v = ratio(ratio(method.verify, method.rounds), ratio(baseline.verify, baseline.rounds))
    drafting = c * ratio(method.drafted, method.rounds)
    return MeasuredCosts(step, per_round, c, v, ratio(per_round, step) - drafting - v)


# --- trees ------------------------------------------------------------------------------------------------------------
# The best tree for measured acceptance and costs (Sequoia, Chen et al. 2024, arXiv 2402.12374, §3, §4). acceptance[b]
# is the probability that child b of an accepted node is the accepted one: its earlier siblings were rejected, and it
# was not. A node is accepted with the product of these along its path, so F(tree) = 1 + Σ over nodes of that product is
# the number of tokens per round, if a child's probability depends only on its rank among its siblings.


@dataclass(frozen=True)
class Size:
    """The size of a tree, and for the best of that size the tokens of a round and its cost in baseline steps."""

    nodes: int
    depth: int
    tokens: float
    cost: float

    @property
    def speedup(self) -> float:
        return self.tokens / self.cost


@dataclass(frozen=True)
class Search:
    """All trees of at most `nodes` nodes and `depth` levels, searched at once.

    subtree[d][m]: the most tokens of a subtree of m nodes, its root included, at most d levels
    below it, if that root is accepted. forest[d][b][m]: the tokens added by the first b
    children of such a root with m nodes in these subtrees.
    """

    acceptance: tuple[float, ...]
    subtree: tuple[tuple[float, ...], ...]
    forest: tuple[tuple[tuple[float, ...], ...], ...]

    @classmethod
    def over(cls, acceptance: Sequence[float], nodes: int, depth: int) -> "Search":
        """The dynamic programme; `nodes` and `depth` at least 1. ValueError if an argument is out of range."""
        if not acceptance or not all(0 <= chance <= 1 for chance in acceptance) or sum(acceptance) > 1 + 1e-9:
            shown = list(acceptance)
            raise ValueError(f"acceptance: chances of siblings must be in [0, 1], together at most 1, got {shown}")
        if min(nodes, depth) < 1:
            raise ValueError(f"a tree has at least one node and one level, got {nodes} and {depth}")
        subtree = [(NEVER, 1.0, *[NEVER] * nodes)]
        forest: list[tuple[tuple[float, ...], ...]] = [()]
        for _ in range(depth):
            below = subtree[-1]
            children = [(0.0, *[NEVER] * nodes)]
            for chance in acceptance:
                before = children[-1]
                backwards = scaled(below, chance)[nodes::-1]
                # for every number of nodes the best division between this child and those before it
                best = (max(map(add, before[:m], backwards[nodes - m : nodes])) for m in range(1, nodes + 1))
                children.append((NEVER, *best))
            forest.append(tuple(children))
            subtree.append((NEVER, *(1 + max(some[m] for some in children) for m in range(nodes + 1))))
        return cls(tuple(acceptance), tuple(subtree), tuple(forest))

    def tokens(self, nodes: int, depth: int) -> float:
        """The most tokens per round of a tree of exactly `nodes` nodes in at most `depth` levels; else -inf."""
        return self.subtree[depth][nodes + 1]

    def tree(self, nodes: int, depth: int) -> tuple[int, ...]:
        """The parents of that tree, level by level, siblings in their order. ValueError if it does not exist."""
        if self.tokens(nodes, depth) == NEVER:
            raise ValueError(f"{nodes} nodes fit into no tree of {depth} levels with {len(self.acceptance)} children")
        parents: list[int] = []
        waiting = [(ROOT, nodes + 1, depth)]
        for node, size, levels in waiting:  # it grows while it is read
            for part in self.children(size, levels):
                waiting.append((len(parents), part, levels - 1))
                parents.append(node)
        return tuple(parents)

    def children(self, size: int, depth: int) -> list[int]:
        """The number of nodes in each child's subtree in the best subtree of `size` nodes."""
        left, parts = size - 1, list[int]()
        if not left:
            return parts
        forest, below = self.forest[depth], self.subtree[depth - 1]
        for place in range(max(range(len(forest)), key=lambda b: forest[b][left]), 0, -1):
            child = scaled(below, self.acceptance[place - 1])
            shares = list(map(add, forest[place - 1][:left], child[left:0:-1]))
            parts.append(left - shares.index(max(shares)))
            left -= parts[-1]
        return parts[::-1]


def scaled(tokens: Sequence[float], chance: float) -> tuple[float, ...]:
    return tuple(chance * some if some > NEVER else NEVER for some in tokens)


def best_sizes(
    search: Search, first: float, later: float, verify: Sequence[float], overhead: float, aim: Aim = "speedup"
) -> tuple[Size, ...]:
    """For every number of nodes m the depth d with the greatest speedup, F ÷ cost of a round, or the most tokens, F.

    The cost is first + (d − 1)·later + verify[m] + overhead as in `optimum.Costs`. Goes
    up to as many nodes as both `search` and `verify` cover; empty if that is not even one.
    """
    found = []
    for m in range(1, min(len(search.subtree[0]) - 1, len(verify))):
        sizes = [
            Size(m, d, search.tokens(m, d), first + (d - 1) * later + verify[m] + overhead)
            for d in range(1, len(search.subtree))
            if search.tokens(m, d) > NEVER
        ]
        found += [max(sizes, key=attrgetter(aim))] if sizes else []
    return tuple(found)
