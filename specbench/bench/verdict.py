"""YES, NO or UNCLEAR: does speculative decoding pay here, with which K, and what would change the answer.

Knows the columns of results.csv, as numbers or as text; must not know models, samples or how a verdict is printed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from specbench import theory
from specbench.bench.candidates import Candidate, Row, candidates, flaw
from specbench.bench.files import clean
from specbench.bench.statistics import ENOUGH, Interval, to_settle
from specbench.bench.wording import finite, number, ranges, shown, span, text
from specbench.spec import BASELINE

Answer = Literal["YES", "NO", "UNCLEAR"]

# Cells that differ in nothing of this answer the same question, with different methods, schedules and K.
QUESTION = (
    "schema_version", "target", "draft", "model", "acceptance", "dataset", "temperature", "top_k", "top_p", "min_p",
    "eta", "max_new_tokens", "ignore_eos", "tier", "batch", "dtype_resolved", "draft_dtype_resolved", "device_name",
    "fingerprint", "prompts_sha256",
)  # fmt: skip
FLAT = 0.01
SYNTHETIC = "says what this engine makes of that acceptance, not what the pair accepts"


@dataclass(frozen=True)
class Verdict:
    """The answer for one pair on one data set. What was not measured is None.

    acceptance: the rates where it is synthetic, else empty; such cells are no evidence that the pair pays.
    low, high: 95 % interval of the speedup of the best candidate, widened because it is the best of `candidates`
    (Bonferroni). break_even_alpha: by the formula any α above c pays; `break_even_alpha_measured` is the α at which
    this K pays with the costs that were measured. more_prompts: how many more would settle an UNCLEAR one.
    """

    answer: Answer
    target: str
    draft: str
    acceptance: str
    dataset: str
    temperature: float | None
    batch: int
    dtype: str
    device: str
    best: str
    method: str
    schedule: str
    confidence: float | None
    k: int | None
    candidates: int
    prompts: int | None
    repeat: int | None
    speedup: float | None
    low: float | None
    high: float | None
    predicted: float | None
    calibrated: float | None
    alpha: float | None
    alpha_low: float | None
    alpha_high: float | None
    c: float | None
    near_best: str
    break_even_alpha: float | None
    break_even_alpha_measured: float | None
    more_prompts: int | None
    left_out: tuple[str, ...]
    not_measured: tuple[str, ...]


def verdict(rows: Sequence[Row]) -> list[Verdict]:
    """One verdict for every pair, data set and law among the rows of results.csv, in their order.

    YES: the lower bound of some candidate is above 1. NO: the upper bounds of all are below 1. Else, and whatever came
    of synthetic acceptance, UNCLEAR. Cells that failed or are not lossless are never recommended, and are named.
    """
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if text(row, "method") != BASELINE:
            groups.setdefault(tuple(text(row, name) for name in QUESTION), []).append(row)
    return [_judge(group, rows) for group in groups.values()]


def _judge(group: Sequence[Row], rows: Sequence[Row]) -> Verdict:
    found = candidates(group)
    paying = [c for c in found if c.interval.low > 1]
    unsettled = [c for c in found if not c.interval.high < 1]  # while one of them is open, a slower one is no answer
    best = max(paying or unsettled or found, key=lambda c: c.interval.value, default=None)
    answer: Answer = "YES" if paying else "UNCLEAR"
    if found and not unsettled:
        answer = "NO"
    row = best.row if best else group[0]
    if text(row, "acceptance"):
        answer = "UNCLEAR"
    return Verdict(
        answer=answer,
        target=text(row, "target"),
        draft=text(row, "draft"),
        acceptance=text(row, "acceptance"),
        dataset=text(row, "dataset"),
        temperature=number(row, "temperature"),
        batch=int(number(row, "batch") or 1),
        dtype=text(row, "dtype_resolved"),
        device=text(row, "device_name"),
        candidates=len(found),
        **_of_best(best, found, answer),
        left_out=tuple(reason for one in group if (reason := flaw(one))),
        not_measured=_gaps([one for one in rows if _pair(one) == _pair(row)]),
    )


def _of_best(best: Candidate | None, found: Sequence[Candidate], answer: Answer) -> dict[str, Any]:
    """What a verdict says of the best candidate."""
    row: Row = best.row if best else {}
    columns = {"predicted": "speedup_predicted", "calibrated": "speedup_calibrated", "alpha": "alpha",
               "alpha_low": "alpha_low", "alpha_high": "alpha_high", "c": "c", "break_even_alpha": "c"}  # fmt: skip
    prompts = number(row, "prompts")
    draws = number(row, "draws") or prompts  # prompts that are decoded together say as much as one
    interval = best.interval if best else Interval(math.nan, math.nan, math.nan)
    unsettled = answer == "UNCLEAR" and not text(row, "acceptance")
    enough = to_settle(interval, int(draws)) if best and draws and unsettled else None
    return {
        "best": best.name if best else "",
        "method": text(row, "method"),
        "schedule": text(row, "schedule"),
        "confidence": number(row, "confidence"),
        "k": best.k if best else None,
        "prompts": int(prompts) if prompts else None,
        "repeat": int(number(row, "repeat") or 1) if best else None,
        "speedup": finite(interval.value),
        "low": finite(interval.low),
        "high": finite(interval.high),
        **{name: number(row, column) for name, column in columns.items()},
        "near_best": _near(best, found) if best else "",
        "break_even_alpha_measured": _break_even(best) if best else None,
        "more_prompts": max(math.ceil((enough / draws - 1) * prompts), 1) if enough and draws and prompts else None,
    }


def _near(best: Candidate, found: Sequence[Candidate]) -> str:
    """The lookaheads of the best method whose speedup is within 1 % of the best: one is as good as the other."""
    same = [c for c in found if c.constant and c.row.get("method") == best.row.get("method")]
    floor = (1 - FLAT) * best.interval.value
    return ranges(sorted({c.k for c in same if c.interval.value >= floor}))


def _break_even(best: Candidate) -> float | None:
    """The α at which rounds with this K cost as much as they give: tokens(α, K) = Kc + v + overhead."""
    c, v, overhead = (number(best.row, name) for name in ("c", "v", "overhead"))
    if c is None or v is None or overhead is None or not best.constant:
        return None
    cost = best.k * c + v + overhead
    return theory.alpha_from_tokens(max(cost, 1.0), best.k) if cost <= best.k + 1 else None


def _pair(row: Row) -> tuple[str, ...]:
    return tuple(text(row, name) for name in ("target", "draft", "acceptance"))


def _gaps(rows: Sequence[Row]) -> tuple[str, ...]:
    """What the rows of a pair say nothing about."""

    def known(column: str) -> str:
        told = (text(row, column).removesuffix(".0") for row in rows)
        return ", ".join(dict.fromkeys(value for value in told if value))

    others = {"temperatures": "temperature", "data sets": "dataset", "devices": "device_name"}
    named = {what: values for what, column in others.items() if (values := known(column))}
    batches = "batch > 1" if known("batch") in ("", "1") else f"batch other than {known('batch')}"
    return (batches, *(f"{what} other than {values}" for what, values in named.items()))


def lines(found: Verdict) -> list[str]:
    """The verdict in a few sentences, one a line, fit for a terminal."""
    return [clean(line, 1000) for line in (_headline(found), *_figures(found), *_remarks(found)) if line]


def _headline(found: Verdict) -> str:
    if found.acceptance and found.best:
        return f"UNCLEAR — synthetic acceptance: {SYNTHETIC}; with {found.acceptance} the best is {found.best}"
    if found.answer == "YES":
        return f"YES — use speculative decoding here: {found.best}"
    if found.answer == "NO":
        return f"NO — speculative decoding is slower here: {found.best} is the least slow"
    if not found.best:
        return "UNCLEAR — no cell was measured that could be recommended"
    if found.low is None:
        return "UNCLEAR — there is no interval: measure more prompts"
    if found.more_prompts is None:
        return "UNCLEAR — the speedup is 1 as far as can be told"
    return (
        f"UNCLEAR — it may be faster or slower: about {found.more_prompts} more prompts settle it "
        f"if {found.best} stays at {shown(found.speedup)}×"
    )


def _figures(found: Verdict) -> list[str]:
    parts = [found.dataset, f"T = {shown(found.temperature, 'g')}", f"batch {found.batch}", found.dtype, found.device]
    place = ", ".join(part for part in parts if part)
    if not found.best:
        return [place]
    best_of = f", for the best of {found.candidates}" if found.candidates > 1 else ""
    repeats = f" × {found.repeat}" if (found.repeat or 1) > 1 else ""
    few = f"; fewer than {ENOUGH}: a few unusual ones decide" if (found.prompts or 0) < ENOUGH else ""
    flat = f"   optimum flat: K = {found.near_best} within 1 %" if set(found.near_best) & set("-,") else ""
    return [
        f"speedup {shown(found.speedup)}× {span(found.low, found.high)} 95 %{best_of} "
        f"(paired by prompt, {shown(found.prompts, 'd')} prompts{repeats}{few})   {place}",
        f"predicted {shown(found.predicted)}×, with measured costs {shown(found.calibrated)}×   "
        f"alpha {shown(found.alpha)} {span(found.alpha_low, found.alpha_high)}   c {shown(found.c)}{flat}",
    ]


def _remarks(found: Verdict) -> list[str]:
    even = ""
    if found.break_even_alpha is not None:
        even = f"break-even: by the formula alpha > c ({shown(found.break_even_alpha)})"
        if found.break_even_alpha_measured is not None:
            even += f"; with the costs measured for {found.best}: alpha > {shown(found.break_even_alpha_measured)}"
    gaps = f"not measured: {'; '.join(found.not_measured)}"
    return [even, *(f"left out: {reason}" for reason in found.left_out), gaps]
