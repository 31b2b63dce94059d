"""Requests to a server without and with a draft: paired by prompt, their ratio with an interval, and the answer.

The two runs were made one after the other by a load generator. What differed between them besides the draft
(clocks, neighbours, other users) is in no interval; an answer names it.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specbench.acceptance import Record
from specbench.errors import NotComparableError
from specbench.results.latency import (
    Request,
    decoded,
    goodput,
    goodput_difference,
    in_milliseconds,
    seconds_over,
    throughput,
    times_of,
)
from specbench.results.statistics import (
    ENOUGH,
    FEWEST,
    Interval,
    bounds,
    ratio_of_means,
    ratio_of_totals,
    speedup_interval,
    to_settle,
)
from specbench.wording import counted, grouped, some

Pair = tuple[Request, Request]


@dataclass(frozen=True)
class Traffic:
    """Requests of one tool under one load. load: in words; flying: requests in flight, None if they come at a rate.

    totals: accepted and drafted tokens of all requests, from counters of the server, where requests have no records.
    by_place: the tool records no prompts, so that requests are named by their place and length.
    """

    tool: str
    model: str
    load: str
    flying: int | None
    requests: tuple[Request, ...]
    totals: Record | None = None
    by_place: bool = False

    @property
    def answered(self) -> list[Request]:
        return [one for one in self.requests if not one.failed]


def compared(
    base: Sequence[Traffic], spec: Sequence[Traffic], limits: Mapping[str, float]
) -> tuple[list[dict[str, Any]], list[str]]:
    """A row for every load that both have, and notes on the others. NotComparableError if there is none."""
    loads = [{one.load: one for one in some} for some in (base, spec)]
    both = [name for name in loads[0] if name in loads[1]]
    if not both:
        raise NotComparableError(
            f"BASE was measured with {some(loads[0]) or 'no load'}, SPEC with {some(loads[1]) or 'no load'}: "
            "measure both with the same load"
        )
    sides = zip(("BASE", "SPEC"), loads, strict=True)
    alone = [f"{name}: only in {where}" for where, own in sides for name in own if name not in both]
    rows = [row_of(loads[0][name], loads[1][name], limits) for name in both]
    return sorted(rows, key=lambda row: row["concurrency"] or 0), alone


def paired(base: Traffic, spec: Traffic) -> list[Pair]:
    """The answered requests of the same prompts, as many of each as both have. NotComparableError without any."""
    if base.tool != spec.tool:
        raise NotComparableError(f"BASE is a file of {base.tool}, SPEC of {spec.tool}, which count differently")
    if base.model != spec.model:
        raise NotComparableError(
            f"BASE served {base.model}, SPEC {spec.model}: measure one model without and with a draft"
        )
    sides = [{group[0].key: group for group in grouped(one.answered, lambda r: r.key)} for one in (base, spec)]
    pairs = [pair for key, group in sides[0].items() for pair in zip(group, sides[1].get(key, []), strict=False)]
    if len({one.draw for one, _ in pairs}) < 2:
        how = "same data set, seed and --num-prompts" if base.by_place else "same input file, kept with its results"
        raise NotComparableError(
            f"{counted(len(pairs), 'request')} of {len(base.requests)} in BASE and {len(spec.requests)} in SPEC were "
            f"answered for the same prompt, and at least two prompts are needed: measure both with the {how}"
        )
    return pairs


def row_of(base: Traffic, spec: Traffic, limits: Mapping[str, float]) -> dict[str, Any]:
    """All numbers of one load, in the words of results.csv; `baseline_` is BASE."""
    pairs = paired(base, spec)
    draws = grouped(pairs, lambda pair: pair[0].draw)
    (speedup, end_to_end, ttft), doubts = speedups_of(draws), doubts_of(base, spec, pairs, len(draws))
    leans = leaning(bounds("speedup", speedup))
    more = to_settle(speedup, len(draws)) if leans == "UNCLEAR" and len(draws) >= FEWEST else None
    texts = [(one.text, other.text) for one, other in pairs if one.text and other.text]
    return {
        "tool": base.tool,
        "model": base.model,
        "load": base.load,
        "concurrency": base.flying,
        "answer": "PROVISIONAL" if doubts and leans != "UNCLEAR" else leans,
        "leaning": leans,
        "doubts": "; ".join(doubts),
        "prompts": len(draws),
        "prompts_to_settle": more,
        "requests": len(pairs),
        **bounds("speedup", speedup),
        **bounds("speedup_end_to_end", end_to_end),
        **bounds("speedup_ttft", ttft),
        **arm_of("baseline_", base),
        **arm_of("", spec),
        **acceptance_of(spec, draws),
        "texts_identical": sum(one == other for one, other in texts) if texts else None,
        "texts_compared": len(texts) or None,
        **(goodput_of(base, spec, pairs, len(draws), limits) if limits else {}),
    }


def speedups_of(draws: Sequence[Sequence[Pair]]) -> tuple[Interval, Interval, Interval]:
    """BASE ÷ SPEC: seconds per token after the first piece (the speedup of results.csv), those of whole answers per
    token, and those to the first piece."""

    def sides(value: Callable[[Request], float]) -> list[list[float]]:
        return [[math.fsum(value(pair[arm]) for pair in some) for some in draws] for arm in (0, 1)]

    later = [[decoded(pair[arm] for pair in some) for some in draws] for arm in (0, 1)]
    tokens = [[sum(pair[arm].tokens for pair in some) for some in draws] for arm in (0, 1)]
    whole, first = sides(lambda one: one.last), sides(lambda one: one.first)
    return (
        speedup_interval(*zip(*later[0], strict=True), *zip(*later[1], strict=True)),
        ratio_of_means(whole[0], tokens[0], whole[1], tokens[1]),
        ratio_of_totals(first[0], first[1]),
    )


def arm_of(arm: str, found: Traffic) -> dict[str, Any]:
    """Latencies and throughput of all answered requests of one side, the failed ones counted."""
    return {
        f"{arm}requests_failed": len(found.requests) - len(found.answered),
        **throughput(arm, found.answered, seconds_over(found.answered)),
        **in_milliseconds(arm, times_of(found.answered)),
    }


def acceptance_of(spec: Traffic, draws: Sequence[Sequence[Pair]]) -> dict[str, Any]:
    """Acceptance length 1 + accepted ÷ rounds and accepted ÷ drafted, over records of requests, else over counters."""
    per_draw = [[pair[1].acceptance for pair in some if pair[1].acceptance] for some in draws]
    counts = [totals(some) for some in per_draw if some]
    whole = totals(counts) if counts else spec.totals
    if whole is None or not whole.drafted or not whole.rounds:
        return {"acceptance_source": None, **bounds("acceptance_length", NONE), "accepted_per_drafted": None}
    length = Interval(whole.accepted / whole.rounds, math.nan, math.nan)
    if counts:
        length = ratio_of_totals([one.accepted for one in counts], [one.rounds or 0 for one in counts])
    return {
        "acceptance_source": "requests" if counts else "counters",
        **bounds("acceptance_length", Interval(1 + length.value, 1 + length.low, 1 + length.high)),
        "accepted_per_drafted": whole.accepted / whole.drafted,
    }


NONE = Interval(math.nan, math.nan, math.nan)


def totals(some: Iterable[Record]) -> Record:
    """The counts of several requests together, all with rounds and drafted tokens."""
    counts = [(one.rounds or 0, one.drafted or 0, one.accepted) for one in some]
    rounds, drafted, accepted = map(sum, zip(*counts, strict=True))
    return Record("requests", rounds, drafted, accepted)


def goodput_of(
    base: Traffic, spec: Traffic, pairs: Sequence[Pair], draws: int, limits: Mapping[str, float]
) -> dict[str, Any]:
    """The share of requests within all limits and how many a second, of both; the difference of the pairs' shares.

    A failed request is not within the limits. Its share is of all requests, as in AIPerf.
    """
    found: dict[str, Any] = {f"slo_{name}_ms": 1000 * most for name, most in limits.items()}
    for arm, one in (("baseline_", base), ("", spec)):
        alone = len({request.draw for request in one.requests})
        found |= goodput(arm, one.requests, alone, seconds_over(one.requests), limits)
    return found | goodput_difference(pairs, draws, limits)


def doubts_of(base: Traffic, spec: Traffic, pairs: Sequence[Pair], draws: int) -> list[str]:
    """Why the answer is only provisional."""
    found = [f"only {counted(draws, 'prompt')} ({ENOUGH} needed)"] if draws < ENOUGH else []
    for where, one in (("BASE", base), ("SPEC", spec)):
        if failed := len(one.requests) - len(one.answered):
            found.append(f"{failed} of {counted(len(one.requests), 'request')} failed in {where}")
    if base.totals or any(one.acceptance for one in base.requests):
        found.append("BASE was served with a draft, too")
    alone = max(len(base.answered), len(spec.answered)) - len(pairs)
    return found + ([f"{counted(alone, 'request')} had no partner with the same prompt"] if alone > len(pairs) else [])


def leaning(row: Mapping[str, Any]) -> str:
    """Whether the interval of a speedup excludes 1: YES, NO or UNCLEAR."""
    low, high = row["speedup_low"], row["speedup_high"]
    return "UNCLEAR" if low is None or high is None else "YES" if low > 1 else "NO" if high < 1 else "UNCLEAR"


def turning(loads: Sequence[tuple[float, str]]) -> float | None:
    """The least load from which speculation does not certainly pay, at it and at all larger ones; None if at none."""
    paying = max((load for load, leaning in loads if leaning == "YES"), default=0)
    return min((load for load, _ in loads if load > paying), default=None)
