"""The columns made of seconds: costs of a round, its phases, throughput, and the break-even batch.

Knows samples and the formulas; must not know tables or files.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from heapq import heapreplace

from specbench import metrics
from specbench.metrics import Trace
from specbench.results.batches import decodes
from specbench.results.samples import Sample, by_prompt
from specbench.results.statistics import Interval, ratio_of_means
from specbench.theory import optimum
from specbench.theory.costs import Timing, measured_costs, phases


def timing(traces: Sequence[Trace]) -> Timing:
    """The totals of one arm; only outermost spans count, since inner spans are part of them. NaN for the phases of an
    engine that tells nothing of them."""
    told = not traces or any(not t.spans or "verify" in t.spans for t in traces)
    found = [math.fsum(t.spans.get(phase, 0.0) for t in traces) for phase in ("draft", "verify", "accept")]
    draft, verify, accept = found if told else (math.nan,) * 3
    return Timing(
        seconds=math.fsum(t.seconds for t in traces),
        draft=draft,
        verify=verify,
        accept=accept,
        update=math.fsum(t.updating for t in traces),
        draft_first=math.fsum(t.spans.get("draft/first", 0.0) for t in traces),
        rounds=sum(len(t.rounds) for t in traces),
        drafted=sum(r.drafted for t in traces for r in t.rounds),
        tokens=sum(len(t.tokens) for t in traces),
    )


def cost_columns(samples: Sequence[Sample], baseline: Timing, method: Timing) -> dict[str, float]:
    """Seconds as columns: the costs of a round in baseline steps, its phases in milliseconds, tokens per second.

    Rows decoded together share their time: a round or a step of a batch of B takes a B-th of what a clock shows.
    """
    cost, v = measured_costs(baseline, method), v_of(samples)
    drafts = sum(r.drafted > 0 for s in samples for r in s.method.rounds)
    return {
        "c": cost.c,
        "v": cost.v,
        "v_low": v.low,
        "v_high": v.high,
        "overhead": cost.overhead,
        "baseline_step_ms": 1000 * cost.baseline_step_seconds,
        "round_ms": 1000 * cost.round_seconds,
        **{f"round_{phase}_ms": 1000 * s for phase, s in asdict(phases(method)).items()},
        "draft_token_ms": 1000 * metrics.ratio(method.draft, method.drafted),
        "draft_first_ms": 1000 * metrics.ratio(method.draft_first, drafts),
        "baseline_tokens_per_second": metrics.ratio(baseline.tokens, baseline.seconds),
        "tokens_per_second": metrics.ratio(method.tokens, method.seconds),
        "baseline_prefill_ms": 1000 * math.fsum(s.baseline.prefill_seconds for s in samples) / len(samples),
        "prefill_ms": 1000 * math.fsum(s.method.prefill_seconds for s in samples) / len(samples),
    }


def v_of(samples: Sequence[Sample]) -> Interval:
    """The cost of verification with its interval over prompts: a pass of a round ÷ a pass of the baseline."""
    groups = by_prompt(samples)
    method = [timing([sample.method for sample in group]) for group in groups]
    baseline = [timing([sample.baseline for sample in group]) for group in groups]
    return ratio_of_means(
        [arm.verify for arm in method],
        [arm.rounds for arm in method],
        [arm.verify for arm in baseline],
        [arm.rounds for arm in baseline],
    )


def break_even(samples: Sequence[Sample], baseline: Timing, method: Timing, nodes: float, rows: int) -> float:
    """The batch at which the speedup would be 1 (`optimum.break_even_batch`), from a cell measured with `rows` rows.

    The target's passes of the two arms, over B and over B(n + 1) tokens, give its fixed cost and its cost per token:
    n = `nodes`, drafted tokens in a mean pass. Rows that stood idle at the end of a turn are not in it. NaN where the
    wider pass was not the slower one.
    """
    if not method.drafted or not baseline.verify > 0 or not nodes:
        return math.nan
    turns = decodes(samples)
    steps = passes([[samples[i].baseline for i in turn] for turn in turns], rows)
    rounds = passes([[samples[i].method for i in turn] for turn in turns], rows)
    one, many = baseline.verify / steps, method.verify / rounds
    per_token = (many - one) / (rows * nodes)
    tokens = method.tokens / method.rounds
    rest = baseline.seconds / steps - one
    return optimum.break_even_batch(tokens, nodes, one - rows * per_token, per_token, rest, method.draft / rounds)


def rows_idle(samples: Sequence[Sample], rows: int, *, baseline: bool = False) -> float:
    """The share of an arm's passes in which a mean row had no prompt left: rows run empty at the end of a turn."""
    arm = [sample.baseline if baseline else sample.method for sample in samples]
    traces = [[arm[i] for i in turn] for turn in decodes(samples)]
    return 1 - metrics.ratio(sum(len(t.rounds) for turn in traces for t in turn), rows * passes(traces, rows))


def passes(turns: Iterable[Sequence[Trace]], rows: int) -> int:
    """Passes over all rows together: each prompt of a turn begins in the row that is free first."""
    found = 0
    for traces in turns:
        free = [0] * rows
        for trace in traces:
            heapreplace(free, free[0] + len(trace.rounds))
        found += max(free)
    return found
