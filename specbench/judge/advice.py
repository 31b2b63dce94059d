"""The subject of a verdict, and what to know about a cell before blaming its method.

That is costly verification, repetitive text, and drafts that are hardly ever accepted. All from rows of
results.csv, as numbers or as text. Loads no numerical library.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specbench.settings import part
from specbench.spec import RunSpec
from specbench.wording import Row, counted, formatted, grouped, number_in, text_in

# Cells that agree in these answer the same question, with different methods, schedules and K.
SETTINGS = tuple(setting.column for setting in part("question", RunSpec))
QUESTION = ("schema_version", *SETTINGS, "device_name", "fingerprint", "prompts_sha256")
SYNTHETIC = "shows what this engine makes of that acceptance, not what the pair accepts"


def precision(row: Row) -> str:
    """The dtype of a cell, and the roles whose weights were quantised after loading."""
    roles = {"target": text_in(row, "quantize"), "draft": text_in(row, "draft_quantize")}
    quantised = [f"{role} {kind}" for role, kind in roles.items() if kind]
    return ", ".join([text_in(row, "dtype_resolved") or text_in(row, "dtype"), *quantised])


def gaps(rows: Sequence[Row]) -> tuple[str, ...]:
    """What the rows of a pair do not cover."""

    def known(column: str) -> str:
        values = (text_in(row, column).removesuffix(".0") for row in rows)
        return ", ".join(dict.fromkeys(value for value in values if value))

    others = {"temperatures": "temperature", "data sets": "dataset", "devices": "device_name"}
    named = {what: values for what, column in others.items() if (values := known(column))}
    batches = "batch > 1" if known("batch") in ("", "1") else f"batch other than {known('batch')}"
    return (batches, *(f"{what} other than {values}" for what, values in named.items()))


def drafting(row: Row) -> float | None:
    """Draft time of a mean round ÷ one baseline step: c for all levels."""
    c, levels = number_in(row, "c"), number_in(row, "drafted_per_round")
    return c * levels if c is not None and levels is not None else None


def at_once(row: Row) -> bool:
    """Whether one pass, or one search, drafts all tokens of a round."""
    return text_in(row, "draft_cost_per") == "round"


COSTLY = 1.5  # v at K = 4 above which a warning is shown
AT = 4


def is_served(row: Row) -> bool:
    """Whether requests to a server were measured."""
    return number_in(row, "served_requests_per_second") is not None


def costly_verification(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each method with a verify pass over 4 drafted tokens above 1.5 single-token passes, and at which K.

    The cost at another K, or over all nodes of a tree, is scaled to 4 tokens in proportion.
    """
    costly = grouped(filter(is_costly, rows), lambda row: (row["dataset"], row["method"], likely_reason(row)))
    return [
        f"{some[0]['dataset']}, {some[0]['method']}: v = {', '.join(map(where, some))}: verifying a draft costs that "
        f"many one-token passes, and speculation only pays if they are few. {likely_reason(some[0])}"
        for some in costly
    ]


def is_costly(row: Mapping[str, Any]) -> bool:
    v, k = number_in(row, "v"), row["k"]
    nodes = (number_in(row, "nodes_per_round") or 0) if drafts_trees(row) else k
    return v is not None and bool(k) and 1 + (v - 1) * AT / nodes > COSTLY


def where(row: Mapping[str, Any]) -> str:
    """The cost of a cell's verify pass, and the number of tokens it verifies."""
    tree = f" and {number_in(row, 'nodes_per_round') or 0:.0f} nodes" if drafts_trees(row) else ""
    return f"{number_in(row, 'v'):.2f} at K = {row['k']}{tree}"


