"""What the costs of a round say before the method is blamed: costly verification, and what eats the gain.

Knows columns of results.csv; must not know how a cell was measured.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from specbench.wording import grouped, number_in

COSTLY = 1.5  # v at K = 4 above which a warning is shown
AT = 4


def costly_verification(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for a method whose verify pass over 4 drafted tokens costs more than 1.5 passes over one token, with all
    the lookaheads at which it does.

    The cost at another K, or over all nodes of a tree, is scaled to 4 tokens in proportion.
    """
    costly = grouped(filter(is_costly, rows), lambda row: (row["dataset"], row["method"], likely_reason(row)))
    return [
        f"{some[0]['dataset']}, {some[0]['method']}: v = {', '.join(map(where, some))}: verifying a draft costs that "
        f"many passes over one token, and speculation lives on the difference. {likely_reason(some[0])}"
        for some in costly
    ]


def is_costly(row: Mapping[str, Any]) -> bool:
    v, k = number_in(row, "v"), row["k"]
    nodes = (number_in(row, "nodes_per_round") or 0) if drafts_trees(row) else k
    return v is not None and bool(k) and 1 + (v - 1) * AT / nodes > COSTLY


def where(row: Mapping[str, Any]) -> str:
    """The cost of a cell's verify pass, and how much it verifies."""
    tree = f" and {number_in(row, 'nodes_per_round') or 0:.0f} nodes" if drafts_trees(row) else ""
    return f"{number_in(row, 'v'):.2f} at K = {row['k']}{tree}"


def experts_touched(row: Mapping[str, Any]) -> list[str]:
    """A line for a cell whose target has experts: what its passes touch, and the v that follows from bytes."""
    names = ("experts", "experts_per_step", "experts_per_verify", "v_by_experts", "v_by_independence", "v")
    total, once, many, by_experts, by_independence, v = (number_in(row, name) for name in names)
    if None in (total, once, many, by_experts, by_independence, v):
        return []
    return [
        f"{row['dataset']}, {row['method']}, K {row['k']}: a verify pass touches {many:.1f} of {total:.0f} experts of "
        f"a layer, a step {once:.1f}: where memory decides, that makes v = {by_experts:.2f} "
        f"({by_independence:.2f} if tokens chose independently), measured {v:.2f}"
    ]


def drafts_trees(row: Mapping[str, Any]) -> bool:
    """Whether a cell drafts trees: a pass over more nodes than K, and than the levels of the drafts."""
    k, nodes, levels = (number_in(row, name) or 0 for name in ("k", "nodes_per_round", "drafted_per_round"))
    return nodes > max(k, 1.25 * levels)  # a nest's chain that met an end token is fed whole


def losing(row: Mapping[str, Any]) -> list[str]:
    """One sentence for a cell that is slower than the baseline by its measured costs: what eats the gain."""
    names = ("speedup_calibrated", "tokens_per_round", "c", "v", "overhead", "drafted_per_round", "nodes_per_round")
    found = {name: value for name in names if (value := number_in(row, name)) is not None}
    if len(found) < len(names) or not row["k"] or found["speedup_calibrated"] >= 1:
        return []
    drafting = found["drafted_per_round"] * found["c"]
    drafts = f"{found['drafted_per_round']:.1f} {'levels' if drafts_trees(row) else 'tokens'}"
    parts = {
        f"verifying {found['nodes_per_round']:.1f} drafted tokens in a pass makes it cost {found['v']:.2f} steps": (
            found["v"] - 1
        ),
        f"drafting {drafts} costs {drafting:.2f} steps{inner_round(row)}": drafting,
        f"everything that is neither draft nor verify pass costs {found['overhead']:.2f} steps": found["overhead"],
    }
    gain, price = found["tokens_per_round"] - 1, drafting + found["v"] + found["overhead"] - 1
    return [
        f"{row['dataset']}, {row['method']}, K {row['k']}: its measured costs leave no gain "
        f"(calibrated {found['speedup_calibrated']:.2f}×): {max(parts, key=lambda part: parts[part])}; in all a round "
        f"gains {gain:.2f} tokens and pays {price:.2f} steps for them"
    ]


def inner_round(row: Mapping[str, Any]) -> str:
    """For a nest, what a round of its drafting level costs and yields."""
    pass_, tokens = number_in(row, "v_2"), number_in(row, "tokens_per_round_2")
    if pass_ is None or tokens is None:
        return ""
    return f" (level 2 emits {tokens:.1f} tokens per pass of {pass_:.2f} steps)"


def likely_reason(row: Mapping[str, Any]) -> str:
    """The likely reason for a costly pass."""
    if (rollback := row.get("target_rollback")) in ("snapshot", "single"):
        read = (
            "tokens are read one by one" if rollback == "single" else "accepted tokens are read again in later passes"
        )
        return f"The target keeps a recurrent state: {read}"
    if row["batch"] > 1:
        return f"With {row['batch']} rows a pass is bound by arithmetic, not by memory: more tokens cost more"
    if str(row.get("device_name", "")).startswith(("NVIDIA", "cuda")):
        return "On a GPU the hardware is rarely the reason: check the tier and quantised kernels"
    if row.get("dtype_resolved") in ("float32", "float64"):
        tier = "" if row.get("tier_resolved") == "compile" else "--tier compile "
        return f"Matrix kernels for float32 compute every row anew: {tier}--dtype bfloat16 where the CPU multiplies it"
    return (
        "Kernels for 16-bit weights may compute every row anew (compare --dtype float32), and a tree has more "
        "rows than K + 1"
    )
