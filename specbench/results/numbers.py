"""The numbers of a cell: everything in results.csv that is computed from its samples.

Prompts decoded together share their time: as one decode, they are one value for statistics of times.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from heapq import heapreplace
from statistics import fmean
from typing import Any

from specbench import metrics
from specbench.metrics import Trace, ratio
from specbench.results import noise, statistics
from specbench.results.latency import LATENCY, SERVED, WITHIN, latency, served
from specbench.results.machine import PEAKS
from specbench.results.nests import BELIEF, LEG, belief_columns, draft_costs, inner_levels, steady
from specbench.results.noise import steadiness
from specbench.results.samples import (
    Loop,
    Sample,
    alpha_of,
    by_prompt,
    loop_of,
    repeated_ngrams,
    rounds_before,
    speedup_of,
    speedup_per_token,
    without_updates,
)
from specbench.results.statistics import Interval, ratio_of_means
from specbench.theory import optimum
from specbench.theory.optimum import Timing, measured_costs, phases
from specbench.theory.waterfall import explain
from specbench.wording import grouped

REQUESTS = 16  # least requests of a turn with arrival times: fewer would meet an empty server
PER_SLOT = 2  # least requests of a turn per request in flight: with fewer, the load falls during most of the turn
CHOSEN = ("chosen", "choosing_cost")
BOTH = ("repeated_4grams", "looping_share", "longest_cycle", "prompts_looping", "prompts_ended_by_eos")
OUTPUTS = (*(f"{arm}{name}" for arm in ("", "baseline_") for name in BOTH),
           "alpha_outside_loops", "tokens_per_round_outside_loops", "draft_coverage")  # fmt: skip
STEADINESS = tuple(steadiness([]))
LEARNING = ("speedup_elsewhere", "speedup_elsewhere_low", "speedup_elsewhere_high", "update_share")
ROUNDS = ("tokens_per_round", "rounds", "drafted", "tested", "accepted", "drafted_per_round", "nodes_per_round",
          "draft_hit_rate")  # fmt: skip  # unknown where a server does not report acceptance
LENGTHS = ("acceptance_length", "acceptance_length_mean", "rounds_by_accepted", "acceptance_joint", "acceptance_from")
NUMBERS = (
    "prompts", "draws", "turns", "turns_cut", "alpha", "alpha_low", "alpha_high", "alpha_tested",
    "accepted_per_drafted", *LENGTHS, "tokens_per_round", "c", "v", "v_low", "v_high", "overhead", "baseline_step_ms",
    "round_ms", "round_draft_ms", "round_verify_ms", "round_accept_ms", "round_host_ms", "round_update_ms",
    "draft_token_ms", "draft_first_ms", "baseline_tokens_per_second", "tokens_per_second", "speedup", "speedup_low",
    "speedup_high", "speedup_geomean", "speedup_end_to_end", "break_even_batch", "rows_idle", "baseline_rows_idle",
    *LEARNING, "speedup_predicted", "speedup_calibrated", "speedup_ideal", "term_first_draft", "term_levels",
    "term_position", "term_verify", "term_sampling", "term_host", "term_update", "term_truncated", "term_rest",
    "baseline_prefill_ms", "prefill_ms", *LATENCY, *SERVED, *WITHIN, "baseline_ready_seconds", "ready_seconds", *PEAKS,
    *CHOSEN, "rounds", "drafted", "tested", "accepted", "drafted_per_round", "nodes_per_round", "draft_hit_rate",
    "law_distance", *BELIEF, "tokens", "baseline_tokens", "outliers", "drift", "drift_p", "bimodality",
    "load_average", *STEADINESS, *OUTPUTS, "lossless", "prompts_identical", "prompts_compared", "first_divergence",
    "top2_gap", "noise_floor",
)  # fmt: skip


def numbers(samples: Sequence[Sample], lookahead: int | None, rows: int = 1) -> dict[str, Any]:
    """All values computed from the samples of a cell, by column.

    `lookahead` is the K of a constant schedule, None for others; `rows` is the number of rows decoded together.
    """
    traces = [s.method for s in samples]
    rounds = [r for trace in traces for r in trace.rounds]
    counts, drafting = metrics.acceptance(rounds), metrics.drafting(rounds)
    baseline, method = timing([s.baseline for s in samples]), timing(traces)
    return {
        "prompts": len({s.prompt for s in samples}),
        "draws": len(by_prompt(samples)),
        **turn_columns(samples),
        **acceptance_columns(samples, counts),
        **metrics.lengths([trace.rounds for trace in traces]),
        "acceptance_from": "; ".join(sorted({trace.source for trace in traces if trace.source})),
        **cost_columns(samples, baseline, method),
        **latency([s.baseline for s in samples], traces, rows),
        **served([s.baseline for s in samples], traces),
        **speedup_columns(samples),
        "break_even_batch": break_even(samples, baseline, method, drafting["nodes_per_round"], rows),
        "rows_idle": rows_idle(samples, rows),
        "baseline_rows_idle": rows_idle(samples, rows, baseline=True),
        **chosen_columns(samples),
        "rounds": counts.rounds,
        "drafted": counts.drafted,
        "tested": counts.tested,
        "accepted": counts.accepted,
        **drafting,
        **belief_columns(rounds),
        "tokens": method.tokens,
        "baseline_tokens": baseline.tokens,
        **noise.diagnose(pooled(samples)),
        **steadiness(pooled(samples)),
        **{f"acceptance_at_{i}": a for i, a in enumerate(counts.by_position, start=1)},
        **explanation(samples, baseline, method, lookahead),
        **({} if learns(samples) else {"round_update_ms": None}),
        **(dict.fromkeys(ROUNDS) if all(trace.source == metrics.UNREPORTED for trace in traces) else {}),
    }


def learns(samples: Sequence[Sample]) -> bool:
    """Whether the method's draft learns between prompts."""
    return any("update" in one.method.spans for one in samples)