def experts_touched(row: Mapping[str, Any]) -> list[str]:
    """A line for a cell with an MoE target: the experts that its passes touch, and the v that follows from bytes."""
    names = ("experts", "experts_per_step", "experts_per_verify", "v_by_experts", "v_by_independence", "v")
    total, once, many, by_experts, by_independence, v = (number_in(row, name) for name in names)
    if None in (total, once, many, by_experts, by_independence, v):
        return []
    return [
        f"{named(row)}: a verify pass touches {many:.1f} of {total:.0f} experts of "
        f"a layer, a step {once:.1f}: where memory decides, that makes v = {by_experts:.2f} "
        f"({by_independence:.2f} if tokens chose independently), measured {v:.2f}"
    ]


def drafts_trees(row: Mapping[str, Any]) -> bool:
    """Whether a cell drafts trees: a pass over more nodes than K, and than the levels of the drafts."""
    k, nodes, levels = (number_in(row, name) or 0 for name in ("k", "nodes_per_round", "drafted_per_round"))
    return nodes > max(k, 1.25 * levels)  # the chain of a nest that met an end token is fed whole


def losing(row: Mapping[str, Any]) -> list[str]:
    """One sentence for a cell that is slower than the baseline by its measured costs: the main cause."""
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
        f"{named(row)}: its measured costs leave no gain "
        f"(calibrated {found['speedup_calibrated']:.2f}×): {max(parts, key=lambda part: parts[part])}; in all a round "
        f"gains {gain:.2f} tokens and pays {price:.2f} steps for them"
    ]


def inner_round(row: Mapping[str, Any]) -> str:
    """For a nest, the cost and yield of a round of its drafting level."""
    pass_, tokens = number_in(row, "v_2"), number_in(row, "tokens_per_round_2")
    if pass_ is None or tokens is None:
        return ""
    return f" (level 2 emits {tokens:.1f} tokens per pass of {pass_:.2f} steps)"


def likely_reason(row: Mapping[str, Any]) -> str:
    if (rollback := row.get("target_rollback")) in ("snapshot", "single"):
        read = "tokens are read one by one"
        again = "accepted tokens are read again in later passes"
        return f"The target keeps a recurrent state: {read if rollback == 'single' else again}"
    if row["batch"] > 1:
        return f"With {row['batch']} rows a pass is compute-bound, not memory-bound: more tokens cost more"
    if str(row.get("device_name", "")).startswith(("NVIDIA", "cuda")):
        return "On a GPU the hardware is rarely the reason: check the tier and quantised kernels"
    if row.get("tier_resolved") == "compile":
        return "Weights may fit into the processor's cache, where arithmetic decides: a larger target pays more"
    if row.get("dtype_resolved") in ("float32", "float64"):
        return "float32 matrix kernels compute each row separately: --tier compile, or --dtype bfloat16"
    return (
        "Kernels for 16-bit weights may compute each row separately (compare --dtype float32), and a tree has more "
        "rows than K + 1"
    )


LOOPING = 0.1  # least share of tokens in loops for a note
REPEATED = 0.5  # the same for repeated 4-grams, which need not end in a loop
ENOUGH = 64  # fewest rounds with a draft for a finding about low acceptance
NEXT_TO_NOTHING = 0.05  # α below this is reported: a round emits hardly more than one token


def circles(rows: Sequence[Row]) -> list[str]:
    """A line for every question with looping outputs, about the cell whose α changes most."""
    measured = [row for row in rows if number_in(row, "looping_share") is not None]
    groups = grouped(measured, lambda row: tuple(text_in(row, name) for name in QUESTION))
    return [line for group in groups if (line := circle(max(group, key=gained)))]


def worst_circle(rows: Sequence[Row]) -> list[str]:
    """The same in one line: of several questions, the one whose α changes most."""
    if len(lines := circles(rows)) < 2:
        return lines
    worst = max((row for row in rows if circles([row])), key=gained)
    return [circle(worst).replace(f"{named(worst)}:", f"{named(worst)}, the worst of {len(lines)}:", 1)]


