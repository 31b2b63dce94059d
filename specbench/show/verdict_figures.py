"""The figures below a verdict: the speedup and its predictions, break-even, what was left out and not measured.

Knows verdicts; must not know how they were reached. Names in them come from files of results and are hostile.
"""

from specbench.judge.verdict import Recommendation
from specbench.token_counts import said
from specbench.wording import clean, counted, formatted, interval_text, rows_said

LONGEST = 1000  # characters of a line


def details(found: Recommendation) -> list[str]:
    """The figures that the answer rests on, what was left out and what was not measured."""
    return [clean(line, LONGEST) for line in (*_figures(found), *_remarks(found)) if line]


def _figures(found: Recommendation) -> list[str]:
    parts = [
        found.dataset + (f", {said(found.context)} tokens" if found.context else ""),
        found.chat,
        f"T = {formatted(found.temperature, 'g')}",
        rows_said(found.batch, found.arrivals),
        found.dtype,
        found.device,
    ]
    place = ", ".join(part for part in parts if part)
    if not found.best:
        return [place]
    wider = f", wider than each one's own: the best of {found.candidates}" if found.candidates > 1 else ""
    repeats = f" × {found.repeat}" if (found.repeat or 1) > 1 else ""
    prompts = counted(found.prompts, "prompt") if found.prompts else "– prompts"
    flat = f"   optimum flat: K = {found.near_best} within 1 %" if set(found.near_best) & set("-,") else ""
    rates = (
        f"{formatted(found.baseline_tokens_per_second, '.1f')} → {formatted(found.tokens_per_second, '.1f')} tokens/s"
    )
    return [
        f"speedup {formatted(found.speedup)}× {interval_text(found.low, found.high)} 95 %{wider} "
        f"(paired by prompt, {prompts}{repeats})   {rates}   {place}",
        f"predicted {formatted(found.predicted)}×   calibrated (with measured costs) {formatted(found.calibrated)}×   "
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
        even = "break-even: by the formula alpha above " + (
            f"{value} with K = {found.k}" if found.at_once else f"c ({value})"
        )
        if found.break_even_alpha_measured is not None:
            measured = formatted(found.break_even_alpha_measured)
            even += f"; with the costs measured for {found.best}: alpha above {measured}"
    gaps = f"not measured: {'; '.join(found.not_measured)}"
    return [even, *(f"left out: {reason}" for reason in found.left_out), gaps]