def turn_columns(samples: Sequence[Sample]) -> dict[str, int | None]:
    """Decoded and missing turns of the started conversations; None without conversations."""
    began = {s.prompt: s.conversation[1] for s in samples}
    if max(began.values()) == 1:
        return {"turns": None, "turns_cut": None}
    turns = len({(s.prompt, s.conversation[0]) for s in samples})
    return {"turns": turns, "turns_cut": sum(began.values()) - turns}


def acceptance_columns(samples: Sequence[Sample], counts: metrics.Acceptance) -> dict[str, float]:
    """α with its interval over prompts, and the other acceptance numbers."""
    alpha = alpha_of(samples)
    return {
        "alpha": alpha.value,
        "alpha_low": alpha.low,
        "alpha_high": alpha.high,
        "alpha_tested": counts.alpha_tested,
        "accepted_per_drafted": counts.accepted_per_drafted,
        "tokens_per_round": counts.tokens_per_round,
    }


def speedup_columns(samples: Sequence[Sample]) -> dict[str, float | None]:
    """The measured speedup with its interval over prompts, and other means."""
    speedup = speedup_of(samples)
    return {
        "speedup": speedup.value,
        "speedup_low": speedup.low,
        "speedup_high": speedup.high,
        "speedup_geomean": statistics.geomean([speedup_per_token(s) for s in samples]),
        "speedup_end_to_end": metrics.speedup_of_totals(
            (s.baseline.seconds + s.baseline.prefill_seconds for s in samples),
            (len(s.baseline.tokens) for s in samples),
            (s.method.seconds + s.method.prefill_seconds for s in samples),
            (len(s.method.tokens) for s in samples),
        ),
        **learning_columns(samples),
    }