def gained(row: Row) -> tuple[float, float]:
    """The increase of α by loops, and the share of the text in them."""
    alpha, outside = (number_in(row, name) for name in ("alpha", "alpha_outside_loops"))
    gain = 0.0 if alpha is None or outside is None else alpha - outside
    return gain, number_in(row, "looping_share") or 0.0


def circle(row: Row) -> str:
    """A note on a cell whose text loops, with the effect on α, or repeats itself; empty if little of it does."""
    share, repeated = (number_in(row, name) or 0.0 for name in ("looping_share", "repeated_4grams"))
    if share < LOOPING:
        before = f"{repeated:.0%} of the 4-grams of an output were in it before"
        return f"{named(row)}: {before}. {remedy(row)}" if repeated >= REPEATED else ""
    prompts, looping, cycle = (int(number_in(row, f) or 0) for f in ("prompts", "prompts_looping", "longest_cycle"))
    some = f"{looping} of {counted(prompts, 'output')} end{'s' * (looping == 1)} in a loop"
    much = f"{share:.0%} of the tokens, cycles up to {counted(cycle, 'token')}"
    alpha, outside = (formatted(number_in(row, name)) for name in ("alpha", "alpha_outside_loops"))
    easy = ", which is easy to draft" * (gained(row)[0] > 0)
    found = f"{some} ({much}){easy}: alpha is {alpha}, outside the loops {outside}"
    return f"{named(row)}: {found}. {remedy(row)}"


def remedy(row: Row) -> str:
    """Advice against looping."""
    plain = text_in(row, "chat_template_resolved") == "not applied"
    ways = f"{'the chat template, ' * plain}fewer --max-new-tokens, a --temperature or other prompts"
    return f"Such text is rare in production: {ways} avoid it"


def named(row: Row) -> str:
    return f"{row['dataset']}, {row['method']}, K {row['k']}"


def rejected_drafts(row: Row) -> list[str]:
    """A line for a cell whose draft model is hardly ever accepted, with the likely causes.

    Methods that draft without a model find nothing in text without repetition, which is not a fault.
    """
    alpha, rounds, hits = (number_in(row, name) for name in ("alpha", "rounds", "draft_hit_rate"))
    if alpha is None or alpha >= NEXT_TO_NOTHING or (rounds or 0) * (hits or 0) < ENOUGH:
        return []
    if text_in(row, "acceptance_mode") == "synthetic" or not (drafter := text_in(row, "drafted_by")):
        return []
    tokens = formatted(number_in(row, "tokens_per_round"), ".2f")
    return [
        f"{named(row)}: almost none of the draft is accepted (alpha {alpha:.3f}, {tokens} tokens per round, "
        f"{rounds:.0f} rounds). Likely causes: {'; '.join(causes(row, drafter))}"
    ]


def causes(row: Row, drafter: str) -> Iterator[str]:
    """The likely causes of such an acceptance according to a row, the likeliest first."""
    own, head = all(name.startswith("target") for name in drafter.split(", ")), text_in(row, "draft_head")
    if text_in(row, "chat_template_resolved") == "not applied":
        yield "no chat template, which the target was trained with (--chat-template always)"
    dtypes = [text_in(row, "dtype_resolved")] + [text_in(row, "draft_dtype_resolved")] * (not own)
    if len(set(dtypes)) > 1:
        yield f"two dtypes ({dtypes[0]} target, {dtypes[1]} draft; --draft-dtype)"
    if "float16" in dtypes:
        yield "float16, which weights made for bfloat16 can exceed (--dtype bfloat16)"
    if head:
        yield f"a head ({head}) that reads other layers than it was trained on (--aux-layers)"
        yield "another target than its own: another size, version or quantisation"
        yield f"another dtype than it was trained in ({dtypes[0]} here)"
    elif own:
        yield f"too little of the target ({drafter}): `specbench skip-layers` searches for layers that draft well"
    else:
        yield "a draft of another family, or trained on other text or for another prompt form (base and instruct)"
        yield "weights that do not match their name; not the tokenizers, which were compared"
