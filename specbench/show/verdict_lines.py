"""How a verdict reads: its headline, what settles it, the figures it rests on; in a terminal, as Markdown, on a page.

Knows verdicts; must not know how they were reached. Names in them come from files of results and are hostile.
"""

from specbench.judge.settling import least_prompts
from specbench.judge.verdict import SYNTHETIC, Recommendation
from specbench.results.statistics import FEWEST
from specbench.token_counts import said
from specbench.wording import clean, counted, formatted, interval_text, literal, verbatim

LONGEST = 1000  # characters of a line


def sentences(found: Recommendation) -> list[str]:
    """The verdict in a few sentences, one a line, fit for a terminal."""
    settle = f"{found.settle}: {found.command}" if found.command else found.settle
    return [line for line in (headline(found), clean(settle, LONGEST), *details(found)) if line]


def markdown_sentences(found: Recommendation) -> list[str]:
    """The same sentences as Markdown, the command as it is to be copied."""
    settle = f"{literal(found.settle)}: {verbatim(found.command)}" if found.command else literal(found.settle)
    return [line for line in (f"**{literal(headline(found))}**", settle, *map(literal, details(found))) if line]


def headline(found: Recommendation) -> str:
    """The answer in one line, with the reasons why it is not a plain one."""
    return " ".join(part for part in (lead(found), why(found)) if part)


def lead(found: Recommendation) -> str:
    """The answer and what it means, or what it leans to."""
    return clean(_lead(found), LONGEST)


def why(found: Recommendation) -> str:
    """Why an answer is provisional; empty where it is not."""
    return clean("; ".join(found.reasons), LONGEST) if found.answer == "PROVISIONAL" else ""


def details(found: Recommendation) -> list[str]:
    """The figures that the answer rests on, what was left out and what was not measured."""
    return [clean(line, LONGEST) for line in (*_figures(found), *_remarks(found)) if line]


def _lead(found: Recommendation) -> str:
    if found.acceptance and found.best:
        return f"UNCLEAR — synthetic acceptance: {SYNTHETIC}; with {found.acceptance} the best is {found.best}"
    if found.answer == "YES":
        return f"YES — use speculative decoding here: {found.best}"
    if found.answer == "NO":
        return f"NO — speculative decoding is slower here: {found.best} is the least slow"
    if found.answer == "PROVISIONAL":
        least = "" if found.leaning == "YES" else " is the least slow"
        return f"PROVISIONAL — leaning {found.leaning}: {found.best}{least}, {formatted(found.speedup, '.2f')}×"
    return f"UNCLEAR — {_unclear(found)}"


def _unclear(found: Recommendation) -> str:
    if not found.best:
        return "no cell was measured that could be recommended"
    if found.draws and found.draws < FEWEST:
        return _too_few(found, found.draws)
    if found.low is None:
        return "there is no interval: measure more prompts"
    if found.more_prompts is None:
        return "the speedup is 1 within what was measured"
    settle = "settles" if found.more_prompts == 1 else "settle"
    return (
        f"it may be faster or slower: about {counted(found.more_prompts, 'more prompt')} {settle} it "
        f"if {found.best} stays at {formatted(found.speedup)}×"
    )


def _too_few(found: Recommendation, draws: int) -> str:
    """So few draws promise nothing: their interval may be quite different in the next run."""
    over = counted(draws, "prompt" if draws == found.prompts else "turn")
    enough = least_prompts(found.batch)
    start = f"; start from {enough}" if (found.prompts or 0) < enough else ""
    if found.low is None:
        return f"there is no interval over {over}{start}"
    return f"it may be faster or slower, and {over} say little{start}"


def _figures(found: Recommendation) -> list[str]:
    parts = [
        found.dataset + (f", {said(found.context)} tokens" if found.context else ""),
        found.chat,
        f"T = {formatted(found.temperature, 'g')}",
        f"batch {found.batch}",
        found.dtype,
        found.device,
    ]
    place = ", ".join(part for part in parts if part)
    if not found.best:
        return [place]
    best_of = f", for the best of {found.candidates}" if found.candidates > 1 else ""
    repeats = f" × {found.repeat}" if (found.repeat or 1) > 1 else ""
    prompts = counted(found.prompts, "prompt") if found.prompts else "– prompts"
    flat = f"   optimum flat: K = {found.near_best} within 1 %" if set(found.near_best) & set("-,") else ""
    return [
        f"speedup {formatted(found.speedup)}× {interval_text(found.low, found.high)} 95 %{best_of} "
        f"(paired by prompt, {prompts}{repeats})   {place}",
        f"predicted {formatted(found.predicted)}×, with measured costs {formatted(found.calibrated)}×   "
        f"alpha {formatted(found.alpha)} {interval_text(found.alpha_low, found.alpha_high)}   "
        f"{_cost(found)}{flat}",
    ]


def _cost(found: Recommendation) -> str:
    """c; where one pass drafts all tokens of a round, also that pass: c falls with K, and that does not."""
    whole = f" ({formatted(found.c_round)} a round, with any K)" if found.at_once else ""
    return f"c {formatted(found.c)}{whole}"


def _remarks(found: Recommendation) -> list[str]:
    even = ""
    if found.break_even_alpha is not None:
        value = formatted(found.break_even_alpha)
        even = "break-even: by the formula " + (
            f"alpha > {value} with K = {found.k}" if found.at_once else f"alpha > c ({value})"
        )
        if found.break_even_alpha_measured is not None:
            even += f"; with the costs measured for {found.best}: alpha > {formatted(found.break_even_alpha_measured)}"
    gaps = f"not measured: {'; '.join(found.not_measured)}"
    return [even, *(f"left out: {reason}" for reason in found.left_out), gaps]
