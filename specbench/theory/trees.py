"""What a round that drafts a token tree should give. Knows only numbers: chances of acceptance, and costs in steps.

Sequoia = Chen et al., "Sequoia", arXiv 2402.12374, whose best tree `sequoia` finds.
"""

from collections.abc import Sequence

from specbench.theory.formulas import check_cost, check_k, check_round_cost, check_share

ROOT = -1  # the parent of a first token


def tree_tokens(parents: Sequence[int], chances: Sequence[float]) -> float:
    """Tokens of a round that drafts a tree: F = Σ over nodes of Π p along the path, the root counted as 1. Sequoia, §3.

    parents[i] < i is the node before node i, -1 the root; chances[i] that node i is the accepted child of its parent,
    given that the parent was accepted. A chain of equal chances gives `formulas.expected_tokens`.
    ValueError if the lists differ in length, a parent does not come before its child, or the chances of the children
    of one node add up to more than 1.
    """
    if len(parents) != len(chances):
        raise ValueError(f"a tree of {len(parents)} nodes needs as many chances, got {len(chances)}")
    reached: list[float] = []
    left = [1.0] * (len(parents) + 1)  # of the chances of each node's children; the last entry is the root's
    for node, (parent, chance) in enumerate(zip(parents, chances, strict=True)):
        if not ROOT <= parent < node:
            raise ValueError(f"node {node} has parent {parent}: a parent comes before its child, -1 is the root")
        check_share(f"the chance of node {node}", chance)
        left[parent] -= chance
        if left[parent] < -1e-9:
            raise ValueError(f"the children of node {parent} are accepted with chances that exceed 1 together")
        reached.append(chance * (reached[parent] if parent != ROOT else 1.0))
    return 1.0 + sum(reached)


def tree_speedup(tokens: float, depth: int, c: float, v: float) -> float:
    """F / (depth·c + v): a level of the tree costs c to draft, the target's pass over all nodes v. Sequoia, §3.

    tokens: what a round emits, F (`tree_tokens`), or Σⱼ Πᵢ≤ⱼ αᵢ with the acceptance of every level.
    ValueError if tokens is outside [1, depth + 1], or a cost is out of range.
    """
    check_k(depth)
    check_cost("c", c)
    check_cost("v", v)
    if not 1 <= tokens <= depth + 1:
        raise ValueError(f"tokens of a round must lie in [1, depth + 1] = [1, {depth + 1}], got {tokens}")
    cost = depth * c + v
    check_round_cost("depth·c + v", cost)
    return tokens / cost
