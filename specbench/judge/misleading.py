"""What makes the numbers of a run mislead: outputs that run in circles, and drafts that are next to never accepted.

Knows columns of results.csv; must not know how an output was decoded, or its tokens.
"""

from collections.abc import Iterator, Sequence

from specbench.judge.questions import QUESTION
from specbench.wording import Row, counted, formatted, grouped, number_in, text_in

LOOPING = 0.1  # share of the tokens that lie in loops from which on a note says so
REPEATED = 0.5  # the same for repeated 4-grams, which need not end in a loop
ENOUGH = 64  # rounds that drafted, below which a low acceptance is no finding
NEXT_TO_NOTHING = 0.05  # an α below it: a round emits hardly more than one token


def circles(rows: Sequence[Row]) -> list[str]:
    """A line for every question whose outputs run in circles, about the cell whose acceptance that changes most."""
    measured = [row for row in rows if number_in(row, "looping_share") is not None]
    groups = grouped(measured, lambda row: tuple(text_in(row, name) for name in QUESTION))
    return [line for group in groups if (line := circle(max(group, key=gained)))]


def worst_circle(rows: Sequence[Row]) -> list[str]:
    """The same in one line: of several questions, the one whose acceptance that changes most."""
    if len(lines := circles(rows)) < 2:
        return lines
    worst = max((row for row in rows if circles([row])), key=gained)
    return [circle(worst).replace(f"{named(worst)}:", f"{named(worst)}, the worst of {len(lines)}:", 1)]


def gained(row: Row) -> tuple[float, float]:
    """How much α gains by loops; then, how much of the text lies in them."""
    alpha, outside = (number_in(row, name) for name in ("alpha", "alpha_outside_loops"))
    gain = 0.0 if alpha is None or outside is None else alpha - outside
    return gain, number_in(row, "looping_share") or 0.0


def circle(row: Row) -> str:
    """What to know of a cell whose text runs in circles, or repeats itself; empty where too little of it does."""
    share, repeated = (number_in(row, name) or 0.0 for name in ("looping_share", "repeated_4grams"))
    if share >= LOOPING:
        return f"{named(row)}: {loops(row, share)}. {remedy(row)}"
    if repeated >= REPEATED:
        return f"{named(row)}: {repeated:.0%} of the 4-grams of an output were in it before. {remedy(row)}"
    return ""


def loops(row: Row, share: float) -> str:
    """How much of the text loops, and what that does to α."""
    prompts, looping, cycle = (int(number_in(row, f) or 0) for f in ("prompts", "prompts_looping", "longest_cycle"))
    some = f"{looping} of {counted(prompts, 'output')} end{'s' * (looping == 1)} in a loop"
    much = f"{share:.0%} of the tokens, cycles up to {counted(cycle, 'token')}"
    alpha, outside = (formatted(number_in(row, name)) for name in ("alpha", "alpha_outside_loops"))
    easy = ", which is easy to draft" * (gained(row)[0] > 0)
    return f"{some} ({much}){easy}: alpha is {alpha}, outside the loops {outside}"


def remedy(row: Row) -> str:
    """What may keep a model out of circles."""
    plain = text_in(row, "chat_template_resolved") == "not applied"
    ways = f"{'the chat template, ' * plain}fewer --max-new-tokens, a --temperature or other prompts"
    return f"Nobody serves such text: {ways} avoid it"


def named(row: Row) -> str:
    return f"{row['dataset']}, {row['method']}, K {row['k']}"


def rejected_drafts(row: Row) -> list[str]:
    """A line for a cell whose draft model proposes what the target next to never accepts, with the likely causes.

    Methods that draft without a model find nothing in text that does not repeat itself, which is no mistake.
    """
    alpha, rounds, hits = (number_in(row, name) for name in ("alpha", "rounds", "draft_hit_rate"))
    if alpha is None or alpha >= NEXT_TO_NOTHING or (rounds or 0) * (hits or 0) < ENOUGH:
        return []
    if text_in(row, "acceptance_mode") == "synthetic" or not (drafter := text_in(row, "drafted_by")):
        return []
    tokens = formatted(number_in(row, "tokens_per_round"), ".2f")
    return [
        f"{named(row)}: next to nothing of the draft is accepted (alpha {alpha:.3f}, {tokens} tokens per round, "
        f"{rounds:.0f} rounds). Likely causes: {'; '.join(causes(row, drafter))}"
    ]


def causes(row: Row, drafter: str) -> Iterator[str]:
    """The likely causes of such an acceptance, given what a row says, the likeliest first."""
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
        yield "weights that are not what their name says; not the tokenizers, which were compared"