def learning_columns(samples: Sequence[Sample]) -> dict[str, float | None]:
    """The speedup without draft updates, and their share of the time; None for methods that do not learn."""
    if not learns(samples):
        return dict.fromkeys(LEARNING)
    found = speedup_of([without_updates(s) for s in samples])
    updating, seconds = math.fsum(s.method.updating for s in samples), math.fsum(s.method.seconds for s in samples)
    return dict(zip(LEARNING, (found.value, found.low, found.high, metrics.ratio(updating, seconds)), strict=True))


def explanation(samples: Sequence[Sample], baseline: Timing, method: Timing, lookahead: int | None) -> dict[str, float]:
    """The terms between the predicted and the measured speedup, and the numbers of each inner level of a nest."""
    traces = [s.method for s in samples]
    rounds = [r for trace in traces for r in trace.rounds]
    lookahead = steady(traces, lookahead)
    step = metrics.ratio(baseline.seconds, baseline.rounds)
    inner = inner_levels(traces, step)
    drafts = draft_costs(inner, traces, step, lookahead)
    relayed = any(LEG in trace.spans for trace in traces)  # each drafter in turn has its own acceptance
    lengths = [len(trace.tokens) for trace in traces]
    found = explain(rounds, baseline, method, lookahead, speedup_of(samples).value, drafts, relayed, lengths)
    levels = (level.row(number) for number, level in enumerate(inner, start=2))
    return found.row() | {name: value for row in levels for name, value in row.items()}


# --- costs ------------------------------------------------------------------------------------------------------------


def timing(traces: Sequence[Trace]) -> Timing:
    """The totals of one arm over outermost spans, which contain the inner ones; NaN for unreported phases."""
    timed = not traces or any(not t.spans or "verify" in t.spans for t in traces)
    found = [math.fsum(t.spans.get(phase, 0.0) for t in traces) for phase in ("draft", "verify", "accept")]
    draft, verify, accept = found if timed else (math.nan,) * 3
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
    """Times as columns: the costs of a round in baseline steps, its phases in milliseconds, tokens per second.

    Rows decoded together share their time: a round or step of a batch of B counts as a B-th of the elapsed time.
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

    The target's passes of the two arms, over B and over B(n + 1) tokens, give its fixed cost and its cost per
    token: n = `nodes`, drafted tokens in a mean pass. Rows that were idle at the end of a turn are excluded.
    NaN if the wider pass was not slower.
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
    """The share of an arm's row passes without a prompt: rows run empty at the end of a turn."""
    arm = [sample.baseline if baseline else sample.method for sample in samples]
    traces = [[arm[i] for i in turn] for turn in decodes(samples)]
    return 1 - metrics.ratio(sum(len(t.rounds) for turn in traces for t in turn), rows * passes(traces, rows))


def passes(turns: Iterable[Sequence[Trace]], rows: int) -> int:
    """Passes over all rows together: each prompt of a turn starts in the first free row."""
    found = 0
    for traces in turns:
        free = [0] * rows
        for trace in traces:
            heapreplace(free, free[0] + len(trace.rounds))
        found += max(free)
    return found


# --- chosen methods ---------------------------------------------------------------------------------------------------


def chosen_columns(samples: Sequence[Sample]) -> dict[str, Any]:
    """Each choice with its number of turns, most frequent first, and the regret against that one.

    The regret compares the seconds per token of all prompts. None for cells without choices.
    """
    turns = {one.turn: one.method.choice for one in samples if one.method.choice}
    if not turns:
        return dict.fromkeys(CHOSEN)
    counted = Counter(turns.values()).most_common()
    favourite = [one for one in samples if one.method.choice == counted[0][0]]
    whole, best = (
        ratio(math.fsum(one.method.seconds for one in some), sum(len(one.method.tokens) for one in some))
        for some in (samples, favourite)
    )
    cost = ratio(whole, best) - 1
    return {"chosen": ", ".join(f"{choice} ×{count}" for choice, count in counted), "choosing_cost": cost}


# --- prompts decoded together -----------------------------------------------------------------------------------------


