"""YES, NO, PROVISIONAL or UNCLEAR: does speculative decoding pay here, with which K, and what would settle it.

`settling` explains what makes an answer provisional.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from specbench.judge.advice import QUESTION, at_once, drafting, gaps, precision
from specbench.judge.candidates import Candidate, by_costs, by_formula, candidates, flaw, near_best
from specbench.judge.settling import doubts, further, how_to_settle, more_prompts, only
from specbench.results.statistics import Interval
from specbench.spec import BASELINE
from specbench.wording import (
    Row,
    clean,
    finite_or_none,
    formatted,
    grouped,
    interval_text,
    number_in,
    pair_said,
    text_in,
)

PAIR = ("target", "draft", "acceptance")
COPIED = (
    "confidence", "alpha", "alpha_low", "alpha_high", "c", "v", "overhead", "tokens_per_round", "tokens_per_second",
    "baseline_tokens_per_second", "baseline_step_ms", "round_ms", "looping_share",
)  # fmt: skip

Answer = Literal["YES", "NO", "PROVISIONAL", "UNCLEAR"]
Leaning = Literal["YES", "NO"]


@dataclass(frozen=True)
class Recommendation:
    """The answer for one pair on one data set. Unmeasured values are None.

    leaning: the PROVISIONAL answer without its `reasons`; an UNCLEAR one may have some as well. settle, command: what
    would settle it, in words, and as a command line if the run's is known. acceptance: the rates if it is synthetic,
    else empty; such cells are no evidence that the pair pays. chat: the chat template of the prompts, in words. draws:
    the number of independent draws for the interval. low, high: 95 % interval of the speedup of the best candidate,
    widened because it is the best of `candidates` (Bonferroni). break_even_alpha: by the formula any α above c pays; if
    one pass makes a whole draft (`at_once`), the α at which this K pays. `break_even_alpha_measured` is the α at which
    this K pays with the measured costs. more_prompts: how many more would settle an UNCLEAR one. further: the next
    command if nothing is to be settled. run: the folder of the run, as named in commands. tokens_per_round, c_round, v,
    overhead: tokens of a round of the best candidate, and its costs in baseline steps. faster: why a candidate that is
    faster on average was not chosen, else empty. looping: the share of tokens in loops, as text of the best candidate.
    """

    answer: Answer
    leaning: Leaning | None
    reasons: tuple[str, ...]
    settle: str
    command: str
    target: str
    draft: str
    acceptance: str
    dataset: str
    context: int | None
    chat: str
    temperature: float | None
    batch: int
    arrivals: float | None
    dtype: str
    device: str
    engine: str
    best: str
    method: str
    schedule: str
    confidence: float | None
    k: int | None
    candidates: int
    prompts: int | None
    draws: int | None
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
    c_round: float | None
    at_once: bool
    near_best: str
    break_even_alpha: float | None
    break_even_alpha_measured: float | None
    more_prompts: int | None
    left_out: tuple[str, ...]
    not_measured: tuple[str, ...]
    further: str
    run: str
    baseline_tokens_per_second: float | None
    tokens_per_second: float | None
    tokens_per_round: float | None
    v: float | None
    overhead: float | None
    baseline_step_ms: float | None
    round_ms: float | None
    looping_share: float | None
    lossless: str
    prompts_identical: int | None
    prompts_compared: int | None
    faster: str

    def __repr__(self) -> str:
        what = f"{pair_said(self.target, self.draft)} on {clean(self.dataset)}"
        measured = f": {clean(self.best)}, {formatted(self.speedup)}× {interval_text(self.low, self.high)}"
        return f"<Recommendation {self.answer}, {what}{measured if self.best else ''}>"


def recommend(rows: Sequence[Row]) -> list[Recommendation]:
    """One answer for every pair, data set and sampling distribution in the rows of results.csv, in order.

    YES: the lower bound of some candidate is above 1. NO: the upper bounds of all are below 1. Either is
    PROVISIONAL on few prompts or a busy machine. UNCLEAR otherwise, and always for synthetic acceptance.
    Cells that failed or are not lossless are never recommended, and are named.
    """
    speculative = [row for row in rows if text_in(row, "method") != BASELINE]
    groups = grouped(speculative, lambda row: tuple(text_in(row, name) for name in QUESTION))
    return [_judge(group, rows) for group in groups]


def pays(found: Recommendation, least: float | None = None) -> bool | None:
    """Whether the answer is YES, or with `least`, whether the best speedup surely reaches it; None if unsettled."""
    if least is None:
        return {"YES": True, "NO": False}.get(found.answer)
    if found.reasons or found.acceptance or found.low is None or found.high is None:
        return None
    return True if found.low >= least else False if found.high < least else None


def _judge(group: Sequence[Row], rows: Sequence[Row]) -> Recommendation:
    found = candidates(group)
    best, leaning = _leaning(found)
    row = best.row if best else group[0]
    judged = best is not None and not text_in(row, "acceptance")
    leaning = leaning if judged else None
    carrying = sorted(found, key=lambda c: c is not best) if leaning == "NO" else [best] if best and judged else []
    given = carrying or found
    template = text_in(row, "chat_template_resolved")
    same: dict[str, Any] = {n: text_in(row, n) for n in (*PAIR, "dataset", "engine")}
    words = {"": "", "none": "", "own": "in its chat template", "not applied": "without its chat template"}
    return Recommendation(
        **_answer(carrying, leaning),
        **same,
        context=int(number_in(row, "context") or 0) or None,
        chat=words.get(template, f"in the chat template {clean(template, 300)}"),
        temperature=number_in(row, "temperature"),
        batch=int(number_in(row, "batch") or 1),
        arrivals=number_in(row, "arrivals"),
        dtype=precision(row),
        device=text_in(row, "device_name"),
        candidates=len(found),
        **_of_best(best, found),
        left_out=tuple(reason for one in group if (reason := flaw(one))),
        not_measured=gaps([one for one in rows if all(text_in(one, n) == same[n] for n in PAIR)]),
        further=further(given, alone=len(found) == 1),
        run=only("run", given),
        faster=faster(best, found) if judged and leaning == "YES" else "",
    )


def _leaning(found: Sequence[Candidate]) -> tuple[Candidate | None, Leaning | None]:
    """The best candidate, and the answer that the intervals suggest."""
    paying = [c for c in found if c.interval.low > 1]
    settled = [c for c in paying if not doubts([c])]  # prefer one that surely pays to a faster uncertain one
    unsettled = [c for c in found if not c.interval.high < 1]  # while one is open, a slower one is not the answer
    best = max(settled or paying or unsettled or found, key=lambda c: c.interval.value, default=None)
    return best, "YES" if paying else "NO" if found and not unsettled else None


def faster(best: Candidate | None, found: Sequence[Candidate]) -> str:
    """Why the candidate with the highest speedup is not the chosen one; empty if it is."""
    top = max(found, key=lambda c: c.interval.value, default=None)
    if best is None or top is None or top.interval.value <= best.interval.value:
        return ""
    low, high = top.interval.low, top.interval.high
    if low > 1:
        reason = f"only provisionally: {'; '.join(doubts([top]))}"
    else:
        span = "it has no interval" if math.isnan(low) else f"its 95 % interval {low:.2f}–{high:.2f} includes 1"
        reason = f"but not certainly: {span}"
    return f"{top.name} is faster on average, {top.interval.value:.2f}×, {reason}"


def _answer(carrying: Sequence[Candidate], leaning: Leaning | None) -> dict[str, Any]:
    """The answer that some cells carry, best first, why it is provisional, and what would settle it."""
    reasons = doubts(carrying) if carrying else ()
    more = more_prompts(carrying[0]) if carrying and not leaning else None
    promise = "settle it" if leaning or more else "measure again"
    settle, command = how_to_settle(carrying, more, promise) if carrying else ("", "")
    answer: Answer = ("PROVISIONAL" if reasons else leaning) if leaning else "UNCLEAR"
    return {
        "answer": answer,
        "leaning": leaning if reasons else None,
        "reasons": reasons,
        "settle": settle,
        "command": command,
        "more_prompts": more,
    }


def _of_best(best: Candidate | None, found: Sequence[Candidate]) -> dict[str, Any]:
    row: Row = best.row if best else {}
    interval = best.interval if best else Interval(math.nan, math.nan, math.nan)
    return {
        "best": best.name if best else "",
        **{name: text_in(row, name) for name in ("method", "schedule", "lossless")},
        "k": best.k if best else None,
        "prompts": (best.prompts or None) if best else None,
        "draws": (best.draws or None) if best else None,
        "repeat": int(number_in(row, "repeat") or 1) if best else None,
        "speedup": finite_or_none(interval.value),
        "low": finite_or_none(interval.low),
        "high": finite_or_none(interval.high),
        "predicted": number_in(row, "speedup_predicted"),
        "calibrated": number_in(row, "speedup_calibrated"),
        **{name: number_in(row, name) for name in COPIED},
        **{name: int(number_in(row, name) or 0) for name in ("prompts_identical", "prompts_compared")},
        "c_round": drafting(row),
        "at_once": at_once(row),
        "near_best": near_best(best, found) if best else "",
        "break_even_alpha": by_formula(best) if best else None,
        "break_even_alpha_measured": by_costs(best) if best else None,
    }