def per_draw(batch: int, arrivals: float | None, served: bool) -> int:
    """Least prompts in an independent draw of a time: those decoded together, or the requests of a turn."""
    per_row = PER_SLOT if served and batch > 1 else 1
    return REQUESTS if arrivals is not None else per_row * batch


def decodes(samples: Sequence[Sample]) -> list[list[int]]:
    """Indices of the samples decoded together, in one turn; each sample by itself without batches."""
    return grouped(range(len(samples)), lambda i: samples[i].turn)


def pooled(samples: Sequence[Sample]) -> list[Sample]:
    """One sample per group of `decodes`."""
    return [together([samples[i] for i in group]) for group in decodes(samples)]


def together(samples: Sequence[Sample]) -> Sample:
    """Samples decoded together as one: all rounds and seconds, over a prompt of the mean length."""
    if len(samples) == 1:
        return samples[0]
    return replace(
        samples[0],
        prompt_tokens=sum(s.prompt_tokens for s in samples) // len(samples),
        baseline=joined([s.baseline for s in samples]),
        method=joined([s.method for s in samples]),
    )


def joined(traces: Sequence[Trace]) -> Trace:
    """One trace with the seconds and rounds of all, and the mean number of tokens."""
    tokens = [token for trace in traces for token in trace.tokens]
    return Trace(
        tuple(tokens[: len(tokens) // len(traces)]),
        tuple(one for trace in traces for one in trace.rounds),
        math.fsum(trace.seconds for trace in traces),
        math.fsum(trace.prefill_seconds for trace in traces),
    )


# --- outputs ----------------------------------------------------------------------------------------------------------


def output_columns(samples: Sequence[Sample], longest: int) -> dict[str, Any]:
    """The columns `OUTPUTS` of a cell; `longest` is the number of new tokens at which an output is cut."""
    method = [(s.prompt, s.method) for s in samples]
    baseline = [(s.prompt, s.baseline) for s in samples]
    known = [s.method.draftable for s in samples if s.method.draftable is not None]
    emitted = sum(len(s.method.tokens) for s in samples)
    outside = metrics.acceptance([r for s in samples for r in outside_loops(s.method)])
    return {
        **arm_columns(method, longest),
        **{f"baseline_{name}": value for name, value in arm_columns(baseline, longest).items()},
        "alpha_outside_loops": outside.alpha,
        "tokens_per_round_outside_loops": outside.tokens_per_round,
        # tokens are draws from the target's p: their share in a reduced draft vocabulary estimates Σ p over it,
        # an upper bound of α
        "draft_coverage": metrics.ratio(sum(known), emitted) if known else None,
    }


def arm_columns(decoded: Sequence[tuple[str, Trace]], longest: int) -> dict[str, Any]:
    """The columns `BOTH` of one arm, from its outputs with the names of their prompts."""
    traces = [trace for _, trace in decoded]
    loops = [loop_of(trace.tokens) for trace in traces]
    shares = [share for trace in traces if (share := repeated_ngrams(trace.tokens)) == share]
    looping = sum(len(t.tokens) - one.start for t, one in zip(traces, loops, strict=True) if one)
    return {
        "repeated_4grams": fmean(shares) if shares else None,
        "looping_share": metrics.ratio(looping, sum(len(trace.tokens) for trace in traces)),
        "longest_cycle": max((one.cycle for one in loops if one), default=0),
        "prompts_looping": len({prompt for (prompt, _), one in zip(decoded, loops, strict=True) if one}),
        "prompts_ended_by_eos": len({prompt for prompt, trace in decoded if len(trace.tokens) < longest}),
    }


def outside_loops(trace: Trace) -> list[metrics.RoundCounts]:
    """The rounds of a decode, without those that emitted only a part of its loop."""
    found: Loop | None = loop_of(trace.tokens)
    return list(trace.rounds) if found is None else rounds_before(trace.rounds, found.start)
